#include "tqcache/model/attention/chunk_attention.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>

#include "tqcache/base/integers.h"
#include "tqcache/bytes.h"
#include "tqcache/model/linear/kernel_loops.h"
#include "tqcache/model/linear/product_kernels.h"

namespace tqcache::model {
namespace {

using cache::kTokenBlock;

void grow(std::vector<AlignedFloats>& buffers, std::size_t count, std::int64_t size) {
  if (buffers.size() < count) buffers.resize(count);
  for (AlignedFloats& each : buffers) grow(each, size);
}

void grow(std::vector<AlignedBytes>& buffers, std::size_t count, std::size_t size) {
  if (buffers.size() < count) buffers.resize(count);
  for (AlignedBytes& each : buffers) {
    if (each.size() < size) each.resize(size);
  }
}

// Queries and softmax are f32; f16 has 11 bits of mantissa, bf16 8, decoded values 24.
constexpr std::size_t kThreeParts = 3;

std::size_t parts_of_block(const cache::Tensor& tensor, std::int64_t block) {
  if (block < cache::packed_block_count(tensor)) return kThreeParts;
  switch (cache::dense_dtype(tensor)) {
    case Dtype::kF16:
      return 2;
    case Dtype::kBF16:
      return 1;
    case Dtype::kF32:
      break;
  }
  return kThreeParts;
}

// Queries of a task.
constexpr std::int64_t kQueriesAtOnce = kProductRows;

// Components of an output that are computed at a time.
constexpr std::size_t kValuesAtOnce = 128;

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
  const MatrixProducts& products = best_products();
  const std::size_t head_dim = to_size(shape_.head_dim);
  const std::size_t block_tokens = to_size(kTokenBlock);
  const std::int64_t stride = n_heads_ * shape_.head_dim;
  grow(row_max_, n_heads_ * kTokenBlock);
  grow(row_sum_, n_heads_ * kTokenBlock);
  grow(queries_, to_size(n_heads_), products.size(to_size(n), head_dim, kThreeParts));
  grow(keys_, to_size(shape_.n_kv_heads), products.size(block_tokens, head_dim, kThreeParts));
  grow(values_, to_size(shape_.n_kv_heads), products.size(head_dim, block_tokens, kThreeParts));
  grow(wide_rows_, workers.count(), kTokenBlock * shape_.head_dim);
  grow(score_rows_, workers.count(), kQueriesAtOnce * kTokenBlock);
  if (!products.takes_rows) {
    grow(weights_, workers.count(),
         products.size(to_size(kQueriesAtOnce), block_tokens, kThreeParts));
  }
  std::ranges::fill(row_max_, -std::numeric_limits<float>::infinity());
  std::ranges::fill(row_sum_, 0.0f);
  std::ranges::fill(out, 0.0f);
  workers.run(to_size(n_heads_), [&](std::size_t head) {
    products.pack_left({q.data() + head * head_dim, stride}, to_size(n), head_dim, scores_.scale,
                       kThreeParts, queries_[head].data());
  });

