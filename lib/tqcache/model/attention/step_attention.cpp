#include "tqcache/model/attention/step_attention.h"

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

// Blocks per split: enough that the cost of merging is negligible; few enough that the scores of
// their tokens stay in the L1 and L2 caches, and that a few thousand tokens occupy several threads.
constexpr std::int64_t kSplitBlocks = 8;
constexpr std::int64_t kSplitTokens = kSplitBlocks * kTokenBlock;  // stride of scores

// A score so low that its weight is 0 next to any other.
constexpr float kUnseen = -1e30f;

constexpr std::size_t kLineFloats = kAlignment / sizeof(float);

constexpr std::size_t round_up(std::size_t n) {
  return (n + kLineFloats - 1) / kLineFloats * kLineFloats;
}

codec::DenseBlock dense_block(const cache::Tensor& tensor, cache::HeadShape shape,
                              std::int64_t n_tokens, std::int64_t block, std::int64_t kv_head) {
  const Dtype dtype = cache::dense_dtype(tensor);
  const std::size_t head_bytes = to_size(kTokenBlock * shape.head_dim) * dtype_size(dtype);
  return {dtype, cache::dense_block(tensor, block).data() + to_size(kv_head) * head_bytes,
          to_size(shape.head_dim), to_size(cache::tokens_in_block(n_tokens, block))};
}

codec::DenseBlock decoded_block(const cache::TurboTensor& tensor, cache::HeadShape shape,
                                std::int64_t block, std::int64_t kv_head) {
  const AlignedBytes& decoded = tensor.packed[to_size(block)].decoded;
  const std::size_t head_bytes = decoded.size() / to_size(shape.n_kv_heads);
  return {tensor.tail.dtype, decoded.data() + to_size(kv_head) * head_bytes,
          to_size(shape.head_dim), to_size(kTokenBlock)};
}

codec::DenseBlock sink_block(const cache::TurboTensor& tensor, cache::HeadShape shape,
                             std::int64_t n_sinks, std::int64_t kv_head) {
  const ByteView rows = tensor.codec.sink_rows(tensor.packed.front().bytes.view(), kv_head);
  return {tensor.tail.dtype, rows.data(), to_size(shape.head_dim), to_size(n_sinks)};
}

// The number of tokens of K or V in quantized blocks, and of the sink tokens among them.
struct PackedTokens {
  std::int64_t end = 0;
  std::int64_t n_sinks = 0;
};

PackedTokens packed_tokens(const cache::Tensor& tensor) {
  const std::int64_t n_blocks = cache::packed_block_count(tensor);
  if (n_blocks == 0) return {};
  return {n_blocks * kTokenBlock, std::get<cache::TurboTensor>(tensor).codec.n_sinks()};
}

// The range of quantized values in a row of n weights: [first, end).
struct Range {
  std::size_t first;
  std::size_t end;
};

Range packed_range(const cache::Tensor& values, std::int64_t first_token, std::int64_t n) {
  const PackedTokens packed = packed_tokens(values);
  const std::int64_t first = std::clamp<std::int64_t>(packed.n_sinks - first_token, 0, n);
  const std::int64_t end = std::clamp<std::int64_t>(packed.end - first_token, first, n);
  return {to_size(first), to_size(end)};
}

}  // namespace

StepAttention::StepAttention(cache::HeadShape shape, std::int64_t n_heads, const cache::Rope& rope,
                             ScoreParams scores, Scorer scorer, const codec::Kernels& kernels)
    : shape_(shape),
      group_(n_heads / shape.n_kv_heads),
      scores_(scores),
      scorer_(scorer),
      kernels_(&kernels),
      queries_(to_size(shape.n_kv_heads)) {
  assert(n_heads % shape.n_kv_heads == 0);
  if (cache::can_rotate(rope, shape.head_dim)) centering_.emplace(rope);
}

