#include "tqcache/model/attention/chunk_attention.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>

#include "tqcache/base/integers.h"
#include "tqcache/bytes.h"
#include "tqcache/model/linear/blas.h"
#include "tqcache/model/linear/kernel_loops.h"
#include "tqcache/model/linear/product_kernels.h"

namespace tqcache::model {
namespace {

using cache::kTokenBlock;

void grow(std::vector<AlignedFloats>& buffers, std::size_t count, std::int64_t size) {
  if (buffers.size() < count) buffers.resize(count);
  for (AlignedFloats& each : buffers) grow(each, size);
}

void grow(std::vector<Parts>& buffers, std::size_t count, std::size_t size) {
  if (buffers.size() < count) buffers.resize(count);
  for (Parts& each : buffers) {
    if (each.size() < size) each.resize(size);
  }
}

// Queries and softmax are f32; f16 has 11 bits of mantissa, bf16 8, decoded values 24.
constexpr std::size_t kThreeParts = 3;

std::size_t parts_of_block(const cache::Side& side, std::int64_t block) {
  if (block < cache::packed_block_count(side)) return kThreeParts;
  switch (cache::dense_dtype(side)) {
    case Dtype::kF16:
      return 2;
    case Dtype::kBF16:
      return 1;
    case Dtype::kF32:
      break;
  }
  return kThreeParts;
}

// Queries of a task in AMX: a pair of tiles.
constexpr std::int64_t kQueriesAtOnce = kTilesAtOnce * kTileRows;

}  // namespace

ChunkAttention::ChunkAttention(cache::HeadShape shape, std::int64_t n_heads, ScoreParams scores)
    : shape_(shape), n_heads_(n_heads), group_(n_heads / shape.n_kv_heads), scores_(scores) {
  assert(n_heads % shape.n_kv_heads == 0);
}

void ChunkAttention::attend(const cache::AttentionLayer& layer, std::int64_t n_tokens,
                            std::int64_t n, std::int64_t window, std::span<const float> q,
                            std::span<float> out, const Workers& workers,
                            std::span<const float> sinks) {
  assert((n_tokens - 1) / kTokenBlock == (n_tokens - n) / kTokenBlock);
  grow(keys_, shape_.n_kv_heads * kTokenBlock * shape_.head_dim);
  grow(values_, shape_.n_kv_heads * kTokenBlock * shape_.head_dim);
  grow(row_max_, n_heads_ * kTokenBlock);
  grow(row_sum_, n_heads_ * kTokenBlock);
  const bool in_tiles = best_tiles() != nullptr;
  grow(score_rows_, workers.count(), (in_tiles ? kQueriesAtOnce : kTokenBlock) * kTokenBlock);
  std::ranges::fill(row_max_, -std::numeric_limits<float>::infinity());
  std::ranges::fill(row_sum_, 0.0f);
  std::ranges::fill(out, 0.0f);

  if (const TileKernels* tiles = best_tiles()) {
    attend_in_tiles(*tiles, layer, n_tokens, n, window, q, out, workers);
    return divide_by_sums(n, sinks, out);
  }
  // The first query sees the tokens before the chunk, and itself.
  const std::int64_t end = n_tokens - n + 1;
  const std::int64_t begin = window > 0 ? std::max<std::int64_t>(end - window, 0) : 0;
  for (std::int64_t block = begin / kTokenBlock; block < cache::block_count(n_tokens); ++block) {
    widen_block(layer, n_tokens, block, workers);
    const std::int64_t n_keys = cache::tokens_in_block(n_tokens, block);
    const std::int64_t first_token = block * kTokenBlock;
    const VisibleKeys visible = {window > 0 ? end - window - first_token : -n_tokens,
                                 end - first_token};
    workers.run_in_slots(to_size(n_heads_), [&](std::size_t i, std::size_t slot) {
      const auto head = static_cast<std::int64_t>(i);
      add_block(visible, n_keys, n, head, q.data() + head * shape_.head_dim,
                out.data() + head * shape_.head_dim, score_rows_[slot]);
    });
  }
  divide_by_sums(n, sinks, out);
}

void ChunkAttention::divide_by_sums(std::int64_t n, std::span<const float> sinks,
                                    std::span<float> out) const {
  for (std::int64_t row = 0; row < n * n_heads_; ++row) {
    const std::int64_t head = row % n_heads_;
    const std::size_t place = to_size(head * kTokenBlock + row / n_heads_);
    const auto values = out.subspan(to_size(row * shape_.head_dim), to_size(shape_.head_dim));
    float sum = row_sum_[place];
    if (!sinks.empty()) {
      const float sink = sinks[to_size(head)];
      const float max = std::max(row_max_[place], sink);
      const float factor = loops::exp_f32(std::max(row_max_[place] - max, kLeastExponent));
      sum = factor * sum + loops::exp_f32(std::max(sink - max, kLeastExponent));
      for (float& value : values) value *= factor;
    }
    for (float& value : values) value /= sum;
  }
}

void ChunkAttention::widen_block(const cache::AttentionLayer& layer, std::int64_t n_tokens,
                                 std::int64_t block, const Workers& workers) {
  const std::size_t n_values = to_size(cache::tokens_in_block(n_tokens, block) * shape_.head_dim);
  workers.run(to_size(2 * shape_.n_kv_heads), [&](std::size_t i) {
    const auto kv_head = static_cast<std::int64_t>(i / 2);
    const std::size_t offset = to_size(kv_head * kTokenBlock * shape_.head_dim);
    const bool is_key = i % 2 == 0;
    cache::read_block(is_key ? layer.k : layer.v, shape_, n_tokens, block, kv_head,
                      std::span(is_key ? keys_ : values_).subspan(offset, n_values));
  });
}

// Adds the keys and values of the current block to the running sums of one head.
// Shapes: q, out [n, head_dim], rows n_heads * head_dim apart; scores [n, n_keys].
void ChunkAttention::add_block(const VisibleKeys& visible, std::int64_t n_keys, std::int64_t n,
                               std::int64_t head, const float* q, float* out,
                               std::span<float> scores) {
  const std::int64_t stride = n_heads_ * shape_.head_dim;
  const std::int64_t kv_offset = head / group_ * kTokenBlock * shape_.head_dim;
  multiply_transposed(n, n_keys, shape_.head_dim, scores_.scale, {q, stride},
                      {keys_.data() + kv_offset, shape_.head_dim}, {scores.data(), n_keys});
  for (std::int64_t i = 0; i < n; ++i) {
    const auto row = scores.subspan(to_size(i * n_keys), to_size(n_keys));
    const float factor = add_scores(visible, i, head, 0, row);
    if (factor == 1.0f) continue;
    for (std::int64_t d = 0; d < shape_.head_dim; ++d) out[i * stride + d] *= factor;
  }
  multiply_add(n, shape_.head_dim, n_keys, {scores.data(), n_keys},
               {values_.data() + kv_offset, shape_.head_dim}, {out, stride});
}

// Replaces the scores of query `row` for the keys from `first_key` on by their weights in softmax,
// zero where it sees no key, and adds them to its sum. Returns the factor of its output so far.
float ChunkAttention::add_scores(const VisibleKeys& visible, std::int64_t row, std::int64_t head,
                                 std::int64_t first_key, std::span<float> scores) {
  const Kernels& kernels = best_kernels();
  const auto n_keys = static_cast<std::int64_t>(scores.size());
  const auto place = [&](std::int64_t key) {
    return to_size(std::clamp<std::int64_t>(key + row - first_key, 0, n_keys));
  };
  const std::size_t first = place(visible.first);
  const std::size_t n_seen = place(visible.end) - first;
  const std::span<float> seen = scores.subspan(first, n_seen);
  std::ranges::fill(scores.first(first), 0.0f);
  std::ranges::fill(scores.subspan(first + n_seen), 0.0f);
  if (n_seen == 0) return 1.0f;
  const bool finite = all_finite(seen);
  cap_values(scores_.cap, seen);
  float& max = row_max_[to_size(head * kTokenBlock + row)];
  float& sum = row_sum_[to_size(head * kTokenBlock + row)];
  const float new_max = std::max(max, kernels.max_value(seen.data(), n_seen));
  const float factor = loops::exp_f32(max - new_max);
  sum = factor * sum + kernels.exp_sum(new_max, n_seen, seen.data());
  // Makes the output NaN, so that the layer reports an error.
  if (!finite) sum = std::numeric_limits<float>::quiet_NaN();
  max = new_max;
  return factor;
}

void ChunkAttention::attend_in_tiles(const TileKernels& tiles, const cache::AttentionLayer& layer,
                                     std::int64_t n_tokens, std::int64_t n, std::int64_t window,
                                     std::span<const float> q, std::span<float> out,
                                     const Workers& workers) {
  const std::size_t head_dim = to_size(shape_.head_dim);
  const std::int64_t stride = n_heads_ * shape_.head_dim;
  grow(query_parts_, to_size(n_heads_), split_size(to_size(n), head_dim, kThreeParts));
  grow(key_parts_, to_size(shape_.n_kv_heads),
       split_size(to_size(kTokenBlock), head_dim, kThreeParts));
  grow(value_parts_, to_size(shape_.n_kv_heads),
       split_size(head_dim, to_size(kTokenBlock), kThreeParts));
  grow(weight_parts_, workers.count(),
       split_size(to_size(kQueriesAtOnce), to_size(kTokenBlock), kThreeParts));
  workers.run(to_size(n_heads_), [&](std::size_t head) {
    tiles.split_left({q.data() + head * head_dim, stride}, to_size(n), head_dim, scores_.scale,
                     kThreeParts, query_parts_[head].data());
  });

  // The first query sees the tokens before the chunk, and itself.
  const std::int64_t end = n_tokens - n + 1;
  const std::int64_t begin = window > 0 ? std::max<std::int64_t>(end - window, 0) : 0;
  const std::int64_t n_pieces = (n + kQueriesAtOnce - 1) / kQueriesAtOnce;
  for (std::int64_t block = begin / kTokenBlock; block < cache::block_count(n_tokens); ++block) {
    widen_block(layer, n_tokens, block, workers);
    const std::int64_t n_keys = cache::tokens_in_block(n_tokens, block);
    const SplitBlock parts = {parts_of_block(layer.k, block), parts_of_block(layer.v, block)};
    split_block(tiles, n_keys, parts, workers);
    const std::int64_t first_token = block * kTokenBlock;
    const VisibleKeys visible = {window > 0 ? end - window - first_token : -n_tokens,
                                 end - first_token};
    workers.run_in_slots(to_size(n_heads_ * n_pieces), [&](std::size_t i, std::size_t slot) {
      const std::int64_t head = static_cast<std::int64_t>(i) / n_pieces;
      const std::int64_t first = static_cast<std::int64_t>(i) % n_pieces * kQueriesAtOnce;
      add_rows(tiles, visible, n_keys, parts, std::min(kQueriesAtOnce, n - first), head, first,
               out.data() + head * shape_.head_dim, slot);
    });
  }
}

void ChunkAttention::split_block(const TileKernels& tiles, std::int64_t n_keys,
                                 const SplitBlock& block, const Workers& workers) {
  workers.run(to_size(2 * shape_.n_kv_heads), [&](std::size_t i) {
    const std::size_t kv_head = i / 2;
    const std::size_t offset = kv_head * to_size(kTokenBlock * shape_.head_dim);
    const std::size_t head_dim = to_size(shape_.head_dim);
    if (i % 2 == 0) {
      tiles.split_right({keys_.data() + offset, shape_.head_dim}, to_size(n_keys), head_dim,
                        block.key_parts, key_parts_[kv_head].data());
    } else {
      tiles.split_columns({values_.data() + offset, shape_.head_dim}, head_dim, to_size(n_keys),
                          block.value_parts, value_parts_[kv_head].data());
    }
  });
}

// Adds the current block to the running sums of queries [first, first + n) of a head, n <= 32.
// Shapes: out [all queries, head_dim], rows n_heads * head_dim apart.
void ChunkAttention::add_rows(const TileKernels& tiles, const VisibleKeys& visible,
                              std::int64_t n_keys, const SplitBlock& block, std::int64_t n,
                              std::int64_t head, std::int64_t first, float* out, std::size_t slot) {
  // The keys that at least one of them sees, from the start of a tile on.
  const std::int64_t last_key = std::clamp<std::int64_t>(visible.end + first + n - 1, 0, n_keys);
  const std::int64_t first_key =
      std::clamp<std::int64_t>(visible.first + first, 0, n_keys) / kQueriesAtOnce * kQueriesAtOnce;
  if (last_key <= first_key) return;
  const std::size_t n_seen = to_size(last_key - first_key);
  const std::size_t head_dim = to_size(shape_.head_dim), kv_head = to_size(head / group_);
  const SplitView queries = {query_parts_[to_size(head)].data(), head_dim, kThreeParts};
  const SplitView keys = {key_parts_[kv_head].data(), head_dim, block.key_parts};
  const SplitView values = {value_parts_[kv_head].data(), to_size(n_keys), block.value_parts};
  const SplitView weights = {weight_parts_[slot].data(), n_seen, kThreeParts};

  AlignedFloats& scores = score_rows_[slot];
  tiles.multiply(split_from(queries, to_size(first), 0), split_from(keys, to_size(first_key), 0),
                 to_size(n), n_seen, head_dim, scores.data(), n_seen);
  float factors[kQueriesAtOnce];
  for (std::int64_t i = 0; i < n; ++i) {
    factors[i] = add_scores(visible, first + i, head, first_key,
                            std::span(scores).subspan(to_size(i) * n_seen, n_seen));
  }
  tiles.split_left({scores.data(), static_cast<std::int64_t>(n_seen)}, to_size(n), n_seen, 1.0f,
                   kThreeParts, weight_parts_[slot].data());

  // The scores' memory has room for 32 rows of 256 values; wider heads take turns.
  for (std::size_t at = 0; at < head_dim; at += to_size(kTokenBlock)) {
    const std::size_t width = std::min(to_size(kTokenBlock), head_dim - at);
    tiles.multiply(weights, split_from(values, at, to_size(first_key)), to_size(n), width, n_seen,
                   scores.data(), width);
    for (std::int64_t i = 0; i < n; ++i) {
      float* const row = out + (first + i) * n_heads_ * shape_.head_dim + at;
      const float* const added = scores.data() + to_size(i) * width;
      for (std::size_t d = 0; d < width; ++d) row[d] = row[d] * factors[i] + added[d];
    }
  }
}

std::uint64_t ChunkAttention::scratch_bytes() const {
  std::uint64_t numbers = 0;  // of 16 bits
  for (const auto* const buffers : {&query_parts_, &key_parts_, &value_parts_, &weight_parts_}) {
    for (const Parts& each : *buffers) numbers += each.size();
  }
  std::uint64_t floats = keys_.size() + values_.size() + row_max_.size() + row_sum_.size();
  for (const AlignedFloats& each : score_rows_) floats += each.size();
  return floats * sizeof(float) + numbers * sizeof(std::uint16_t);
}

}  // namespace tqcache::model
