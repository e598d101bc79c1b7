#include "tqcache/codec/rotation.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <cmath>
#include <numbers>

#include "tqcache/codec/dense_matrix.h"
#include "tqcache/codec/random.h"

namespace tqcache::codec {
namespace {

// [rounds, count]. Each round starts with a new number of the same stream.
std::vector<float> make_signs(std::size_t rounds, std::size_t count, std::uint64_t seed) {
  std::vector<float> signs(rounds * count);
  std::uint64_t word = 0;
  for (std::size_t i = 0; i < signs.size(); ++i) {
    const std::size_t bit = i % count % 64;
    if (bit == 0) word = splitmix64(seed);
    signs[i] = (word >> bit) & 1u ? -1.0f : 1.0f;
  }
  return signs;
}

// cos(t) + sin(t) at t = 2 pi k / n, as sqrt(2) sin(2 pi (8k + n) / 8n). The angle is reduced to
// [-pi/2, pi/2] in integers, so that the result keeps its relative accuracy near the zeros of cas
// and rounds to the same f32 with any last-bit error of this libm's sine.
float cas_of_cycle(std::int64_t k, std::int64_t n) {
  std::int64_t eighths = (8 * k + n) % (8 * n);
  if (eighths > 6 * n) eighths -= 8 * n;
  if (eighths > 2 * n) eighths = 4 * n - eighths;
  const double angle = std::numbers::pi * static_cast<double>(eighths) / static_cast<double>(4 * n);
  return static_cast<float>(std::numbers::sqrt2 * std::sin(angle));
}

std::vector<float> make_cas(std::size_t count) {
  std::vector<float> cas(count, 1.0f);  // cas(0) is 1 exactly
  for (std::size_t k = 1; k < count; ++k) {
    cas[k] = cas_of_cycle(static_cast<std::int64_t>(k), static_cast<std::int64_t>(count));
  }
  return cas;
}

// A fixed width and pointers that cannot overlap let compilers vectorize at -O2 too.
template <std::size_t kWidth>
void butterflies(float* __restrict low, float* __restrict high) {
  for (std::size_t i = 0; i < kWidth; ++i) {
    const float sum = low[i] + high[i];
    high[i] = low[i] - high[i];
    low[i] = sum;
  }
}

template <std::size_t kWidth>
void stage(std::span<float> values, std::size_t distance) {
  for (std::size_t start = 0; start < values.size(); start += 2 * distance) {
    for (std::size_t i = start; i < start + distance; i += kWidth) {
      butterflies<kWidth>(&values[i], &values[i + distance]);
    }
  }
}

// Distances 1, 2, 4, ... in this order. Requires: a power of two of values.
void walsh_hadamard(std::span<float> values) {
  if (values.size() > 1) stage<1>(values, 1);
  if (values.size() > 2) stage<2>(values, 2);
  for (std::size_t distance = 4; distance < values.size(); distance *= 2) {
    stage<4>(values, distance);
  }
}

// out[j * part_size + t] = sum over i, ascending, of cas[i * j mod parts] * in[i * part_size + t]
void hartley_across(std::span<const float> in, std::span<const float> cas, std::size_t part_size,
                    std::span<float> out) {
  const std::size_t parts = cas.size();
  for (std::size_t j = 0; j < parts; ++j) {
    const std::span<float> sum = out.subspan(j * part_size, part_size);
    std::copy_n(in.begin(), part_size, sum.begin());  // i = 0: cas(0) = 1
    std::size_t angle = 0;                            // i * j mod parts
    for (std::size_t i = 1; i < parts; ++i) {
      angle += j;
      if (angle >= parts) angle -= parts;
      const float weight = cas[angle];
      const std::span<const float> part = in.subspan(i * part_size, part_size);
      for (std::size_t t = 0; t < part_size; ++t) sum[t] += weight * part[t];
    }
  }
}

void multiply(std::span<const float> a, std::span<const float> b, std::span<float> product) {
  for (std::size_t i = 0; i < product.size(); ++i) product[i] = a[i] * b[i];
}

using Values = std::array<float, kMaxHeadDim>;

// y[i] = <row i, x>
void multiply_rows(std::span<const float> matrix, std::span<const float> x, std::span<float> y) {
  Values results;  // separate, because x and y may be the same memory
  for (std::size_t i = 0; i < y.size(); ++i) {
    results[i] = lane_dot(matrix.subspan(i * x.size(), x.size()), x);
  }
  std::copy_n(results.begin(), y.size(), y.begin());
}

void add_multiple(const float* __restrict row, float factor, std::size_t count,
                  float* __restrict sum) {
  constexpr std::size_t kWidth = 8;
  std::size_t j = 0;
  for (; j + kWidth <= count; j += kWidth) {
    for (std::size_t k = j; k < j + kWidth; ++k) sum[k] += factor * row[k];
  }
  for (; j < count; ++j) sum[j] += factor * row[j];
}

// x[j] = sum over i, ascending, of y[i] * matrix[i][j]
void sum_rows(std::span<const float> matrix, std::span<const float> y, std::span<float> x) {
  Values sums{};
  for (std::size_t i = 0; i < y.size(); ++i) {
    add_multiple(matrix.data() + i * x.size(), y[i], x.size(), sums.data());
  }
  std::copy_n(sums.begin(), x.size(), x.begin());
}

void copy(std::span<const float> from, std::span<float> to) {
  if (from.data() != to.data()) std::copy(from.begin(), from.end(), to.begin());
}

std::shared_ptr<const AlignedFloats> make_matrix(const PartSpec& spec) {
  const std::size_t n = static_cast<std::size_t>(spec.head_dim);
  if (spec.rotation == TransformKind::kDenseQr) {
    return std::make_shared<const AlignedFloats>(orthogonal_matrix(n, spec.seed));
  }
  if (spec.rotation == TransformKind::kGaussian) {
    return std::make_shared<const AlignedFloats>(gaussian_matrix(n, spec.seed));
  }
  return spec.matrix.shared();
}

}  // namespace

Rotation::Rotation(const PartSpec& spec)
    : kind_(spec.rotation),
      head_dim_(static_cast<std::size_t>(spec.head_dim)),
      matrix_(make_matrix(spec)) {
  assert(validate(spec).ok());
  if (kind_ != TransformKind::kHadamard) return;
  signs_ = make_signs(static_cast<std::size_t>(spec.rounds), head_dim_, spec.seed);
  part_size_ = std::size_t{1} << std::countr_zero(head_dim_);
  cas_ = make_cas(head_dim_ / part_size_);
  factor_ = static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_dim_)));
}

