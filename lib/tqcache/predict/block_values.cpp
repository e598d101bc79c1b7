// The values of token blocks as files hold them, and RoPE at their positions.

#include <numeric>

#include "tqcache/base/integers.h"
#include "tqcache/cache/rope_angles.h"
#include "tqcache/predict/predictor.h"

namespace tqcache::predict {
namespace {

std::vector<std::int64_t> positions_from(std::int64_t first, std::size_t n) {
  std::vector<std::int64_t> positions(n);
  std::iota(positions.begin(), positions.end(), first);
  return positions;
}

}  // namespace

BlockRope::BlockRope(const cache::Rope& rope, cache::HeadShape shape, std::int64_t first,
                     std::size_t n)
    : BlockRope(rope, shape, positions_from(first, n)) {}

BlockRope::BlockRope(const cache::Rope& rope, cache::HeadShape shape,
                     std::span<const std::int64_t> positions)
    : shape_(shape) {
  if (!cache::can_rotate(rope, shape.head_dim)) return;
  const std::size_t n = positions.size();
  const std::vector<double> frequencies = cache::rope_frequencies(rope);
  n_pairs_ = frequencies.size();
  cos_.resize(n * n_pairs_);
  sin_.resize(n * n_pairs_);
  for (std::size_t t = 0; t < n; ++t) {
    const auto position = static_cast<double>(positions[t]);
    for (std::size_t i = 0; i < n_pairs_; ++i) {
      const cache::Phasor at = cache::phasor(position * frequencies[i]);
      cos_[t * n_pairs_ + i] = static_cast<float>(at.cos);
      sin_[t * n_pairs_ + i] = static_cast<float>(at.sin);
    }
  }
}

void BlockRope::apply(std::span<float> rows, float sign) const {
  if (n_pairs_ == 0) return;
  const std::size_t head_dim = to_size(shape_.head_dim);
  const std::size_t n_heads = to_size(shape_.n_kv_heads);
  const std::size_t n = rows.size() / (n_heads * head_dim);
  for (std::size_t t = 0; t < n; ++t) {
    const float* const __restrict cos = cos_.data() + t * n_pairs_;
    const float* const __restrict sin = sin_.data() + t * n_pairs_;
    for (std::size_t head = 0; head < n_heads; ++head) {
      float* const __restrict low = rows.data() + (t * n_heads + head) * head_dim;
      for (std::size_t i = 0; i < n_pairs_; ++i) {
        const float a = low[i], b = low[i + n_pairs_], s = sign * sin[i];
        low[i] = a * cos[i] - b * s;
        low[i + n_pairs_] = b * cos[i] + a * s;
      }
    }
  }
}

void rows_of_values(cache::HeadShape shape, Dtype dtype, ByteView values, std::span<float> rows) {
  const std::size_t n_heads = to_size(shape.n_kv_heads), head_dim = to_size(shape.head_dim);
  const std::size_t n = rows.size() / (n_heads * head_dim), bytes = head_dim * dtype_size(dtype);
  for (std::size_t head = 0; head < n_heads; ++head) {
    for (std::size_t t = 0; t < n; ++t) {
      load_f32(dtype, values.data() + (head * n + t) * bytes,
               rows.subspan((t * n_heads + head) * head_dim, head_dim));
    }
  }
}

void rows_of_tokens(cache::HeadShape shape, Dtype dtype, ByteView values,
                    std::span<const std::size_t> tokens, std::span<float> rows) {
  const std::size_t n_heads = to_size(shape.n_kv_heads), head_dim = to_size(shape.head_dim);
  const std::size_t bytes = head_dim * dtype_size(dtype), n = values.size() / (n_heads * bytes);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    for (std::size_t head = 0; head < n_heads; ++head) {
      load_f32(dtype, values.data() + (head * n + tokens[i]) * bytes,
               rows.subspan((i * n_heads + head) * head_dim, head_dim));
    }
  }
}

void values_of_rows(cache::HeadShape shape, Dtype dtype, std::span<const float> rows,
                    std::span<std::byte> values) {
  const std::size_t n_heads = to_size(shape.n_kv_heads), head_dim = to_size(shape.head_dim);
  const std::size_t n = rows.size() / (n_heads * head_dim), bytes = head_dim * dtype_size(dtype);
  for (std::size_t head = 0; head < n_heads; ++head) {
    for (std::size_t t = 0; t < n; ++t) {
      store_f32(dtype, rows.subspan((t * n_heads + head) * head_dim, head_dim),
                values.data() + (head * n + t) * bytes);
    }
  }
}

}  // namespace tqcache::predict