void StepAttention::attend(const cache::AttentionLayer& layer, std::int64_t n_tokens,
                           std::int64_t window, std::span<const float> q, std::span<float> out,
                           const Workers& workers, std::span<const float> sinks) {
  const std::int64_t begin = window > 0 ? std::max<std::int64_t>(n_tokens - window, 0) : 0;
  const std::int64_t first_block = begin / kTokenBlock;
  const std::int64_t n_blocks = cache::block_count(n_tokens);
  const std::int64_t n_splits = (n_blocks - first_block + kSplitBlocks - 1) / kSplitBlocks;
  const std::int64_t n_kv_heads = shape_.n_kv_heads;
  const std::size_t group_floats = to_size(group_ * shape_.head_dim);
  reserve(layer, first_block, n_splits, workers.count());
  workers.run(to_size(n_kv_heads), [&](std::size_t kv_head) {
    prepare_queries(layer.k, first_block, static_cast<std::int64_t>(kv_head),
                    q.data() + kv_head * group_floats);
  });
  workers.run_in_slots(to_size(n_splits * n_kv_heads), [&](std::size_t i, std::size_t slot) {
    const std::int64_t index = static_cast<std::int64_t>(i) / n_kv_heads;
    const std::int64_t first = first_block + index * kSplitBlocks;
    const Split split = {static_cast<std::int64_t>(i) % n_kv_heads, first,
                         std::min(first + kSplitBlocks, n_blocks),
                         index == 0 ? begin % kTokenBlock : 0};
    attend_split(layer, n_tokens, split, partial(index, split.kv_head), scratch_[slot].data());
  });
  workers.run_in_slots(to_size(n_kv_heads), [&](std::size_t kv_head, std::size_t slot) {
    const auto of_head =
        sinks.empty() ? sinks : sinks.subspan(kv_head * to_size(group_), to_size(group_));
    merge_splits(layer.v, n_splits, static_cast<std::int64_t>(kv_head), of_head,
                 scratch_[slot].data(), out.subspan(kv_head * group_floats, group_floats));
  });
}

void StepAttention::reserve(const cache::AttentionLayer& layer, std::int64_t first_block,
                            std::int64_t n_splits, std::size_t n_slots) {
  const std::int64_t n_packed_keys = cache::packed_block_count(layer.k);
  const bool packed_values = cache::packed_block_count(layer.v) > first_block;
  coded_dim_ = packed_values ? std::get<cache::TurboTensor>(layer.v).codec.coded_dim() : 0;
  if (centering_ && n_packed_keys > 0) centering_->extend(n_packed_keys);
  grow(partials_, to_size(n_splits * shape_.n_kv_heads) * partial_floats());
  if (scratch_.size() < n_slots) scratch_.resize(n_slots);
  for (AlignedFloats& each : scratch_) {
    grow(each, std::max(to_size(group_ * kSplitTokens), coded_dim_ + to_size(shape_.head_dim)));
  }
}

std::size_t StepAttention::partial_floats() const {
  return round_up(to_size(group_) * (coded_dim_ + to_size(shape_.head_dim))) +
         round_up(3 * to_size(group_));
}

StepAttention::Partial StepAttention::partial(std::int64_t index, std::int64_t kv_head) {
  const std::size_t group = to_size(group_);
  float* const packed_out =
      partials_.data() + to_size(index * shape_.n_kv_heads + kv_head) * partial_floats();
  float* const dense_out = packed_out + group * coded_dim_;
  float* const max = packed_out + round_up(group * (coded_dim_ + to_size(shape_.head_dim)));
  return {max, max + group, max + 2 * group, packed_out, dense_out};
}

// Shapes: q [group, head_dim].
void StepAttention::prepare_queries(const cache::Tensor& keys, std::int64_t first_block,
                                    std::int64_t kv_head, const float* q) {
  Queries& queries = queries_[to_size(kv_head)];
  queries.scaled.resize(to_size(group_ * shape_.head_dim));
  for (std::size_t i = 0; i < queries.scaled.size(); ++i) queries.scaled[i] = scores_.scale * q[i];
  queries.dense.set_for_dense(to_size(shape_.head_dim), queries.scaled);
  // A window past all quantized blocks needs no prepared queries.
  if (cache::packed_block_count(keys) <= first_block) return;
  const cache::KvCodec& codec = std::get<cache::TurboTensor>(keys).codec;
  if (codec.must_keep_decoded()) return;  // decoded values are scored
  queries.packed.set(codec, kv_head, queries.scaled, centering_ ? &*centering_ : nullptr);
}

