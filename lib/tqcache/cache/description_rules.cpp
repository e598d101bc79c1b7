// validate() of a description: limits, known names, and fields that have to agree.

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "tqcache/base/integers.h"
#include "tqcache/cache/blocks.h"
#include "tqcache/cache/key_factors.h"
#include "tqcache/cache/outliers.h"
#include "tqcache/description.h"
#include "tqcache/error.h"

namespace tqcache::cache {
namespace {

Result<void> check_text(std::string_view what, std::string_view text) {
  if (text.size() <= kMaxTextBytes) return {};
  return too_large(std::string(what) + " of " + std::to_string(text.size()) + " bytes");
}

Result<void> check_identity_fields(const Identity& identity) {
  TQC_TRY(check_text("architecture", identity.architecture));
  TQC_TRY(check_text("model name", identity.model_name));
  TQC_TRY(check_text("source format", identity.source_format));
  TQC_TRY(check_text("source layout", identity.source_layout));
  if (identity.llama_streams < 1 || identity.llama_streams > kMaxLlamaStreams) {
    return corrupt(std::to_string(identity.llama_streams) + " streams of llama.cpp");
  }
  const Rope& rope = identity.rope;
  if (rope.n_dims < 0 || rope.n_dims > kMaxHeadDim) {
    return too_large("rope: " + std::to_string(rope.n_dims) + " components");
  }
  if (!std::isfinite(rope.base) || rope.base < 0) return corrupt("rope: base is no number");
  if (!rope.factors.empty() && std::ssize(rope.factors) != rope.n_dims / 2) {
    return corrupt("rope: " + std::to_string(rope.factors.size()) + " factors for " +
                   std::to_string(rope.n_dims / 2) + " pairs");
  }
  const auto is_positive = [](float factor) { return std::isfinite(factor) && factor > 0; };
  if (!std::ranges::all_of(rope.factors, is_positive)) {
    return corrupt("rope: a factor that is no positive number");
  }
  return {};
}

// Checks that the codec can use the centroids of the file unchanged.
Result<void> check_codebook(const codec::PartSpec& part) {
  const std::vector<float>& centroids = part.centroids;
  const std::size_t expected = std::size_t{1} << part.bits;
  if (centroids.size() != expected) {
    return corrupt("codebook: " + std::to_string(centroids.size()) + " centroids where " +
                   std::to_string(expected) + " belong");
  }
  if (!std::ranges::all_of(centroids, [](float c) { return c >= -1 && c <= 1; })) {
    return corrupt("codebook: a centroid is outside -1 to 1");
  }
  if (std::ranges::adjacent_find(centroids, std::greater_equal{}) != centroids.end()) {
    return corrupt("codebook: the centroids do not ascend");
  }
  return {};
}

Result<void> check_codec(const QuantSpec& quant, std::int64_t head_dim) {
  TQC_TRY_ASSIGN(const codec::Mode mode, codec::mode_of(static_cast<int>(head_dim), quant.parts));
  if (mode != quant.mode) {
    return corrupt("codec of mode " + std::string(codec::mode_word(quant.mode)) +
                   " with parts of mode " + std::string(codec::mode_word(mode)));
  }
  for (std::size_t i = 0; i < quant.parts.size(); ++i) {
    if (auto codebook = check_codebook(quant.parts[i]); !codebook) {
      return in_context("part " + std::to_string(i), std::move(codebook).error());
    }
  }
  return {};
}

// A mean must fit the heads. Whether it has to be present depends on the sections.
Result<void> check_centering(const QuantSpec& quant, TensorKind name, HeadShape shape,
                             const Rope& rope) {
  if (quant.centering == Centering::kNone) {
    if (!quant.mean.empty()) return corrupt("a mean without centering");
    return {};
  }
  if (quant.centering == Centering::kPreRope &&
      (name != TensorKind::kKeys || !can_rotate(rope, shape.head_dim))) {
    return corrupt("centering before RoPE where there is none");
  }
  const std::int64_t expected = shape.n_kv_heads * shape.head_dim;
  if (!quant.mean.empty() && std::ssize(quant.mean) != expected) {
    return corrupt("a mean of " + std::to_string(quant.mean.size()) + " values where " +
                   std::to_string(expected) + " belong");
  }
  if (!std::ranges::all_of(quant.mean, [](float x) { return std::isfinite(x); })) {
    return corrupt("a mean that is not finite");
  }
  return {};
}

// As with the mean, whether outliers have to be present depends on the sections.
Result<void> check_outliers(const QuantSpec& quant, HeadShape shape) {
  if (quant.outliers.empty()) return {};
  if (quant.mode != codec::Mode::kMixed)
    return corrupt("outlier channels of a codec that has none");
  const auto n_channels = static_cast<std::size_t>(quant.parts[0].head_dim);
  auto outliers = make_outliers(shape, n_channels, quant.outliers);
  if (!outliers) return in_context("outlier channels", std::move(outliers).error());
  return {};
}

// Whether rows are independent is checked when the transforms are made.
Result<void> check_maps(const QuantSpec& quant, HeadShape shape) {
  if (quant.transforms.empty()) return {};
  if (quant.mode != codec::Mode::kTrellis) return corrupt("maps of a codec that has none");
  const std::int64_t expected = shape.n_kv_heads * shape.head_dim * shape.head_dim;
  if (std::ssize(quant.transforms) == expected) return {};
  return corrupt("maps of " + std::to_string(quant.transforms.size()) + " entries where " +
                 std::to_string(expected) + " belong");
}

Result<void> check_factors(const QuantSpec& quant, TensorKind name, HeadShape shape) {
  if (quant.factors.empty()) return {};
  if (name != TensorKind::kKeys || quant.centering == Centering::kNone ||
      !may_have_factors(quant.mode)) {
    return corrupt("factors of a codec that has none");
  }
  return check_factor_values(quant.factors, shape);
}

Result<void> check_tensor(const TensorDesc& tensor, TensorKind name, HeadShape shape,
                          const Rope& rope) {
  if (!tensor.quant) return {};
  const QuantSpec& quant = *tensor.quant;
  TQC_TRY(check_codec(quant, shape.head_dim));
  TQC_TRY(check_centering(quant, name, shape, rope));
  TQC_TRY(check_outliers(quant, shape));
  TQC_TRY(check_maps(quant, shape));
  TQC_TRY(check_factors(quant, name, shape));
  if (quant.n_sinks < 0 || quant.n_sinks > kTokenBlock) {
    return corrupt(std::to_string(quant.n_sinks) + " sink tokens");
  }
  return {};
}

Result<void> check_tensors(const AttentionDesc& layer, const Rope& rope) {
  if (auto k = check_tensor(layer.k, TensorKind::kKeys, layer.shape, rope); !k) {
    return in_context("k", std::move(k).error());
  }
  if (auto v = check_tensor(layer.v, TensorKind::kValues, layer.value_shape(), rope); !v) {
    return in_context("v", std::move(v).error());
  }
  return {};
}

Result<void> check_attention(const AttentionDesc& layer, const Rope& rope) {
  TQC_TRY(validate_shapes(layer.shape, layer.value_dim));
  return check_tensors(layer, rope);
}

bool has_sinks(const TensorDesc& tensor) { return tensor.quant && tensor.quant->n_sinks != 0; }

Result<void> check_window(const WindowDesc& layer, const Rope& rope) {
  const AttentionDesc& attention = layer.attention;
  TQC_TRY(validate_shapes(attention.shape, attention.value_dim));
  TQC_TRY(validate_window(attention.shape, layer.window));
  if (!is_quantized(attention)) return {};
  if (layer.window.keep != 0) return corrupt("a turbo window that keeps first tokens");
  TQC_TRY(check_tensors(attention, rope));
  if (has_sinks(attention.k) || has_sinks(attention.v)) return corrupt("sink tokens in a window");
  return {};
}

Result<void> check_array(const ArrayDesc& array) {
  TQC_TRY(check_text("name", array.name));
  if (array.shape.size() > kMaxArrayRank) {
    return too_large(std::to_string(array.shape.size()) + " dimensions");
  }
  const auto count = element_count(array.shape);
  const auto bytes = count ? checked_mul(*count, dtype_size(array.dtype)) : std::nullopt;
  if (!bytes || *bytes > kMaxArrayBytes) return too_large("its shape takes too many bytes");
  return {};
}

Result<void> check_state(const StateDesc& layer) {
  if (layer.arrays.size() > kMaxArrays) {
    return too_large(std::to_string(layer.arrays.size()) + " arrays");
  }
  for (std::size_t i = 0; i < layer.arrays.size(); ++i) {
    if (auto array = check_array(layer.arrays[i]); !array) {
      return in_context("array " + std::to_string(i), std::move(array).error());
    }
    const ArrayDesc& array = layer.arrays[i];
    if (layer.is_opaque && (array.dtype != Dtype::kF32 || array.shape.size() != 1)) {
      return corrupt("array " + std::to_string(i) + ": opaque, and not words of one dimension");
    }
  }
  return {};
}

Result<void> check_layer(const LayerDesc& layer, const Rope& rope, std::int64_t n_tokens) {
  TQC_TRY(std::visit(
      Overload{[&](const AttentionDesc& attention) { return check_attention(attention, rope); },
               [&](const WindowDesc& window) { return check_window(window, rope); },
               [](const StateDesc& state) { return check_state(state); }},
      layer));
  if (!std::holds_alternative<WindowDesc>(layer)) return {};
  const auto arrays = arrays_of(layer, n_tokens);
  for (std::size_t i = 0; i < arrays.size(); ++i) {
    if (auto array = check_array(arrays[i]); !array) {
      return in_context("array " + std::to_string(i), std::move(array).error());
    }
  }
  return {};
}

// Adds up the cost of making the codecs of a file: one table per part, and one matrix for some
// rotations. K and V with the same settings share theirs.
class CodecCosts {
 public:
  Result<void> add(const TensorDesc& tensor) {
    if (!tensor.quant) return {};
    const std::vector<codec::PartSpec>& parts = tensor.quant->parts;
    const auto is_same = [&](const auto* known) { return same_bits(*known, parts); };
    if (std::ranges::any_of(different_, is_same)) return {};
    different_.push_back(&parts);
    n_parts_ += parts.size();
    for (const codec::PartSpec& part : parts) n_matrix_values_ += matrix_values(part);
    if (n_parts_ > kMaxDifferentParts) {
      return too_large("codecs: " + std::to_string(n_parts_) + " different parts");
    }
    if (n_matrix_values_ > kMaxMatrixValues) {
      return too_large("codecs: matrices of " + std::to_string(n_matrix_values_) + " values");
    }
    return {};
  }

