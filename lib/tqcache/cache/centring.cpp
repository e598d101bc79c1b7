#include "tqcache/cache/centring.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <vector>

#include "tqcache/base/threads.h"

namespace tqcache::cache {
namespace {

std::size_t to_size(std::int64_t n) { return static_cast<std::size_t>(n); }

const RopeTable* table_of(const Mean& mean) {
  return mean.kind == Centring::kPreRope ? mean.rope.get() : nullptr;
}

// sum += R_offset^T x, each product and sum of the turn in f32.
void add_turned_back(const RopeTable& rope, std::int64_t offset, std::span<const float> x,
                     std::span<double> sum) {
  const std::span<const float> cos = rope.cos(offset);
  const std::span<const float> sin = rope.sin(offset);
  const std::size_t half = cos.size();
  for (std::size_t i = 0; i < half; ++i) {
    const float a = x[i];
    const float b = x[i + half];
    sum[i] += static_cast<double>(a * cos[i] + b * sin[i]);
    sum[i + half] += static_cast<double>(b * cos[i] - a * sin[i]);
  }
  for (std::size_t i = 2 * half; i < x.size(); ++i) sum[i] += static_cast<double>(x[i]);
}

void add_as_it_stands(std::span<const float> x, std::span<double> sum) {
  for (std::size_t i = 0; i < x.size(); ++i) sum[i] += static_cast<double>(x[i]);
}

// The sum over the first n_tokens tokens of one head in block `block`, before RoPE if there is one.
void sum_block(const std::byte* rows, Dtype dtype, std::int64_t n_tokens, std::int64_t block,
               const RopeTable* rope, std::span<double> sum) {
  std::vector<float> x(sum.size());
  for (std::int64_t token = 0; token < n_tokens; ++token) {
    load_f32(dtype, rows + to_size(token) * x.size() * dtype_size(dtype), x);
    if (rope != nullptr) {
      add_turned_back(*rope, token, x, sum);
    } else {
      add_as_it_stands(x, sum);
    }
  }
  if (rope != nullptr) rope->turn_back_from(block * kTokenBlock, sum);
}

}  // namespace

Centring key_centring(Centring wanted, const Rope& rope, std::int64_t head_dim) {
  const bool is_possible = wanted != Centring::kPreRope || can_turn(rope, head_dim);
  return is_possible ? wanted : Centring::kPostRope;
}

Centring value_centring(Centring wanted) {
  return wanted == Centring::kNone ? wanted : Centring::kPostRope;
}

bool operator==(const Mean& a, const Mean& b) {
  const RopeTable* of_a = table_of(a);
  const RopeTable* of_b = table_of(b);
  if (a.kind != b.kind || a.values != b.values) return false;
  return of_a == of_b || (of_a != nullptr && of_b != nullptr && of_a->rope() == of_b->rope());
}

AlignedFloats compute_mean(std::span<const AlignedBytes> blocks, Dtype dtype, HeadShape shape,
                           std::int64_t n_tokens, const RopeTable* rope, unsigned n_threads) {
  const std::size_t head_dim = to_size(shape.head_dim);
  const std::size_t n_values = to_size(shape.n_kv_heads) * head_dim;
  AlignedFloats mean(n_values);
  if (n_tokens == 0) return mean;

  std::vector<double> sums(to_size(block_count(n_tokens)) * n_values);
  parallel_for(sums.size() / head_dim, n_threads, [&](std::size_t i) {
    const std::size_t head = i % to_size(shape.n_kv_heads);
    const std::size_t block = i / to_size(shape.n_kv_heads);
    const auto index = static_cast<std::int64_t>(block);
    const std::size_t offset = head * to_size(kTokenBlock) * head_dim * dtype_size(dtype);
    sum_block(blocks[block].data() + offset, dtype, tokens_in_block(n_tokens, index), index, rope,
              std::span(sums).subspan(i * head_dim, head_dim));
  });
  for (std::size_t i = n_values; i < sums.size(); ++i) sums[i % n_values] += sums[i];
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
  if (rope_ != nullptr) rope_->turn_to(block * kTokenBlock, head_dim, rows_);
}

BlockMean::BlockMean(const Mean& mean, HeadShape shape, std::int64_t block)
    : BlockMean(mean, shape.head_dim, block, 0, mean.values) {}

BlockMean::BlockMean(const Mean& mean, HeadShape shape, std::int64_t block, std::int64_t kv_head)
    : BlockMean(mean, shape.head_dim, block, kv_head,
                mean.values.empty()
                    ? std::span<const float>()
                    : std::span(mean.values)
                          .subspan(to_size(kv_head * shape.head_dim), to_size(shape.head_dim))) {}

// apply(x, m) for every component x of the rows and the mean's component m in that token: the
// products and the sum of a turn each rounded to f32.
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

void BlockMean::subtract_from(std::int64_t kv_head, std::int64_t first_token,
                              std::span<float> rows) const {
  for_each(kv_head, first_token, rows, [](float& x, float m) { x -= m; });
}

void BlockMean::add_to(std::int64_t kv_head, std::int64_t first_token,
                       std::span<float> rows) const {
  for_each(kv_head, first_token, rows, [](float& x, float m) { x += m; });
}

}  // namespace tqcache::cache
