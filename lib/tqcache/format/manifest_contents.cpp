// check_contents(): limits, known names, and fields that have to agree.

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "tqcache/base/integers.h"
#include "tqcache/base/result.h"
#include "tqcache/format/container_format.h"
#include "tqcache/format/manifest_rules.h"
#include "tqcache/format/type_names.h"

namespace tqcache::format {
namespace {

Result<void> check_text(std::string_view what, std::string_view text) {
  if (text.size() <= kMaxTextBytes) return {};
  return too_large(std::string(what) + " of " + std::to_string(text.size()) + " bytes");
}

Result<void> check_identity_fields(const cache::Identity& identity) {
  TQC_TRY(check_text("architecture", identity.architecture));
  TQC_TRY(check_text("model name", identity.model_name));
  TQC_TRY(check_text("source format", identity.source_format));
  const cache::Rope& rope = identity.rope;
  if (rope.n_dims < 0 || rope.n_dims > cache::kMaxHeadDim) {
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

// The codec uses centroids as the file has them.
Result<void> check_codebook(const codec::PartSpec& part) {
  const std::vector<float>& centroids = part.centroids;
  const std::size_t expected = std::size_t{1} << part.quantizer.bits;
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

Result<void> check_codec(const SideInfo& side, codec::Mode expected, std::int64_t head_dim) {
  if (!is_turbo(side)) return corrupt("a turbo side without a codec");
  TQC_TRY_ASSIGN(const codec::Mode mode, codec::mode_of(static_cast<int>(head_dim), side.parts));
  if (mode != expected) {
    return corrupt("cache type " + side.cache_type_id + " with parts of mode " +
                   std::string(codec::mode_word(mode)));
  }
  for (std::size_t i = 0; i < side.parts.size(); ++i) {
    if (auto codebook = check_codebook(side.parts[i]); !codebook) {
      return in_context("part " + std::to_string(i), std::move(codebook).error());
    }
  }
  return {};
}

// A mean that fits the heads. Whether there has to be one depends on the sections.
Result<void> check_centering(const SideInfo& side, SideName name, cache::HeadShape shape,
                             const cache::Rope& rope) {
  if (side.centering == cache::Centering::kNone) {
    if (!side.mean.empty()) return corrupt("a mean without centering");
    return {};
  }
  if (side.centering == cache::Centering::kPreRope &&
      (name != SideName::kKeys || !cache::can_turn(rope, shape.head_dim))) {
    return corrupt("centering before RoPE where there is none");
  }
  const std::int64_t expected = shape.n_kv_heads * shape.head_dim;
  if (!side.mean.empty() && std::ssize(side.mean) != expected) {
    return corrupt("a mean of " + std::to_string(side.mean.size()) + " values where " +
                   std::to_string(expected) + " belong");
  }
  if (!std::ranges::all_of(side.mean, [](float x) { return std::isfinite(x); })) {
    return corrupt("a mean that is not finite");
  }
  return {};
}

// As for the mean, whether there have to be any depends on the sections.
Result<void> check_outliers(const SideInfo& side, codec::Mode mode, cache::HeadShape shape) {
  if (side.outliers.empty()) return {};
  if (mode != codec::Mode::kMixed) return corrupt("outlier channels of a codec that has none");
  const auto n_channels = static_cast<std::size_t>(side.parts[0].quantizer.head_dim);
  auto outliers = cache::make_outliers(shape, n_channels, side.outliers);
  if (!outliers) return in_context("outlier channels", std::move(outliers).error());
  return {};
}

// Whether their rows are good for a map shows when it is made: make_empty_cache().
Result<void> check_maps(const SideInfo& side, codec::Mode mode, cache::HeadShape shape) {
  if (side.transforms.empty()) return {};
  if (mode != codec::Mode::kTrellis) return corrupt("maps of a codec that has none");
  const std::int64_t expected = shape.n_kv_heads * shape.head_dim * shape.head_dim;
  if (std::ssize(side.transforms) == expected) return {};
  return corrupt("maps of " + std::to_string(side.transforms.size()) + " entries where " +
                 std::to_string(expected) + " belong");
}

Result<void> check_side(const SideInfo& side, SideName name, cache::HeadShape shape,
                        const cache::Rope& rope) {
  if (side.cache_type_id == kDenseType) {
    if (is_turbo(side)) return corrupt("a dense side with a codec");
    return {};
  }
  TQC_TRY_ASSIGN(const codec::Mode mode, kind_of(kTurboTypes, "cache type", side.cache_type_id));
  TQC_TRY(check_codec(side, mode, shape.head_dim));
  TQC_TRY(check_centering(side, name, shape, rope));
  TQC_TRY(check_outliers(side, mode, shape));
  TQC_TRY(check_maps(side, mode, shape));
  if (side.n_sinks < 0 || side.n_sinks > cache::kTokenBlock) {
    return corrupt(std::to_string(side.n_sinks) + " sink tokens");
  }
  return {};
}

bool has_window(const LayerInfo& layer) { return layer.window != 0 || layer.keep != 0; }

Result<void> check_sides(const LayerInfo& layer, const cache::Rope& rope) {
  if (auto k = check_side(layer.k, SideName::kKeys, layer.shape, rope); !k) {
    return in_context("k", std::move(k).error());
  }
  if (auto v = check_side(layer.v, SideName::kValues, layer.shape, rope); !v) {
    return in_context("v", std::move(v).error());
  }
  return {};
}

Result<void> check_attention(const LayerInfo& layer, const cache::Rope& rope) {
  TQC_TRY(cache::validate_shape(layer.shape));
  if (has_window(layer)) return corrupt("an attention layer with a window");
  if (!layer.arrays.empty()) return corrupt("an attention layer with arrays");
  return check_sides(layer, rope);
}

// Of two dense sides it would be arrays, so that there is one way to write a window.
Result<void> check_turbo_rotating(const LayerInfo& layer, const cache::Rope& rope) {
  TQC_TRY(cache::validate_window({layer.shape, layer.window, layer.keep}));
  if (layer.keep != 0) return corrupt("a turbo window that keeps first tokens");
  if (!layer.arrays.empty()) return corrupt("a turbo window with arrays");
  TQC_TRY(check_sides(layer, rope));
  if (!is_turbo(layer.k) && !is_turbo(layer.v)) return corrupt("a turbo window of dense sides");
  if (layer.k.n_sinks != 0 || layer.v.n_sinks != 0) return corrupt("sink tokens in a window");
  return {};
}

Result<void> check_array(const ArrayInfo& array) {
  TQC_TRY(check_text("name", array.name));
  if (array.shape.size() > kMaxArrayRank) {
    return too_large(std::to_string(array.shape.size()) + " dimensions");
  }
  const auto count = element_count(array.shape);
  const auto bytes = count ? checked_mul(*count, dtype_size(array.dtype)) : std::nullopt;
  if (!bytes || *bytes > kMaxArrayBytes) return too_large("its shape takes too many bytes");
  return {};
}

Result<void> check_array_list(const LayerInfo& layer) {
  if (!layer.k.cache_type_id.empty() || !layer.v.cache_type_id.empty()) {
    return corrupt("arrays beside k or v");
  }
  if (layer.arrays.size() > kMaxArrays) {
    return too_large(std::to_string(layer.arrays.size()) + " arrays");
  }
  for (std::size_t i = 0; i < layer.arrays.size(); ++i) {
    if (auto array = check_array(layer.arrays[i]); !array) {
      return in_context("array " + std::to_string(i), std::move(array).error());
    }
  }
  return {};
}

Result<void> check_arrays(const LayerInfo& layer) {
  if (layer.shape != cache::HeadShape{}) return corrupt("an arrays layer with heads");
  if (has_window(layer)) return corrupt("an arrays layer with a window");
  return check_array_list(layer);
}

Result<void> check_rotating(const LayerInfo& layer, std::int64_t n_tokens) {
  const cache::Window window{layer.shape, layer.window, layer.keep};
  TQC_TRY(cache::validate_window(window));
  TQC_TRY(check_array_list(layer));
  if (layer.arrays.size() != 2 || layer.arrays[0].name != cache::kWindowKeys ||
      layer.arrays[1].name != cache::kWindowValues) {
    return corrupt("a rotating layer with other arrays than keys and values");
  }
  const auto expected = cache::window_array_shape(window, n_tokens);
  for (const ArrayInfo& array : layer.arrays) {
    if (array.shape != expected) return corrupt(array.name + ": not of the window's shape");
  }
  return {};
}

Result<void> check_layer(const LayerInfo& layer, const cache::Rope& rope, std::int64_t n_tokens) {
  if (is_attention(layer)) return check_attention(layer, rope);
  if (is_rotating(layer)) return check_rotating(layer, n_tokens);
  if (is_turbo_rotating(layer)) return check_turbo_rotating(layer, rope);
  if (layer.cache_type_id != kArraysType) return unknown_name("cache type", layer.cache_type_id);
  return check_arrays(layer);
}

// Adds up what it takes to make the codecs of a file, which is a table a part, and of some
// rotations a matrix. Sides that are coded alike share theirs.
class CodecCosts {
 public:
  Result<void> add(const SideInfo& side) {
    const auto is_same = [&](const auto* known) { return same_bits(*known, side.parts); };
    if (!is_turbo(side) || std::ranges::any_of(different_, is_same)) return {};
    different_.push_back(&side.parts);
    n_parts_ += side.parts.size();
    for (const codec::PartSpec& part : side.parts) n_matrix_values_ += matrix_values(part);
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
    const codec::TransformKind kind = part.quantizer.rotation;
    const bool has_matrix = kind == codec::TransformKind::kDenseQr ||
                            kind == codec::TransformKind::kGaussian ||
                            kind == codec::TransformKind::kMatrix;
    const auto size = static_cast<std::size_t>(part.quantizer.head_dim);
    return has_matrix ? size * size : 0;
  }

  std::vector<const std::vector<codec::PartSpec>*> different_;
  std::size_t n_parts_ = 0;
  std::size_t n_matrix_values_ = 0;
};

Result<void> check_window_blocks(const std::vector<LayerInfo>& layers, std::int64_t n_tokens) {
  const std::int64_t n_blocks =
      2 * std::ranges::count_if(layers, is_turbo_rotating) * cache::block_count(n_tokens);
  if (n_blocks <= kMaxWindowBlocks) return {};
  return too_large("turbo windows behind " + std::to_string(n_blocks) + " token blocks");
}

Result<void> check_codec_costs(const std::vector<LayerInfo>& layers) {
  CodecCosts costs;
  for (const LayerInfo& layer : layers) {
    TQC_TRY(costs.add(layer.k));
    TQC_TRY(costs.add(layer.v));
  }
  return {};
}

}  // namespace

Result<void> check_layers(const std::vector<LayerInfo>& layers, const cache::Rope& rope,
                          std::int64_t n_tokens) {
  if (layers.size() > static_cast<std::size_t>(cache::kMaxLayers)) {
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

Result<void> check_contents(const Manifest& manifest) {
  TQC_TRY(check_text("writer", manifest.writer));
  if (auto identity = check_identity_fields(manifest.identity); !identity) {
    return in_context("identity", std::move(identity).error());
  }
  TQC_TRY(cache::validate_tokens(manifest.tokens, manifest.hidden_tokens));
  if (manifest.gaps.size() > kMaxGaps) {
    return too_large(std::to_string(manifest.gaps.size()) + " gaps");
  }
  return check_layers(manifest.layers, manifest.identity.rope, manifest.n_tokens());
}

}  // namespace tqcache::format
