#include "tqcache/interop/foreign_cache.h"

#include <fmt/format.h>

#include <cstring>
#include <string>

#include "tqcache/base/half.h"
#include "tqcache/base/integers.h"
#include "tqcache/cache/blocks.h"
#include "tqcache/cache/checkpoint_views.h"

namespace tqcache::interop {
namespace {

using cache::BlockInfo;
using cache::BlockKey;
using cache::CacheDesc;
using cache::LayerDesc;
using cache::TensorDesc;
using cache::TensorKind;

Result<TensorDesc> describe(const ForeignTensor& tensor, cache::HeadShape shape) {
  TensorDesc described{tensor.dtype, {}};
  if (!tensor.packed) return described;
  cache::QuantSpec quant;
  TQC_TRY_ASSIGN(quant.mode,
                 codec::mode_of(static_cast<int>(shape.head_dim), tensor.packed->parts));
  quant.parts = tensor.packed->parts;
  quant.outliers = tensor.packed->outliers;
  described.quant = std::move(quant);
  return described;
}

Result<LayerDesc> describe(const ForeignAttention& layer) {
  auto k = describe(layer.k, layer.shape);
  if (!k) return in_context("k", std::move(k).error());
  cache::AttentionDesc attention{layer.shape, std::move(k).value(), {}, layer.value_dim};
  auto v = describe(layer.v, attention.value_shape());
  if (!v) return in_context("v", std::move(v).error());
  attention.v = std::move(v).value();
  return LayerDesc(std::move(attention));
}

Result<LayerDesc> describe(const ForeignWindow& layer, std::int64_t n_tokens) {
  TQC_TRY(cache::validate_window(layer.shape, layer.window));
  LayerDesc described = cache::WindowDesc{
      {layer.shape, {layer.k.dtype, {}}, {layer.v.dtype, {}}, layer.value_dim}, layer.window};
  const std::vector<cache::ArrayDesc> expected = cache::arrays_of(described, n_tokens);
  if (layer.k.shape != expected[0].shape)
    return corrupt(layer.k.name + ": not of the window's shape");
  if (layer.v.shape != expected[1].shape)
    return corrupt(layer.v.name + ": not of the window's shape");
  return described;
}

LayerDesc describe(const ForeignState& layer) {
  cache::StateDesc state;
  state.is_opaque = layer.is_opaque;
  for (const ForeignArray& array : layer.arrays) {
    state.arrays.push_back({array.name, array.dtype, array.shape});
  }
  return state;
}

Result<LayerDesc> describe(const ForeignLayer& layer, std::int64_t n_tokens) {
  return std::visit(
      Overload{[](const ForeignAttention& attention) { return describe(attention); },
               [&](const ForeignWindow& window) { return describe(window, n_tokens); },
               [](const ForeignState& state) -> Result<LayerDesc> { return describe(state); }},
      layer);
}

Result<void> set_tokens(const ForeignCache& cache, CacheDesc& description) {
  if (cache.n_tokens < 0 || cache.n_tokens > cache::kMaxTokens) {
    return too_large(fmt::format("{} tokens", cache.n_tokens));
  }
  if (!cache.tokens) {
    if (!cache.media.empty()) return corrupt("media, but no token ids");
    description.tokens.assign(static_cast<std::size_t>(cache.n_tokens), cache::kUnknownToken);
    description.hidden_tokens.emplace();
    return {};
  }
  if (std::ssize(*cache.tokens) != cache.n_tokens) {
    return corrupt(fmt::format("{} token ids for {} tokens", cache.tokens->size(), cache.n_tokens));
  }
  description.tokens = *cache.tokens;
  for (cache::MediaSpan span : cache.media) {
    const std::int64_t position = cache::position_of(description.media, span.begin);
    if (span.begin < 0 || span.begin >= cache.n_tokens || span.n_tokens < 1 ||
        span.n_tokens > cache::kMaxTokens) {
      return corrupt(fmt::format("media of {} tokens from token {} on, of {}", span.n_tokens,
                                 span.begin, cache.n_tokens));
    }
    const auto first = description.tokens.begin() + span.begin;
    if (span.placeholder == cache::kUnknownToken && *first >= 0) span.placeholder = *first;
    std::ranges::copy(cache::media_tokens(span, position, cache.n_tokens), first);
    description.media.push_back(std::move(span));
  }
  return {};
}

// Drops the quantized representations. Returns whether there were any.
bool make_dense(std::vector<ForeignLayer>& layers) {
  bool is_changed = false;
  for (ForeignLayer& layer : layers) {
    auto* const attention = std::get_if<ForeignAttention>(&layer);
    if (attention == nullptr) continue;
    is_changed = is_changed || attention->k.packed || attention->v.packed;
    attention->k.packed.reset();
    attention->v.packed.reset();
  }
  return is_changed;
}

Result<CacheDesc> describe_foreign(const ForeignCache& cache) {
  CacheDesc description;
  description.identity = cache.identity;
  TQC_TRY(set_tokens(cache, description));
  for (const ForeignLayer& layer : cache.layers) {
    auto described = describe(layer, description.n_tokens());
    if (!described) {
      return in_context(fmt::format("layer {}", description.layers.size()),
                        std::move(described).error());
    }
    description.layers.push_back(std::move(described).value());
  }
  TQC_TRY(cache::validate(description));
  return description;
}

// Describes K and V as quantized if the limits of a .tqkv file on codecs allow it, else as dense.
Result<CacheDesc> describe_within_limits(ForeignCache& cache) {
  Result<CacheDesc> packed = describe_foreign(cache);
  if (packed || packed.error().code != ErrorCode::kTooLarge) return packed;
  if (!make_dense(cache.layers)) return packed;
  return describe_foreign(cache);
}

// "layer 3 k": files of other programs have no sections to name.
std::string place_of(const BlockInfo& block) {
  std::string place = fmt::format("layer {}", block.layer);
  if (block.tensor == TensorKind::kArray) return fmt::format("{} array {}", place, block.block);
  return place + (block.tensor == TensorKind::kKeys ? " k" : " v");
}

class ForeignReader : public cache::CacheReader {
 public:
  ForeignReader(ForeignCache cache, CacheDesc description,
                std::vector<cache::Checkpoint> checkpoints)
      : cache_(std::move(cache)),
        description_(std::move(description)),
        checkpoints_(std::move(checkpoints)) {
    for (const BlockKey& key : cache::plan_blocks(description_.layers, n_tokens())) {
      const LayerDesc& layer = description_.layers[to_size(key.layer)];
      const bool packed = key.tensor != TensorKind::kArray &&
                          cache::tensor_of(layer, key.tensor).quant &&
                          cache::tokens_in_block(n_tokens(), key.block) == cache::kTokenBlock;
      blocks_.push_back(cache::make_block(description_, key, packed));
    }
  }