 private:
  static std::size_t matrix_values(const codec::PartSpec& part) {
    const codec::TransformKind kind = part.rotation;
    const bool has_matrix = kind == codec::TransformKind::kDenseQr ||
                            kind == codec::TransformKind::kGaussian ||
                            kind == codec::TransformKind::kMatrix;
    const auto size = static_cast<std::size_t>(part.head_dim);
    return has_matrix ? size * size : 0;
  }

  std::vector<const std::vector<codec::PartSpec>*> different_;
  std::size_t n_parts_ = 0;
  std::size_t n_matrix_values_ = 0;
};

Result<void> check_window_blocks(const std::vector<LayerDesc>& layers, std::int64_t n_tokens) {
  const auto is_turbo_window = [](const LayerDesc& layer) {
    const auto* window = std::get_if<WindowDesc>(&layer);
    return window != nullptr && is_quantized(window->attention);
  };
  const std::int64_t n_blocks =
      2 * std::ranges::count_if(layers, is_turbo_window) * block_count(n_tokens);
  if (n_blocks <= kMaxWindowBlocks) return {};
  return too_large("turbo windows behind " + std::to_string(n_blocks) + " token blocks");
}

Result<void> check_codec_costs(const std::vector<LayerDesc>& layers) {
  CodecCosts costs;
  for (const LayerDesc& layer : layers) {
    const AttentionDesc* attention = attention_of(layer);
    if (attention == nullptr) continue;
    TQC_TRY(costs.add(attention->k));
    TQC_TRY(costs.add(attention->v));
  }
  return {};
}

}  // namespace

Result<void> validate_layers(const std::vector<LayerDesc>& layers, const Rope& rope,
                             std::int64_t n_tokens) {
  if (layers.size() > static_cast<std::size_t>(kMaxLayers)) {
    return too_large(std::to_string(layers.size()) + " layers");
  }
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (auto layer = check_layer(layers[i], rope, n_tokens); !layer) {
      return in_context("layer " + std::to_string(i), std::move(layer).error());
    }
  }
  TQC_TRY(check_window_blocks(layers, n_tokens));
  return check_codec_costs(layers);
}

Result<void> validate(const CacheDesc& cache) {
  if (auto identity = check_identity_fields(cache.identity); !identity) {
    return in_context("identity", std::move(identity).error());
  }
  TQC_TRY(validate_tokens(cache.tokens, cache.hidden_tokens, cache.media));
  return validate_layers(cache.layers, cache.identity.rope, cache.n_tokens());
}

}  // namespace tqcache::cache
