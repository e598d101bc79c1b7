#pragma once
// tests/cache/random_cache.h: caches with reproducible random values, and their values read back.

#include <cstdint>
#include <random>
#include <vector>

#include "support/cache_builder.h"
#include "tqcache/cache.h"
#include "tqcache/cache/window.h"
#include "tqcache/quantize.h"

namespace tqcache::test {

inline std::vector<float> random_rows(std::mt19937& random, std::int64_t n,
                                      cache::HeadShape shape) {
  std::uniform_real_distribution<float> uniform(-2, 2);
  std::vector<float> rows(static_cast<std::size_t>(n * shape.n_kv_heads * shape.head_dim));
  for (float& x : rows) x = uniform(random);
  return rows;
}

// Mode mse with so many bits; 16: dense.
inline cache::TensorPlan plan_of_bits(int bits,
                                      cache::Centering center = cache::Centering::kPreRope) {
  cache::TensorPlan plan;
  plan.dense = bits == 16;
  plan.codec.bits = bits;
  plan.center = center;
  return plan;
}

inline cache::ConvertOptions options_of_bits(int key_bits, int value_bits,
                                             cache::Centering center = cache::Centering::kPreRope) {
  return {plan_of_bits(key_bits, center), plan_of_bits(value_bits, center), {}, 0};
}

inline cache::ConvertOptions centered(cache::Centering center) {
  return options_of_bits(4, 4, center);
}

// A turbo window; otherwise null.
inline cache::WindowLayer* turbo_window(cache::Layer& layer) {
  auto* window = std::get_if<cache::WindowLayer>(&layer);
  return window != nullptr && cache::is_quantized(window->attention) ? window : nullptr;
}

// Appends tokens as a decoder does: block by block, a full tail packed first; also to windows that
// are turbo.
inline void append_tokens(cache::Cache& cache, std::mt19937& random, std::int64_t n) {
  while (n > 0) {
    const std::int64_t held = cache.n_tokens();
    const std::int64_t piece = std::min(n, cache::kTokenBlock - held % cache::kTokenBlock);
    for (cache::Layer& any : cache.layers) {
      cache::WindowLayer* const window = turbo_window(any);
      auto* layer = window ? &window->attention : std::get_if<cache::AttentionLayer>(&any);
      if (layer == nullptr) continue;
      const std::int64_t begin = cache::first_token(any, held);
      for (cache::Tensor* tensor : {&layer->k, &layer->v}) {
        if (!cache::pack_full_tail(*tensor, held, 1, begin)) std::abort();
        cache::append(*tensor, layer->shape, held, random_rows(random, piece, layer->shape));
      }
      if (window) cache::advance_window(*window, held + piece);
    }
    for (std::int64_t i = 0; i < piece; ++i) {
      cache.tokens.push_back(static_cast<std::int32_t>((held + i) % 1000));
    }
    n -= piece;
  }
}

inline cache::Cache random_cache(std::uint32_t seed, std::int64_t n_tokens,
                                 Dtype dtype = Dtype::kF16, cache::HeadShape shape = {2, 64},
                                 std::size_t n_layers = 2) {
  std::mt19937 random(seed);
  const std::vector<cache::LayerPlan> plan(n_layers, cache::LayerPlan{shape, dtype});
  cache::Cache cache = cache::make_cache({}, plan).value();
  append_tokens(cache, random, n_tokens);
  return cache;
}

// A rotating layer of a cache of so many tokens, its bytes counting up.
inline cache::WindowLayer rotating_layer(const TestWindow& window, std::int64_t n_tokens,
                                         Dtype keys = Dtype::kF16, Dtype values = Dtype::kF16) {
  const std::vector<std::uint64_t> shape = window.array_shape(n_tokens);
  const std::size_t count = shape[0] * shape[1] * shape[2];
  unsigned next = 0;
  const auto array = [&](Dtype dtype) {
    cache::NamedArray made{"", dtype, shape, AlignedBytes(count * dtype_size(dtype))};
    for (std::byte& byte : made.data) byte = std::byte(next++ % 64);
    return made;
  };
  const cache::NamedArray k = array(keys);
  return window_layer(window, k, array(values), n_tokens);
}

// All values of a tensor: [n_kv_heads, n_tokens, head_dim].
inline std::vector<float> values_of(const cache::Tensor& tensor, cache::HeadShape shape,
                                    std::int64_t n_tokens) {
  std::vector<float> all;
  for (std::int64_t head = 0; head < shape.n_kv_heads; ++head) {
    for (std::int64_t block = 0; block < cache::block_count(n_tokens); ++block) {
      std::vector<float> part(
          static_cast<std::size_t>(cache::tokens_in_block(n_tokens, block) * shape.head_dim));
      cache::read_block(tensor, shape, n_tokens, block, head, part);
      all.insert(all.end(), part.begin(), part.end());
    }
  }
  return all;
}

// The full block `index` of a dense tensor.
inline cache::FullBlock full_block(const cache::Tensor& tensor, cache::HeadShape shape,
                                   std::int64_t index) {
  return {shape, cache::dense_dtype(tensor), index, cache::dense_block(tensor, index)};
}

inline std::vector<cache::FullBlock> full_blocks(const cache::Tensor& tensor,
                                                 cache::HeadShape shape, std::int64_t n) {
  std::vector<cache::FullBlock> blocks;
  for (std::int64_t i = 0; i < n; ++i) blocks.push_back(full_block(tensor, shape, i));
  return blocks;
}

// The bytes of a packed block, to be compared.
inline std::vector<std::byte> packed_bytes(const cache::TurboTensor& tensor, std::size_t block) {
  const ByteView bytes = tensor.packed[block].bytes.view();
  return {bytes.begin(), bytes.end()};
}

inline const cache::AttentionLayer& attention(const cache::Cache& cache, std::size_t layer) {
  return std::get<cache::AttentionLayer>(cache.layers[layer]);
}

inline cache::AttentionLayer& attention(cache::Cache& cache, std::size_t layer) {
  return std::get<cache::AttentionLayer>(cache.layers[layer]);
}

}  // namespace tqcache::test