// Shapes: scores [group, kSplitTokens].
void StepAttention::attend_split(const cache::AttentionLayer& layer, std::int64_t n_tokens,
                                 const Split& split, const Partial& partial, float* scores) const {
  for (std::int64_t block = split.first; block < split.end; ++block) {
    score_block(layer.k, n_tokens, block, split.kv_head,
                scores + (block - split.first) * kTokenBlock);
  }
  const std::int64_t first_token = split.first * kTokenBlock;
  const std::int64_t n_keys = std::min(split.end * kTokenBlock, n_tokens) - first_token;
  const Range packed = packed_range(layer.v, first_token, n_keys);
  const std::size_t n = to_size(n_keys);
  const Kernels& kernels = best_kernels();
  for (std::size_t g = 0; g < to_size(group_); ++g) {
    float* const row = scores + g * to_size(kSplitTokens);
    const std::size_t n_unseen = to_size(split.n_unseen);
    const bool finite = all_finite({row + n_unseen, n - n_unseen});
    cap_values(scores_.cap, {row, n});
    std::fill_n(row, n_unseen, kUnseen);
    const float max = kernels.max_value(row, n);
    partial.max[g] = max;
    partial.packed_sum[g] = kernels.exp_sum(max, packed.end - packed.first, row + packed.first);
    partial.dense_sum[g] = kernels.exp_sum(max, packed.first, row) +
                           kernels.exp_sum(max, n - packed.end, row + packed.end);
    // Makes the output NaN, so that the layer reports an error.
    if (finite) continue;
    float* const sums = packed.first < packed.end ? partial.packed_sum : partial.dense_sum;
    sums[g] = std::numeric_limits<float>::quiet_NaN();
  }
  if (packed.first < packed.end) {
    sum_packed_values(std::get<cache::TurboTensor>(layer.v), split, scores, partial.packed_out);
  }
  if (packed.first > 0 || packed.end < n) {
    sum_dense_values(layer.v, n_tokens, split, scores, partial.dense_out);
  }
}

// Shapes: scores [group, kTokenBlock], rows kSplitTokens apart.
void StepAttention::score_block(const cache::Tensor& keys, std::int64_t n_tokens,
                                std::int64_t block, std::int64_t kv_head, float* scores) const {
  if (block < cache::packed_block_count(keys)) {
    return score_packed_block(std::get<cache::TurboTensor>(keys), block, kv_head, scores);
  }
  kernels_->score_dense(dense_block(keys, shape_, n_tokens, block, kv_head),
                        queries_[to_size(kv_head)].dense.rows(), {scores, to_size(kSplitTokens)});
}

void StepAttention::score_packed_block(const cache::TurboTensor& keys, std::int64_t block,
                                       std::int64_t kv_head, float* scores) const {
  const Queries& queries = queries_[to_size(kv_head)];
  const codec::OutputRows rows = {scores, to_size(kSplitTokens)};
  const cache::TurboBlock& packed = keys.packed[to_size(block)];
  if (!packed.decoded.empty()) {
    return kernels_->score_dense(decoded_block(keys, shape_, block, kv_head), queries.dense.rows(),
                                 rows);
  }
  keys.codec.score(queries.packed, packed.bytes.view(), block, scorer_, rows);
  // The codes of sink tokens are meaningless, so their scores are overwritten.
  const std::int64_t n_sinks = cache::sinks_in_block(keys.codec.n_sinks(), block);
  if (n_sinks == 0) return;
  kernels_->score_dense(sink_block(keys, shape_, n_sinks, kv_head), queries.dense.rows(), rows);
}

