#include "tqcache/model/attention.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>

#include "tqcache/model/blas.h"
#include "tqcache/model/kernel_loops.h"
#include "tqcache/model/kernels.h"

namespace tqcache::model {
namespace {

using cache::kTokenBlock;

std::size_t to_size(std::int64_t n) { return static_cast<std::size_t>(n); }

void grow(AlignedFloats& values, std::int64_t size) {
  if (values.size() < to_size(size)) values.resize(to_size(size));
}

void grow(std::vector<AlignedFloats>& lanes, std::size_t count, std::int64_t size) {
  if (lanes.size() < count) lanes.resize(count);
  for (AlignedFloats& lane : lanes) grow(lane, size);
}

// The head vectors of one kv head in one dense token block, in place.
struct HeadRows {
  const std::byte* data;
  std::size_t stride;  // bytes from one token to the next
  Dtype dtype;
};

HeadRows dense_rows(const cache::Side& side, cache::HeadShape shape, std::int64_t block,
                    std::int64_t kv_head) {
  const Dtype dtype = cache::dense_dtype(side);
  const std::size_t stride = to_size(shape.head_dim) * dtype_size(dtype);
  const std::byte* head =
      cache::dense_block(side, block).data() + to_size(kv_head * kTokenBlock) * stride;
  return {head, stride, dtype};
}

Kernels::Dot* dot_kernel(const Kernels& kernels, Dtype dtype) {
  if (dtype == Dtype::kF32) return kernels.dot_f32;
  return dtype == Dtype::kF16 ? kernels.dot_f16 : kernels.dot_bf16;
}

Kernels::AddScaled* add_scaled_kernel(const Kernels& kernels, Dtype dtype) {
  if (dtype == Dtype::kF32) return kernels.add_scaled_f32;
  return dtype == Dtype::kF16 ? kernels.add_scaled_f16 : kernels.add_scaled_bf16;
}

}  // namespace

Attention::Attention(cache::HeadShape shape, std::int64_t n_heads, const cache::Rope& rope,
                     Scorer scorer)
    : shape_(shape),
      n_heads_(n_heads),
      group_(n_heads / shape.n_kv_heads),
      scale_(static_cast<float>(1.0 / std::sqrt(static_cast<double>(shape.head_dim)))),
      scorer_(scorer),
      queries_(to_size(shape.n_kv_heads)) {
  assert(n_heads % shape.n_kv_heads == 0);
  if (cache::can_turn(rope, shape.head_dim)) centring_.emplace(rope);
}

Attention::Partial Attention::partial(std::int64_t block, std::int64_t kv_head) {
  const std::int64_t first = block * n_heads_ + kv_head * group_;
  return {block_max_.data() + first, block_sum_.data() + first,
          block_out_.data() + first * shape_.head_dim};
}

void Attention::attend_step(const cache::AttentionLayer& layer, std::int64_t n_tokens,
                            std::span<const float> q, std::span<float> out,
                            const Workers& workers) {
  const std::int64_t n_blocks = cache::block_count(n_tokens);
  grow(block_max_, n_blocks * n_heads_);
  grow(block_sum_, n_blocks * n_heads_);
  grow(block_out_, n_blocks * n_heads_ * shape_.head_dim);
  grow(lanes_, workers.count(), group_ * kTokenBlock);
  if (centring_) centring_->extend(cache::packed_block_count(layer.k));
  for (std::int64_t kv_head = 0; kv_head < shape_.n_kv_heads; ++kv_head) {
    prepare_queries(layer.k, kv_head, q.data() + kv_head * group_ * shape_.head_dim);
  }
  workers.run_in_lanes(to_size(n_blocks * shape_.n_kv_heads), [&](std::size_t i, std::size_t lane) {
    const auto piece = static_cast<std::int64_t>(i);
    attend_block(layer, n_tokens, piece / shape_.n_kv_heads, piece % shape_.n_kv_heads,
                 lanes_[lane].data());
  });
  for (std::int64_t head = 0; head < n_heads_; ++head) {
    join_blocks(layer.v, n_blocks, head,
                out.subspan(to_size(head * shape_.head_dim), to_size(shape_.head_dim)));
  }
}

// Shapes: q [group, head_dim].
void Attention::prepare_queries(const cache::Side& keys, std::int64_t kv_head, const float* q) {
  HeadQueries& queries = queries_[to_size(kv_head)];
  queries.scaled.resize(to_size(group_ * shape_.head_dim));
  for (std::size_t i = 0; i < queries.scaled.size(); ++i) queries.scaled[i] = scale_ * q[i];
  if (cache::packed_block_count(keys) == 0) return;
  const auto& turbo = std::get<cache::TurboSide>(keys);
  queries.packed.set_for_packed(turbo.codec.quantizer(), queries.scaled);
  if (turbo.mean.kind == cache::Centring::kNone) return;
  const bool turns = turbo.mean.kind == cache::Centring::kPreRope;
  assert(!turns || centring_);
  queries.centring.set(turns ? &*centring_ : nullptr,
                       cache::mean_of_head(turbo.mean, shape_, kv_head), queries.scaled);
}

// Shapes: scores [group, kTokenBlock].
void Attention::attend_block(const cache::AttentionLayer& layer, std::int64_t n_tokens,
                             std::int64_t block, std::int64_t kv_head, float* scores) {
  const Kernels& kernels = best_kernels();
  const std::size_t n_keys = to_size(cache::tokens_in_block(n_tokens, block));
  const Partial part = partial(block, kv_head);
  score_block(layer.k, n_tokens, block, kv_head, scores);
  for (std::size_t g = 0; g < to_size(group_); ++g) {
    float* const row = scores + g * to_size(kTokenBlock);
    part.max[g] = kernels.max_value(row, n_keys);
    part.sum[g] = kernels.exp_sum(part.max[g], n_keys, row);
  }
  std::fill_n(part.out, to_size(group_ * shape_.head_dim), 0.0f);
  sum_values(layer.v, n_tokens, block, kv_head, scores, part.out);
}

void Attention::score_block(const cache::Side& keys, std::int64_t n_tokens, std::int64_t block,
                            std::int64_t kv_head, float* scores) const {
  const HeadQueries& queries = queries_[to_size(kv_head)];
  if (block < cache::packed_block_count(keys)) {
    const auto& turbo = std::get<cache::TurboSide>(keys);
    const codec::Kernels& kernels = turbo.codec.kernels();
    const auto score = scorer_ == Scorer::kExact ? kernels.score_exact : kernels.score_fast;
    score(cache::packed_head(turbo, block, kv_head), turbo.codec.tables(), queries.packed.rows(),
          {scores, to_size(kTokenBlock)});
    if (turbo.mean.kind != cache::Centring::kNone) {
      queries.centring.add_to(block, scores, to_size(kTokenBlock));
    }
    return;
  }
  const std::size_t head_dim = to_size(shape_.head_dim);
  const HeadRows rows = dense_rows(keys, shape_, block, kv_head);
  Kernels::Dot* const dot = dot_kernel(best_kernels(), rows.dtype);
  const std::size_t n_keys = to_size(cache::tokens_in_block(n_tokens, block));
  for (std::size_t g = 0; g < to_size(group_); ++g) {
    const float* const query = queries.scaled.data() + g * head_dim;
    float* const row = scores + g * to_size(kTokenBlock);
    for (std::size_t key = 0; key < n_keys; ++key) {
      row[key] = dot(rows.data + key * rows.stride, query, head_dim);
    }
  }
}

// Of packed values the sum stays rotated, and without their mean.
// Shapes: weights [group, kTokenBlock]; out [group, head_dim].
void Attention::sum_values(const cache::Side& values, std::int64_t n_tokens, std::int64_t block,
                           std::int64_t kv_head, const float* weights, float* out) const {
  const std::size_t head_dim = to_size(shape_.head_dim);
  const std::size_t group = to_size(group_);
  if (block < cache::packed_block_count(values)) {
    const auto& turbo = std::get<cache::TurboSide>(values);
    const codec::Kernels& kernels = turbo.codec.kernels();
    const auto accumulate =
        scorer_ == Scorer::kExact ? kernels.accumulate_exact : kernels.accumulate_fast;
    accumulate(cache::packed_head(turbo, block, kv_head), turbo.codec.tables(),
               {group, to_size(kTokenBlock), weights}, {out, head_dim});
    return;
  }
  const HeadRows rows = dense_rows(values, shape_, block, kv_head);
  Kernels::AddScaled* const add_scaled = add_scaled_kernel(best_kernels(), rows.dtype);
  const std::size_t n_keys = to_size(cache::tokens_in_block(n_tokens, block));
  for (std::size_t key = 0; key < n_keys; ++key) {
    for (std::size_t g = 0; g < group; ++g) {
      add_scaled(weights[g * to_size(kTokenBlock) + key], rows.data + key * rows.stride, head_dim,
                 out + g * head_dim);
    }
  }
}

// Packed blocks come first, so their sum is rotated back once, before the dense ones are added.
void Attention::join_blocks(const cache::Side& values, std::int64_t n_blocks, std::int64_t head,
                            std::span<float> out) const {
  const auto index = [&](std::int64_t block) { return to_size(block * n_heads_ + head); };
  float max = -std::numeric_limits<float>::infinity();
  for (std::int64_t block = 0; block < n_blocks; ++block) {
    max = std::max(max, block_max_[index(block)]);
  }
  float sum = 0;
  std::ranges::fill(out, 0.0f);
  const auto add_blocks = [&](std::int64_t first, std::int64_t end) {
    for (std::int64_t block = first; block < end; ++block) {
      const float factor = loops::exp_f32(block_max_[index(block)] - max);
      sum += factor * block_sum_[index(block)];
      const float* const part = block_out_.data() + index(block) * out.size();
      for (std::size_t i = 0; i < out.size(); ++i) out[i] += factor * part[i];
    }
  };
  const std::int64_t n_packed = cache::packed_block_count(values);
  add_blocks(0, n_packed);
  if (n_packed > 0) {
    const auto& turbo = std::get<cache::TurboSide>(values);
    turbo.codec.quantizer().rotation().unrotate(out, out);
    if (turbo.mean.kind != cache::Centring::kNone) {
      const std::span<const float> mean = cache::mean_of_head(turbo.mean, shape_, head / group_);
      for (std::size_t i = 0; i < out.size(); ++i) out[i] += sum * mean[i];
    }
  }
  add_blocks(n_packed, n_blocks);
  for (float& value : out) value /= sum;
}

void Attention::attend_chunk(const cache::AttentionLayer& layer, std::int64_t n_tokens,
                             std::int64_t n, std::span<const float> q, std::span<float> out,
                             const Workers& workers) {
  assert((n_tokens - 1) / kTokenBlock == (n_tokens - n) / kTokenBlock);
  use_blas_in_one_thread();
  grow(keys_, shape_.n_kv_heads * kTokenBlock * shape_.head_dim);
  grow(values_, shape_.n_kv_heads * kTokenBlock * shape_.head_dim);
  grow(row_max_, n_heads_ * kTokenBlock);
  grow(row_sum_, n_heads_ * kTokenBlock);
  grow(lanes_, workers.count(), kTokenBlock * kTokenBlock);
  std::ranges::fill(row_max_, -std::numeric_limits<float>::infinity());
  std::ranges::fill(row_sum_, 0.0f);
  std::ranges::fill(out, 0.0f);

  for (std::int64_t block = 0; block < cache::block_count(n_tokens); ++block) {
    widen_block(layer, n_tokens, block, workers);
    const std::int64_t n_keys = cache::tokens_in_block(n_tokens, block);
    // Of its own block the first query sees what stood there before, and itself.
    const bool last = block + 1 == cache::block_count(n_tokens);
    const std::int64_t n_visible = last ? n_keys - n + 1 : n_keys;
    workers.run_in_lanes(to_size(n_heads_), [&](std::size_t i, std::size_t lane) {
      const auto head = static_cast<std::int64_t>(i);
      add_block(n_visible, n_keys, n, head, q.data() + head * shape_.head_dim,
                out.data() + head * shape_.head_dim, lanes_[lane]);
    });
  }
  for (std::int64_t row = 0; row < n * n_heads_; ++row) {
    const float sum = row_sum_[to_size(row % n_heads_ * kTokenBlock + row / n_heads_)];
    for (float& value : out.subspan(to_size(row * shape_.head_dim), to_size(shape_.head_dim))) {
      value /= sum;
    }
  }
}

void Attention::widen_block(const cache::AttentionLayer& layer, std::int64_t n_tokens,
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

// Adds the keys and values of the block at hand to one head's running sums. Query i sees the first
// n_visible + i keys, at most all.
// Shapes: q, out [n, head_dim], rows n_heads * head_dim apart; scores [n, n_keys].
void Attention::add_block(std::int64_t n_visible, std::int64_t n_keys, std::int64_t n,
                          std::int64_t head, const float* q, float* out, std::span<float> scores) {
  const Kernels& kernels = best_kernels();
  const std::int64_t stride = n_heads_ * shape_.head_dim;
  const std::int64_t kv_offset = head / group_ * kTokenBlock * shape_.head_dim;
  multiply_transposed(n, n_keys, shape_.head_dim, scale_, {q, stride},
                      {keys_.data() + kv_offset, shape_.head_dim}, {scores.data(), n_keys});
  for (std::int64_t i = 0; i < n; ++i) {
    float* const row = scores.data() + i * n_keys;
    const std::size_t visible = to_size(std::min(n_visible + i, n_keys));
    float& max = row_max_[to_size(head * kTokenBlock + i)];
    float& sum = row_sum_[to_size(head * kTokenBlock + i)];
    const float new_max = std::max(max, kernels.max_value(row, visible));
    const float factor = loops::exp_f32(max - new_max);
    sum = factor * sum + kernels.exp_sum(new_max, visible, row);
    max = new_max;
    std::fill(row + visible, row + n_keys, 0.0f);
    for (std::int64_t d = 0; d < shape_.head_dim; ++d) out[i * stride + d] *= factor;
  }
  multiply_add(n, shape_.head_dim, n_keys, {scores.data(), n_keys},
               {values_.data() + kv_offset, shape_.head_dim}, {out, stride});
}

std::uint64_t Attention::scratch_bytes() const {
  std::uint64_t floats = block_max_.size() + block_sum_.size() + block_out_.size() + keys_.size() +
                         values_.size() + row_max_.size() + row_sum_.size();
  for (const AlignedFloats& lane : lanes_) floats += lane.size();
  return floats * sizeof(float);
}

}  // namespace tqcache::model