std::span<const float> Rotation::matrix() const {
  return matrix_ ? std::span<const float>(*matrix_) : std::span<const float>();
}

void Rotation::rotate(std::span<const float> x, std::span<float> y) const {
  assert(x.size() == head_dim() && y.size() == head_dim());
  if (matrix_) return multiply_rows(*matrix_, x, y);
  if (kind_ == TransformKind::kNone) return copy(x, y);
  std::span<const float> from = x;
  for (std::size_t start = 0; start < signs_.size(); start += head_dim_) {
    multiply(from, std::span(signs_).subspan(start, head_dim_), y);
    transform(y);
    from = y;
  }
}

void Rotation::unrotate(std::span<const float> y, std::span<float> x) const {
  assert(x.size() == head_dim() && y.size() == head_dim());
  if (matrix_) return sum_rows(*matrix_, y, x);
  copy(y, x);
  for (std::size_t end = signs_.size(); end > 0; end -= head_dim_) {
    transform(x);
    multiply(x, std::span(signs_).subspan(end - head_dim_, head_dim_), x);
  }
}

void Rotation::transform(std::span<float> values) const {
  for (std::size_t start = 0; start < values.size(); start += part_size_) {
    walsh_hadamard(values.subspan(start, part_size_));
  }
  if (cas_.size() > 1) {
    Values parts;
    std::copy(values.begin(), values.end(), parts.begin());
    hartley_across(std::span<const float>(parts).first(values.size()), cas_, part_size_, values);
  }
  for (float& value : values) value *= factor_;
}

}  // namespace tqcache::codec
