#include "tqcache/codec/rotation.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <cmath>
#include <numbers>

#include "tqcache/codec/codec_spec.h"

namespace tqcache::codec {
namespace {

// Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
std::uint64_t splitmix64(std::uint64_t& state) {
  state += 0x9e3779b97f4a7c15;
  std::uint64_t z = state;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

std::vector<float> make_signs(std::size_t count, std::uint64_t seed) {
  std::vector<float> signs(count);
  std::uint64_t word = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (i % 64 == 0) word = splitmix64(seed);
    signs[i] = (word >> (i % 64)) & 1u ? -1.0f : 1.0f;
  }
  return signs;
}

// cos(t) + sin(t) at t = 2 pi k / n, as sqrt(2) sin(2 pi (8k + n) / 8n). The angle is brought
// into [-pi/2, pi/2] in whole numbers, so that the result keeps its relative accuracy near the
// zeros of cas, and rounds to the same f32 whatever the last bit of this libm's sine is.
float cas_of_turn(std::int64_t k, std::int64_t n) {
  std::int64_t eighths = (8 * k + n) % (8 * n);
  if (eighths > 6 * n) eighths -= 8 * n;
  if (eighths > 2 * n) eighths = 4 * n - eighths;
  const double angle = std::numbers::pi * static_cast<double>(eighths) / static_cast<double>(4 * n);
  return static_cast<float>(std::numbers::sqrt2 * std::sin(angle));
}

std::vector<float> make_cas(std::size_t count) {
  std::vector<float> cas(count, 1.0f);  // cas(0) is 1 exactly
  for (std::size_t k = 1; k < count; ++k) {
    cas[k] = cas_of_turn(static_cast<std::int64_t>(k), static_cast<std::int64_t>(count));
  }
  return cas;
}

// A fixed width, and pointers that cannot overlap, let compilers use vectors at -O2 too.
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
    std::size_t turn = 0;                             // i * j mod parts
    for (std::size_t i = 1; i < parts; ++i) {
      turn += j;
      if (turn >= parts) turn -= parts;
      const float weight = cas[turn];
      const std::span<const float> part = in.subspan(i * part_size, part_size);
      for (std::size_t t = 0; t < part_size; ++t) sum[t] += weight * part[t];
    }
  }
}

void multiply(std::span<const float> a, std::span<const float> b, std::span<float> product) {
  for (std::size_t i = 0; i < product.size(); ++i) product[i] = a[i] * b[i];
}

}  // namespace

Rotation::Rotation(int head_dim, std::uint64_t sign_seed)
    : signs_(make_signs(static_cast<std::size_t>(head_dim), sign_seed)),
      part_size_(std::size_t{1} << std::countr_zero(signs_.size())),
      scale_(static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_dim)))) {
  assert(head_dim >= kMinHeadDim && head_dim <= kMaxHeadDim);
  cas_ = make_cas(signs_.size() / part_size_);
}

void Rotation::rotate(std::span<const float> x, std::span<float> y) const {
  assert(x.size() == head_dim() && y.size() == head_dim());
  multiply(x, signs_, y);
  transform(y);
}

void Rotation::unrotate(std::span<const float> y, std::span<float> x) const {
  assert(x.size() == head_dim() && y.size() == head_dim());
  if (x.data() != y.data()) std::copy(y.begin(), y.end(), x.begin());
  transform(x);
  multiply(x, signs_, x);
}

void Rotation::transform(std::span<float> values) const {
  for (std::size_t start = 0; start < values.size(); start += part_size_) {
    walsh_hadamard(values.subspan(start, part_size_));
  }
  if (cas_.size() > 1) {
    std::array<float, kMaxHeadDim> parts;
    std::copy(values.begin(), values.end(), parts.begin());
    hartley_across(std::span<const float>(parts).first(values.size()), cas_, part_size_, values);
  }
  for (float& value : values) value *= scale_;
}

}  // namespace tqcache::codec
