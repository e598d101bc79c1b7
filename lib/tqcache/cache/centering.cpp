#include "tqcache/cache/centering.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <vector>

#include "tqcache/base/integers.h"
#include "tqcache/base/threads.h"
#include "tqcache/cache/token_pieces.h"

namespace tqcache::cache {
namespace {

const RopeTable* table_of(const Mean& mean) {
  return mean.kind == Centering::kPreRope ? mean.rope.get() : nullptr;
}

// sum += R_t^T x of the rows x of tokens t = first, first + 1, ... Shapes: rows [n, head_dim].
void add_rotated_back(const RopeTable& rope, std::int64_t first, std::span<const float> rows,
                      std::span<float> sum) {
  float* const __restrict out = sum.data();
  const std::size_t half = to_size(rope.rope().n_dims / 2);
  for (const float* x = rows.data(); x != rows.data() + rows.size(); x += sum.size(), ++first) {
    const float* const cos = rope.cos(first).data();
    const float* const sin = rope.sin(first).data();
    for (std::size_t i = 0; i < half; ++i) {
      out[i] += x[i] * cos[i] + x[i + half] * sin[i];
      out[i + half] += x[i + half] * cos[i] - x[i] * sin[i];
    }
    for (std::size_t i = 2 * half; i < sum.size(); ++i) out[i] += x[i];
  }
}

void add_as_they_stand(std::span<const float> rows, std::span<float> sum) {
  float* const __restrict out = sum.data();
  for (const float* x = rows.data(); x != rows.data() + rows.size(); x += sum.size()) {
    for (std::size_t i = 0; i < sum.size(); ++i) out[i] += x[i];
  }
}

// The sum over one kv head's tokens in a block, before RoPE if `rope` is given.
void sum_block(const Pieces& pieces, const RopeTable* rope, std::span<double> sum) {
  add_pieces(pieces, {}, sum,
             [&](std::int64_t first, std::span<const float> rows, std::span<float> of_piece) {
               if (rope != nullptr) return add_rotated_back(*rope, first, rows, of_piece);
               add_as_they_stand(rows, of_piece);
             });
  if (rope != nullptr) rope->rotate_back_from(pieces.block.index * kTokenBlock, sum);
}

}  // namespace

Centering key_centering(Centering wanted, const Rope& rope, std::int64_t head_dim) {
  const bool is_possible = wanted != Centering::kPreRope || can_rotate(rope, head_dim);
  return is_possible ? wanted : Centering::kPostRope;
}

Centering value_centering(Centering wanted) {
  return wanted == Centering::kNone ? wanted : Centering::kPostRope;
}

bool operator==(const Mean& a, const Mean& b) {
  const RopeTable* of_a = table_of(a);
  const RopeTable* of_b = table_of(b);
  if (a.kind != b.kind || a.values != b.values) return false;
  return of_a == of_b || (of_a != nullptr && of_b != nullptr && of_a->rope() == of_b->rope());
}

AlignedFloats compute_mean(std::span<const FullBlock> blocks, std::int64_t n_sinks,
                           const RopeTable* rope, unsigned n_threads) {
  const HeadShape shape = blocks.front().shape;
  const std::size_t n_heads = to_size(shape.n_kv_heads);
  const std::size_t head_dim = to_size(shape.head_dim);
  const std::size_t n_values = n_heads * head_dim;

  std::vector<double> sums(blocks.size() * n_values);  // [blocks, n_kv_heads, head_dim]
  parallel_for(blocks.size() * n_heads, n_threads, [&](std::size_t i) {
    const FullBlock& block = blocks[i / n_heads];
    const auto head = static_cast<std::int64_t>(i % n_heads);
    sum_block({block, head, uncoded_tokens(block, n_sinks)}, rope,
              std::span(sums).subspan(i * head_dim, head_dim));
  });
  for (std::size_t i = n_values; i < sums.size(); ++i) sums[i % n_values] += sums[i];

  std::int64_t n_tokens = 0;
  for (const FullBlock& block : blocks) {
    n_tokens += kTokenBlock - uncoded_tokens(block, n_sinks);
  }
  AlignedFloats mean(n_values);
  if (n_tokens == 0) return mean;
  for (std::size_t i = 0; i < n_values; ++i) {
    mean[i] = static_cast<float>(sums[i] / static_cast<double>(n_tokens));
  }
  const bool is_finite = std::ranges::all_of(mean, [](float x) { return std::isfinite(x); });
  if (!is_finite) std::ranges::fill(mean, 0.0f);
  return mean;
}

BlockMean::BlockMean(const Mean& mean, std::int64_t head_dim, std::int64_t block,
                     std::int64_t first_head, std::span<const float> values)
    : rope_(table_of(mean)),
      head_dim_(to_size(head_dim)),
      first_head_(first_head),
      rows_(values.begin(), values.end()) {
  if (rope_ != nullptr) rope_->rotate_to(block * kTokenBlock, head_dim, rows_);
}

BlockMean::BlockMean(const Mean& mean, HeadShape shape, std::int64_t block)
    : BlockMean(mean, shape.head_dim, block, 0, mean.values) {}

BlockMean::BlockMean(const Mean& mean, HeadShape shape, std::int64_t block, std::int64_t kv_head)
    : BlockMean(mean, shape.head_dim, block, kv_head,
                mean.values.empty()
                    ? std::span<const float>()
                    : std::span(mean.values)
                          .subspan(to_size(kv_head * shape.head_dim), to_size(shape.head_dim))) {}

// Calls apply(x, m) for every component x of the rows and the mean's component m at that token. In
// the rotation of m both products and their sum are rounded to f32.
template <class Apply>
void BlockMean::for_each(std::int64_t kv_head, std::int64_t first_token, std::span<float> rows,
                         Apply apply) const {
  if (rows_.empty()) return;
  assert(rows.size() % head_dim_ == 0);
  const float* const mean = rows_.data() + to_size(kv_head - first_head_) * head_dim_;
  const std::size_t half = rope_ ? to_size(rope_->rope().n_dims / 2) : 0;
  std::int64_t token = first_token;
  for (float* x = rows.data(); x != rows.data() + rows.size(); x += head_dim_, ++token) {
    if (rope_ != nullptr) {
      const float* const cos = rope_->cos(token).data();
      const float* const sin = rope_->sin(token).data();
      for (std::size_t i = 0; i < half; ++i) {
        apply(x[i], mean[i] * cos[i] - mean[i + half] * sin[i]);
        apply(x[i + half], mean[i + half] * cos[i] + mean[i] * sin[i]);
      }
    }
    for (std::size_t i = 2 * half; i < head_dim_; ++i) apply(x[i], mean[i]);
  }
}

codec::Center BlockMean::center(std::int64_t kv_head) const {
  if (rows_.empty()) return {};
  const float* const mean = rows_.data() + to_size(kv_head - first_head_) * head_dim_;
  if (rope_ == nullptr) return {mean, 0, nullptr, nullptr};
  return {mean, to_size(rope_->rope().n_dims / 2), rope_->cos(0).data(), rope_->sin(0).data()};
}

void BlockMean::subtract_from(std::int64_t kv_head, std::int64_t first_token,
                              std::span<float> rows) const {
  for_each(kv_head, first_token, rows, [](float& x, float m) { x -= m; });
}

void BlockMean::add_to(std::int64_t kv_head, std::int64_t first_token,
                       std::span<float> rows) const {
  for_each(kv_head, first_token, rows, [](float& x, float m) { x += m; });
}

}  // namespace tqcache::cache
