#include "tqcache/model/attention/chunk_attention.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>

#include "tqcache/base/integers.h"
#include "tqcache/bytes.h"
#include "tqcache/model/linear/blas.h"
#include "tqcache/model/linear/kernel_loops.h"
#include "tqcache/model/linear/kernels.h"

namespace tqcache::model {
namespace {

using cache::kTokenBlock;

void grow(std::vector<AlignedFloats>& buffers, std::size_t count, std::int64_t size) {
  if (buffers.size() < count) buffers.resize(count);
  for (AlignedFloats& each : buffers) grow(each, size);
}

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
  grow(score_rows_, workers.count(), kTokenBlock * kTokenBlock);
  std::ranges::fill(row_max_, -std::numeric_limits<float>::infinity());
  std::ranges::fill(row_sum_, 0.0f);
  std::ranges::fill(out, 0.0f);

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
  const Kernels& kernels = best_kernels();
  const std::int64_t stride = n_heads_ * shape_.head_dim;
  const std::int64_t kv_offset = head / group_ * kTokenBlock * shape_.head_dim;
  multiply_transposed(n, n_keys, shape_.head_dim, scores_.scale, {q, stride},
                      {keys_.data() + kv_offset, shape_.head_dim}, {scores.data(), n_keys});
  for (std::int64_t i = 0; i < n; ++i) {
    const std::size_t first = to_size(std::clamp<std::int64_t>(visible.first + i, 0, n_keys));
    const std::size_t n_seen =
        to_size(std::clamp<std::int64_t>(visible.end + i, 0, n_keys)) - first;
    float* const whole = scores.data() + i * n_keys;
    float* const row = whole + first;
    std::fill(whole, row, 0.0f);
    std::fill(row + n_seen, whole + n_keys, 0.0f);
    if (n_seen == 0) continue;
    const bool finite = all_finite({row, n_seen});
    cap_values(scores_.cap, {row, n_seen});
    float& max = row_max_[to_size(head * kTokenBlock + i)];
    float& sum = row_sum_[to_size(head * kTokenBlock + i)];
    const float new_max = std::max(max, kernels.max_value(row, n_seen));
    const float factor = loops::exp_f32(max - new_max);
    sum = factor * sum + kernels.exp_sum(new_max, n_seen, row);
    // Makes the output NaN, so that the layer reports an error.
    if (!finite) sum = std::numeric_limits<float>::quiet_NaN();
    max = new_max;
    for (std::int64_t d = 0; d < shape_.head_dim; ++d) out[i * stride + d] *= factor;
  }
  multiply_add(n, shape_.head_dim, n_keys, {scores.data(), n_keys},
               {values_.data() + kv_offset, shape_.head_dim}, {out, stride});
}

std::uint64_t ChunkAttention::scratch_bytes() const {
  std::uint64_t floats = keys_.size() + values_.size() + row_max_.size() + row_sum_.size();
  for (const AlignedFloats& each : score_rows_) floats += each.size();
  return floats * sizeof(float);
}

}  // namespace tqcache::model
