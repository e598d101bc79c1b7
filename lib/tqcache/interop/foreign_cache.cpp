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
using cache::TensorKind;

// Whether the arrays are those of a cache of so many tokens.
Result<void> check_arrays(const ForeignLayer& layer, std::int64_t n_tokens) {
  if (const auto* window = std::get_if<cache::WindowDesc>(&layer.description)) {
    TQC_TRY(cache::validate_window(window->attention.shape, window->window));
  }
  const std::vector<cache::ArrayDesc> expected = cache::arrays_of(layer.description, n_tokens);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (i < layer.arrays.size() && layer.arrays[i].description == expected[i]) continue;
    return corrupt(expected[i].name + ": not of the window's shape");
  }
  return {};
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
    auto* const attention = std::get_if<cache::AttentionDesc>(&layer.description);
    if (attention == nullptr) continue;
    is_changed = is_changed || attention->k.quant || attention->v.quant;
    attention->k.quant.reset();
    attention->v.quant.reset();
  }
  return is_changed;
}

Result<CacheDesc> describe_foreign(const ForeignCache& cache) {
  CacheDesc description;
  description.identity = cache.identity;
  TQC_TRY(set_tokens(cache, description));
  for (const ForeignLayer& layer : cache.layers) {
    auto checked = check_arrays(layer, description.n_tokens());
    if (!checked) {
      return in_context(fmt::format("layer {}", description.layers.size()),
                        std::move(checked).error());
    }
    description.layers.push_back(layer.description);
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
  Result<void> read_dense(const ReadRows& read, const BlockInfo& block,
                          std::span<std::byte> raw) const {
    const std::int64_t n = cache::tokens_in_block(n_tokens(), block.block);
    const std::int64_t first = block.block * cache::kTokenBlock;
    TQC_TRY(read(first, n, raw));
    const LayerDesc& layer = description_.layers[to_size(block.layer)];
    const auto bad = find_not_finite(cache::tensor_of(layer, block.tensor).dtype, raw);
    if (!bad) return {};
    const auto vector =
        static_cast<std::int64_t>(*bad) / cache::shape_of(layer, block.tensor).head_dim;
    return corrupt(
        fmt::format("kv head {} token {}: a value is not finite", vector / n, first + vector % n));
  }

  Result<void> read_into(const BlockInfo& block, std::span<std::byte> raw) const {
    const ForeignLayer& layer = cache_.layers[to_size(block.layer)];
    if (block.tensor == TensorKind::kArray) return layer.arrays[to_size(block.block)].read(raw);
    const bool is_k = block.tensor == TensorKind::kKeys;
    if (!block.packed) return read_dense(is_k ? layer.read_k : layer.read_v, block, raw);
    return (is_k ? layer.read_packed_k : layer.read_packed_v)(block.block, raw);
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

ForeignLayer attention_layer(cache::HeadShape shape, ForeignTensor k, ForeignTensor v,
                             std::int64_t value_dim) {
  ForeignLayer layer;
  layer.description =
      cache::AttentionDesc{shape, std::move(k.description), std::move(v.description), value_dim};
  layer.read_k = std::move(k.read);
  layer.read_v = std::move(v.read);
  layer.read_packed_k = std::move(k.read_packed);
  layer.read_packed_v = std::move(v.read_packed);
  return layer;
}

ForeignLayer window_layer(cache::HeadShape shape, const cache::Window& window, ForeignArray k,
                          ForeignArray v, std::int64_t value_dim) {
  ForeignLayer layer;
  layer.description = cache::WindowDesc{
      {shape, {k.description.dtype, {}}, {v.description.dtype, {}}, value_dim}, window};
  layer.arrays = {std::move(k), std::move(v)};
  return layer;
}

ForeignLayer state_layer(std::vector<ForeignArray> arrays, bool is_opaque) {
  cache::StateDesc state;
  for (const ForeignArray& array : arrays) state.arrays.push_back(array.description);
  state.is_opaque = is_opaque;
  ForeignLayer layer;
  layer.description = std::move(state);
  layer.arrays = std::move(arrays);
  return layer;
}

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
        "latents of a GGUF file's model: transformers has their rotated parts in one order in "
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
  const bool is_theirs = source_format.starts_with("transformers") ||
                         source_format.find("mlx") != std::string_view::npos;
  if (is_theirs && architecture != "glm4") return {};
  return unsupported("keys of " + std::string(found->name) +
                     ": transformers and mlx-lm have them in another order");
}

}  // namespace tqcache::interop