  // The first query sees the tokens before the chunk, and itself.
  const std::int64_t end = n_tokens - n + 1;
  const std::int64_t begin = window > 0 ? std::max<std::int64_t>(end - window, 0) : 0;
  const std::int64_t n_pieces = (n + kQueriesAtOnce - 1) / kQueriesAtOnce;
  for (std::int64_t block = begin / kTokenBlock; block < cache::block_count(n_tokens); ++block) {
    const BlockParts parts = {parts_of_block(layer.k, block), parts_of_block(layer.v, block)};
    pack_block(layer, n_tokens, block, parts, workers);
    const std::int64_t n_keys = cache::tokens_in_block(n_tokens, block);
    const std::int64_t first_token = block * kTokenBlock;
    const VisibleKeys visible = {window > 0 ? end - window - first_token : -n_tokens,
                                 end - first_token};
    workers.run_in_slots(to_size(n_heads_ * n_pieces), [&](std::size_t i, std::size_t slot) {
      const std::int64_t head = static_cast<std::int64_t>(i) / n_pieces;
      const std::int64_t first = static_cast<std::int64_t>(i) % n_pieces * kQueriesAtOnce;
      add_rows(visible, n_keys, parts, std::min(kQueriesAtOnce, n - first), head, first,
               out.data() + head * shape_.head_dim, slot);
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

// Widens and packs a block's keys and values, for all query heads of a kv head.
void ChunkAttention::pack_block(const cache::AttentionLayer& layer, std::int64_t n_tokens,
                                std::int64_t block, const BlockParts& parts,
                                const Workers& workers) {
  const MatrixProducts& products = best_products();
  const std::size_t n_keys = to_size(cache::tokens_in_block(n_tokens, block));
  const std::size_t head_dim = to_size(shape_.head_dim);
  workers.run_in_slots(to_size(2 * shape_.n_kv_heads), [&](std::size_t i, std::size_t slot) {
    const std::size_t kv_head = i / 2;
    const bool is_key = i % 2 == 0;
    AlignedFloats& rows = wide_rows_[slot];
    cache::read_block(is_key ? layer.k : layer.v, shape_, n_tokens, block,
                      static_cast<std::int64_t>(kv_head), std::span(rows).first(n_keys * head_dim));
    const ConstRows wide = {rows.data(), shape_.head_dim};
    if (is_key) {
      products.pack_right(wide, n_keys, head_dim, parts.keys, keys_[kv_head].data());
    } else {
      products.pack_columns(wide, head_dim, n_keys, parts.values, values_[kv_head].data());
    }
  });
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

// Adds the current block to the running sums of queries [first, first + n) of a head, n <= 32.
// Shapes: out [all queries, head_dim], rows n_heads * head_dim apart.
void ChunkAttention::add_rows(const VisibleKeys& visible, std::int64_t n_keys,
                              const BlockParts& parts, std::int64_t n, std::int64_t head,
                              std::int64_t first, float* out, std::size_t slot) {
  // The keys that at least one of them sees, from a multiple of 32 on.
  const std::int64_t last_key = std::clamp<std::int64_t>(visible.end + first + n - 1, 0, n_keys);
  const std::int64_t first_key =
      std::clamp<std::int64_t>(visible.first + first, 0, n_keys) / kQueriesAtOnce * kQueriesAtOnce;
  if (last_key <= first_key) return;
  const MatrixProducts& products = best_products();
  const std::size_t n_seen = to_size(last_key - first_key);
  const std::size_t head_dim = to_size(shape_.head_dim), kv_head = to_size(head / group_);
  const PackedView queries = {queries_[to_size(head)].data(), head_dim, kThreeParts};
  const PackedView keys = {keys_[kv_head].data(), head_dim, parts.keys};
  const PackedView values = {values_[kv_head].data(), to_size(n_keys), parts.values};

  AlignedFloats& scores = score_rows_[slot];
  products.multiply(left_from(products, queries, to_size(first), 0),
                    right_from(products, keys, to_size(first_key), 0), to_size(n), n_seen, head_dim,
                    scores.data(), n_seen);
  float factors[kQueriesAtOnce];
  for (std::int64_t i = 0; i < n; ++i) {
    factors[i] = add_scores(visible, first + i, head, first_key,
                            std::span(scores).subspan(to_size(i) * n_seen, n_seen));
  }
  PackedView weights = {reinterpret_cast<const std::byte*>(scores.data()), n_seen, kThreeParts};
  if (!products.takes_rows) {
    products.pack_left({scores.data(), static_cast<std::int64_t>(n_seen)}, to_size(n), n_seen, 1.0f,
                       kThreeParts, weights_[slot].data());
    weights.data = weights_[slot].data();
  }

  // Wider heads take turns, so that the memory of a worker does not grow with them.
  float added[kQueriesAtOnce * kValuesAtOnce];
  for (std::size_t at = 0; at < head_dim; at += kValuesAtOnce) {
    const std::size_t width = std::min(kValuesAtOnce, head_dim - at);
    products.multiply(weights, right_from(products, values, at, to_size(first_key)), to_size(n),
                      width, n_seen, added, width);
    for (std::int64_t i = 0; i < n; ++i) {
      float* const row = out + (first + i) * n_heads_ * shape_.head_dim + at;
      const float* const more = added + to_size(i) * width;
      for (std::size_t d = 0; d < width; ++d) row[d] = row[d] * factors[i] + more[d];
    }
  }
}

std::uint64_t ChunkAttention::scratch_bytes() const {
  std::uint64_t bytes = (row_max_.size() + row_sum_.size()) * sizeof(float);
  for (const auto* const buffers : {&queries_, &keys_, &values_, &weights_}) {
    for (const AlignedBytes& each : *buffers) bytes += each.size();
  }
  for (const auto* const buffers : {&wide_rows_, &score_rows_}) {
    for (const AlignedFloats& each : *buffers) bytes += each.size() * sizeof(float);
  }
  return bytes;
}

}  // namespace tqcache::model
