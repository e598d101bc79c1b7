#pragma once
// golden/golden_builder.h: builds the cache of a golden file, values and all, from integers.

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "support/cache_builder.h"
#include "tqcache/cache.h"
#include "tqcache/cache/window.h"
#include "tqcache/kv_codec.h"
#include "tqcache/quantize.h"

namespace tqcache::test {

// Numbers with a bell-shaped distribution, from SplitMix64: the sum of three 20-bit words, less
// their mean, in units of 2^-19. An f32 holds each of them, and so does the product with a small
// integer.
class Recipe {
 public:
  explicit Recipe(std::uint64_t seed) : words_(seed) {}

  float next() {
    std::int32_t sum = 0;
    for (int i = 0; i < 3; ++i) sum += static_cast<std::int32_t>(words_.next() >> 44);
    return static_cast<float>(sum - 3 * (1 << 19)) * 0x1p-19f;
  }
  std::uint64_t word() { return words_.next(); }

 private:
  Random words_;
};

// How one tensor of a golden file is kept.
struct TensorChoice {
  Dtype dtype = Dtype::kF16;
  cache::TensorPlan plan = {};
  bool keep_full_tail = false;  // a full last block stays dense
};

inline TensorChoice dense_as(Dtype dtype) { return {dtype, {.dense = true}}; }
inline TensorChoice coded(const codec::CodecSpec& spec,
                          cache::Centering center = cache::Centering::kNone,
                          std::int64_t n_sinks = 0) {
  return {Dtype::kF16, {.codec = spec, .center = center, .n_sinks = n_sinks}};
}

class GoldenBuilder {
 public:
  // Cases differ in their seeds.
  GoldenBuilder(std::uint64_t seed, std::int64_t n_tokens) : recipe_(seed) {
    cache_.identity.architecture = "qwen3";
    cache_.identity.model_name = "golden " + std::to_string(seed);
    cache_.identity.rope = {cache::RopeStyle::kHalfSplit, 32, 10000};
    for (std::byte& byte : cache_.identity.weights_fingerprint) byte = std::byte(seed);
    for (std::byte& byte : cache_.identity.tokenizer_fingerprint) byte = std::byte(seed + 100);
    cache_.identity.source_format = "tqcache";
    for (std::int64_t i = 0; i < n_tokens; ++i) {
      cache_.tokens.push_back(static_cast<std::int32_t>(recipe_.word() >> 47));
    }
  }

  cache::Identity& identity() { return cache_.identity; }

  GoldenBuilder& attention(cache::HeadShape shape, const TensorChoice& k, const TensorChoice& v) {
    cache::Tensor keys = tensor(shape, k, codec::BlockOrder::kKeys);
    cache::Tensor values = tensor(shape, v, codec::BlockOrder::kValues);
    cache_.layers.emplace_back(cache::AttentionLayer{shape, std::move(keys), std::move(values)});
    return *this;
  }

  GoldenBuilder& unequal(cache::HeadShape shape, std::int64_t value_dim, const TensorChoice& k,
                         const TensorChoice& v) {
    cache::Tensor keys = tensor(shape, k, codec::BlockOrder::kKeys);
    cache::Tensor values = tensor({shape.n_kv_heads, value_dim}, v, codec::BlockOrder::kValues);
    cache_.layers.emplace_back(
        cache::AttentionLayer{shape, std::move(keys), std::move(values), value_dim});
    return *this;
  }

  GoldenBuilder& arrays() {
    cache::StateLayer layer;
    layer.arrays.push_back(array("conv", Dtype::kBF16, {3, 20}));
    layer.arrays.push_back(array("state", Dtype::kF32, {2, 5, 7}));
    layer.arrays.push_back(array("half", Dtype::kF16, {11}));
    layer.arrays.push_back(array("scalar", Dtype::kF32, {}));
    layer.arrays.push_back(array("nothing", Dtype::kF32, {4, 0}));
    cache_.layers.emplace_back(std::move(layer));
    return *this;
  }