// The scale of sink tokens is 0, so their weights add 0 here.
// Shapes: weights [group, kSplitTokens]; out [group, coded_dim].
void StepAttention::sum_packed_values(const cache::TurboTensor& values, const Split& split,
                                      const float* weights, float* out) const {
  const std::size_t group = to_size(group_);
  std::fill_n(out, group * coded_dim_, 0.0f);
  const std::int64_t end = std::min(split.end, static_cast<std::int64_t>(values.packed.size()));
  for (std::int64_t block = split.first; block < end; ++block) {
    values.codec.accumulate(
        values.packed[to_size(block)].bytes.view(), block, split.kv_head, scorer_,
        {group, to_size(kSplitTokens), weights + (block - split.first) * kTokenBlock},
        {out, coded_dim_});
  }
}

// Sums over the dense blocks and the sink tokens.
// Shapes: weights [group, kSplitTokens]; out [group, head_dim].
void StepAttention::sum_dense_values(const cache::Tensor& values, std::int64_t n_tokens,
                                     const Split& split, const float* weights, float* out) const {
  const std::size_t group = to_size(group_);
  const codec::OutputRows sums = {out, to_size(shape_.head_dim)};
  std::fill_n(out, group * sums.stride, 0.0f);
  const std::int64_t n_sinks = split.first == 0 ? packed_tokens(values).n_sinks : 0;
  if (n_sinks > 0) {
    const auto& turbo = std::get<cache::TurboTensor>(values);
    kernels_->accumulate_dense(sink_block(turbo, shape_, n_sinks, split.kv_head),
                               {group, to_size(kSplitTokens), weights}, sums);
  }
  const std::int64_t first = std::max(split.first, cache::packed_block_count(values));
  for (std::int64_t block = first; block < split.end; ++block) {
    kernels_->accumulate_dense(
        dense_block(values, shape_, n_tokens, block, split.kv_head),
        {group, to_size(kSplitTokens), weights + (block - split.first) * kTokenBlock}, sums);
  }
}

// Shapes: sinks [group] or empty; scratch, at least [coded_dim + head_dim]; out [group, head_dim].
void StepAttention::merge_splits(const cache::Tensor& values, std::int64_t n_splits,
                                 std::int64_t kv_head, std::span<const float> sinks, float* scratch,
                                 std::span<float> out) {
  const std::size_t head_dim = to_size(shape_.head_dim);
  const Kernels& kernels = best_kernels();
  const auto add = [&](float factor, const float* from, std::span<float> to) {
    kernels.add_scaled_f32(factor, std::as_bytes(std::span(from, to.size())).data(), to.size(),
                           to.data());
  };
  const std::span coded(scratch, coded_dim_);
  for (std::size_t g = 0; g < to_size(group_); ++g) {
    const std::span<float> head = out.subspan(g * head_dim, head_dim);
    float max = sinks.empty() ? -std::numeric_limits<float>::infinity() : sinks[g];
    for (std::int64_t i = 0; i < n_splits; ++i) max = std::max(max, partial(i, kv_head).max[g]);
    std::ranges::fill(coded, 0.0f);
    std::ranges::fill(head, 0.0f);
    float packed_sum = 0;
    float dense_sum = 0;
    for (std::int64_t i = 0; i < n_splits; ++i) {
      const Partial part = partial(i, kv_head);
      const float factor = loops::exp_f32(part.max[g] - max);
      packed_sum += factor * part.packed_sum[g];
      dense_sum += factor * part.dense_sum[g];
      if (part.packed_sum[g] != 0) add(factor, part.packed_out + g * coded_dim_, coded);
      if (part.dense_sum[g] != 0) add(factor, part.dense_out + g * head_dim, head);
    }
    // A score that is NaN makes packed_sum NaN, even without packed tokens.
    if (coded_dim_ > 0 && packed_sum != 0) {
      const auto& codec = std::get<cache::TurboTensor>(values).codec;
      codec.add_decoded_sum(kv_head, packed_sum, coded, {scratch + coded_dim_, head_dim}, head);
    }
    float sum = packed_sum + dense_sum;
    if (!sinks.empty()) sum += loops::exp_f32(std::max(sinks[g] - max, kLeastExponent));
    for (float& value : head) value /= sum;
  }
}

std::uint64_t StepAttention::scratch_bytes() const {
  std::uint64_t floats = partials_.size();
  for (const AlignedFloats& each : scratch_) floats += each.size();
  return floats * sizeof(float);
}

}  // namespace tqcache::model