  const CacheDesc& description() const override { return description_; }
  const std::vector<BlockInfo>& blocks() const override { return blocks_; }
  std::span<const cache::Checkpoint> checkpoints() const override { return checkpoints_; }

  Result<void> read(std::size_t index, AlignedBytes& raw) const override {
    const BlockInfo& block = blocks_[index];
    raw.resize(block.raw_bytes);
    auto done = read_into(block, raw);
    if (!done) return in_context(place_of(block), std::move(done).error());
    return {};
  }

 private:
  // No format of ours holds values that are not finite, and no model computes from them.
  Result<void> read_dense(const ForeignTensor& tensor, cache::HeadShape shape, std::int64_t block,
                          std::span<std::byte> raw) const {
    const std::int64_t n = cache::tokens_in_block(n_tokens(), block);
    const std::int64_t first = block * cache::kTokenBlock;
    TQC_TRY(tensor.read(first, n, raw));
    const auto bad = find_not_finite(tensor.dtype, raw);
    if (!bad) return {};
    const auto vector = static_cast<std::int64_t>(*bad) / shape.head_dim;
    return corrupt(
        fmt::format("kv head {} token {}: a value is not finite", vector / n, first + vector % n));
  }

  Result<void> read_into(const BlockInfo& block, std::span<std::byte> raw) const {
    return std::visit(Overload{[&](const ForeignAttention& attention) {
                                 const ForeignTensor& tensor =
                                     block.tensor == TensorKind::kKeys ? attention.k : attention.v;
                                 if (block.packed) return tensor.packed->read(block.block, raw);
                                 const LayerDesc& layer = description_.layers[to_size(block.layer)];
                                 return read_dense(tensor, cache::shape_of(layer, block.tensor),
                                                   block.block, raw);
                               },
                               [&](const ForeignWindow& window) {
                                 return (block.block == 0 ? window.k : window.v).read(raw);
                               },
                               [&](const ForeignState& state) {
                                 return state.arrays[to_size(block.block)].read(raw);
                               }},
                      cache_.layers[to_size(block.layer)]);
  }