  GoldenBuilder& rotating(const TestWindow& window, Dtype keys, Dtype values) {
    const std::int64_t n = cache_.n_tokens();
    const cache::NamedArray k = array("keys", keys, window.array_shape(n));
    const cache::NamedArray v = array("values", values, window.value_array_shape(n));
    cache_.layers.emplace_back(window_layer(window, k, v, cache_.n_tokens()));
    return *this;
  }

  // Requires: the window keeps no first tokens, and one of the tensors is coded, without sink
  // tokens.
  GoldenBuilder& turbo_rotating(const TestWindow& window, const TensorChoice& k,
                                const TensorChoice& v) {
    cache::DenseTensor keys = window_rows(window, window.shape, k.dtype);
    cache::DenseTensor values = window_rows(window, window.value_shape(), v.dtype);
    cache_.layers.emplace_back(cache::WindowLayer{
        {window.shape, std::move(keys), std::move(values), window.value_dim}, window.window()});
    auto& layer = std::get<cache::WindowLayer>(cache_.layers.back());
    const cache::KvTables tables(cache_.identity.rope);
    pack_window(layer, layer.attention.k, k.plan, codec::BlockOrder::kKeys, tables);
    pack_window(layer, layer.attention.v, v.plan, codec::BlockOrder::kValues, tables);
    return *this;
  }

  GoldenBuilder& hide_tokens() {
    cache::hide_tokens(cache_);
    return *this;
  }
  GoldenBuilder& forget_tokens() {
    std::ranges::fill(cache_.tokens, cache::kUnknownToken);
    cache_.hidden_tokens.emplace();
    return *this;
  }

  cache::Cache build() { return std::move(cache_); }

 private:
  // Packs the full token blocks of K or V of a window as they are, with what is before it.
  void pack_window(const cache::WindowLayer& layer, cache::Tensor& tensor,
                   const cache::TensorPlan& plan, codec::BlockOrder order,
                   const cache::KvTables& tables) {
    if (plan.dense) return;
    const bool is_keys = order == codec::BlockOrder::kKeys;
    const cache::HeadShape shape = is_keys ? layer.attention.shape : layer.attention.value_shape();
    const std::int64_t n_tokens = cache_.n_tokens();
    const std::int64_t begin = cache::window_begin(layer.window, n_tokens);
    auto dense = std::get<cache::DenseTensor>(std::move(tensor));
    const auto full = [&](std::int64_t block) {
      return cache::FullBlock{shape, dense.dtype, block,
                              dense.blocks[static_cast<std::size_t>(block)],
                              cache::tokens_before(begin, block)};
    };
    cache::KvCodec codec = must(cache::make_codec(plan, order, shape, dense.dtype, tables));
    std::vector<cache::FullBlock> sample;
    for (const std::int64_t block : cache::fit_blocks(cache::Fit::kPrompt, n_tokens, begin)) {
      sample.push_back(full(block));
    }
    if (!sample.empty()) codec.fit(sample, 1);
    cache::TurboTensor turbo{codec, {}, {dense.dtype, {}}};
    turbo.packed.resize(static_cast<std::size_t>(n_tokens / cache::kTokenBlock));
    for (auto i = begin / cache::kTokenBlock; i < n_tokens / cache::kTokenBlock; ++i) {
      turbo.packed[static_cast<std::size_t>(i)] =
          cache::make_turbo_block(codec, i, must(codec.encode(full(i), 1)));
    }
    for (auto i = n_tokens / cache::kTokenBlock; i < cache::block_count(n_tokens); ++i) {
      turbo.tail.blocks.push_back(std::move(dense.blocks[static_cast<std::size_t>(i)]));
    }
    tensor = std::move(turbo);
  }

  // What stands before the window in its first block stays there.
  cache::DenseTensor window_rows(const TestWindow& window, cache::HeadShape shape, Dtype dtype) {
    cache::DenseTensor rows = dense_tensor(shape, dtype);
    const std::int64_t n_left = cache::first_window_block(window.window(), cache_.n_tokens());
    for (std::int64_t i = 0; i < n_left; ++i) rows.blocks[static_cast<std::size_t>(i)].clear();
    return rows;
  }