  ForeignCache cache_;
  CacheDesc description_;
  std::vector<cache::Checkpoint> checkpoints_;
  std::vector<BlockInfo> blocks_;
};

Result<std::vector<cache::Checkpoint>> read_checkpoints(std::vector<ForeignCheckpoint> foreign,
                                                        const CacheDesc& description) {
  std::vector<cache::CheckpointDesc> descriptions;
  std::vector<cache::Checkpoint> checkpoints;
  for (ForeignCheckpoint& each : foreign) {
    const std::string place = cache::checkpoint_place(checkpoints.size());
    if (each.n_tokens < 1 || each.n_tokens > description.n_tokens()) {
      return corrupt(
          fmt::format("{}: at {} tokens of {}", place, each.n_tokens, description.n_tokens()));
    }
    ForeignCache state;
    state.identity = description.identity;
    state.n_tokens = each.n_tokens;
    state.layers = std::move(each.layers);
    auto reader = reader_of(std::move(state));
    if (!reader) return in_context(place, std::move(reader).error());
    checkpoints.push_back({std::move(reader).value(), each.first_position});
    descriptions.push_back(cache::describe(checkpoints.back()));
  }
  TQC_TRY(cache::validate_checkpoints(description, descriptions));
  return checkpoints;
}

}  // namespace

Result<std::shared_ptr<const cache::CacheReader>> reader_of(ForeignCache cache) {
  TQC_TRY_ASSIGN(CacheDesc description, describe_within_limits(cache));
  TQC_TRY_ASSIGN(std::vector<cache::Checkpoint> checkpoints,
                 read_checkpoints(std::move(cache.checkpoints), description));
  return std::shared_ptr<const cache::CacheReader>(std::make_shared<ForeignReader>(
      std::move(cache), std::move(description), std::move(checkpoints)));
}

bool has_halves_in_v(const cache::Identity& of_file, const cache::Identity& of_model) {
  const std::string& known =
      of_file.architecture.empty() ? of_model.architecture : of_file.architecture;
  return known == "deepseek_v3" && of_file.rope.style != cache::RopeStyle::kInterleaved &&
         of_model.rope.style == cache::RopeStyle::kInterleaved;
}

Result<bool> wants_halves_in_v(const cache::Identity& identity) {
  if (identity.rope.style != cache::RopeStyle::kInterleaved) return false;
  if (identity.architecture == "deepseek2") {
    return unsupported(
        "latents of a GGUF file's model: transformers has their turned parts in one order in "
        "DeepSeek V2 and in another in V3; convert the state with the model's Hugging Face folder "
        "(-m)");
  }
  return identity.architecture == "deepseek_v3";
}

namespace {

// Value i of a row comes from place from(i).
template <class From>
void reorder_rows(std::size_t row_size, std::size_t value_size, std::span<std::byte> rows,
                  From from) {
  const std::size_t row_bytes = row_size * value_size;
  Bytes old(row_bytes);
  for (std::size_t at = 0; at + row_bytes <= rows.size(); at += row_bytes) {
    std::memcpy(old.data(), rows.data() + at, row_bytes);
    for (std::size_t i = 0; i < row_size; ++i) {
      std::memcpy(rows.data() + at + i * value_size, old.data() + from(i) * value_size, value_size);
    }
  }
}

}  // namespace

void halves_to_neighbors(std::size_t row_size, std::size_t value_size, std::span<std::byte> rows) {
  reorder_rows(row_size, value_size, rows,
               [&](std::size_t i) { return i % 2 * (row_size / 2) + i / 2; });
}

void neighbors_to_halves(std::size_t row_size, std::size_t value_size, std::span<std::byte> rows) {
  reorder_rows(row_size, value_size, rows, [&](std::size_t i) {
    const std::size_t half = row_size / 2;
    return i < half ? 2 * i : 2 * (i - half) + 1;
  });
}

Result<void> check_key_order(const std::string& architecture, std::string_view source_format) {
  struct Family {
    std::string_view word, name;
  };
  static constexpr Family kInPairs[] = {{"glm4", "GLM-4"},         {"chatglm", "GLM-4-9B"},
                                        {"ernie4_5", "ERNIE 4.5"}, {"command-r", "Command R"},
                                        {"cohere2", "Cohere2"},    {"helium", "Helium"}};
  const auto* const found = std::ranges::find(kInPairs, architecture, &Family::word);
  if (found == std::end(kInPairs)) return {};
  // Caches of these programs have kept their order, unless they were converted with a model.
  const bool is_theirs =
      source_format.starts_with("transformers") || source_format.find("mlx") != source_format.npos;
  if (is_theirs && architecture != "glm4") return {};
  return unsupported("keys of " + std::string(found->name) +
                     ": transformers and mlx-lm have them in another order");
}

}  // namespace tqcache::interop