  cache::Tensor tensor(cache::HeadShape shape, const TensorChoice& choice,
                       codec::BlockOrder order) {
    cache::DenseTensor dense = dense_tensor(shape, choice.dtype);
    if (choice.plan.dense) return dense;
    cache::TurboTensor turbo{
        must(cache::make_codec(choice.plan, order, shape, choice.dtype, cache_.identity.rope)),
        {},
        {choice.dtype, {}}};
    pack(shape, choice, std::move(dense), turbo);
    return turbo;
  }

  void pack(cache::HeadShape shape, const TensorChoice& choice, cache::DenseTensor dense,
            cache::TurboTensor& turbo) const {
    std::vector<cache::FullBlock> full;
    for (std::int64_t i = 0; i < cache_.n_tokens() / cache::kTokenBlock; ++i) {
      full.push_back({shape, dense.dtype, i, dense.blocks[static_cast<std::size_t>(i)]});
    }
    std::size_t n_packed = full.size();
    if (choice.keep_full_tail && n_packed == dense.blocks.size() && n_packed > 0) --n_packed;
    if (n_packed > 0) turbo.codec.fit(full, 1);
    for (std::size_t i = 0; i < n_packed; ++i) {
      turbo.packed.push_back(cache::make_turbo_block(turbo.codec, full[i].index,
                                                     must(turbo.codec.encode(full[i], 1))));
    }
    for (std::size_t i = n_packed; i < dense.blocks.size(); ++i) {
      turbo.tail.blocks.push_back(std::move(dense.blocks[i]));
    }
  }

  cache::DenseTensor dense_tensor(cache::HeadShape shape, Dtype dtype) {
    std::vector<float> offsets;  // of every kv head's channels: something for centering to take out
    for (std::int64_t i = 0; i < shape.n_kv_heads * shape.head_dim; ++i) {
      offsets.push_back(2 * recipe_.next());
    }
    cache::DenseTensor tensor{dtype, {}};
    for (std::int64_t block = 0; block < cache::block_count(cache_.n_tokens()); ++block) {
      tensor.blocks.push_back(
          dense_block(shape, dtype, cache::tokens_in_block(cache_.n_tokens(), block), offsets));
    }
    return tensor;
  }

  AlignedBytes dense_block(cache::HeadShape shape, Dtype dtype, std::int64_t n_tokens,
                           const std::vector<float>& offsets) {
    const auto head_dim = static_cast<std::size_t>(shape.head_dim);
    const std::size_t row_bytes = head_dim * dtype_size(dtype);
    AlignedBytes block(static_cast<std::size_t>(shape.n_kv_heads * cache::kTokenBlock) * row_bytes);
    std::vector<float> row(head_dim);
    for (std::int64_t head = 0; head < shape.n_kv_heads; ++head) {
      for (std::int64_t token = 0; token < n_tokens; ++token) {
        for (std::size_t i = 0; i < head_dim; ++i) {
          const float loudness = i % 8 == 3 ? 4 : 1;
          row[i] =
              offsets[static_cast<std::size_t>(head) * head_dim + i] + loudness * recipe_.next();
        }
        const auto at = static_cast<std::size_t>(head * cache::kTokenBlock + token);
        store_f32(dtype, row, block.data() + at * row_bytes);
      }
    }
    return block;
  }

  cache::NamedArray array(std::string name, Dtype dtype, std::vector<std::uint64_t> shape) {
    std::size_t count = 1;
    for (const std::uint64_t n : shape) count *= n;
    std::vector<float> values(count);
    for (float& value : values) value = recipe_.next();
    cache::NamedArray result{std::move(name), dtype, std::move(shape),
                             AlignedBytes(count * dtype_size(dtype))};
    if (count > 0) store_f32(dtype, values, result.data.data());
    return result;
  }

  Recipe recipe_;
  cache::Cache cache_;
};

}  // namespace tqcache::test
