#pragma once
// model/linear/kernel_loops.h: the reference loops of softmax and SiLU, and the sum of the lanes.
//
// All functions are forced inline: the caller's target attribute selects their instructions, and
// the linker finds no copy that it could use for code which must run on any CPU.

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>

#include "tqcache/model/linear/product_kernels.h"

#define TQC_INLINE [[gnu::always_inline]] inline

namespace tqcache::model::loops {

// Sums the lanes: adds the upper half to the lower half until one is left.
TQC_INLINE float fold(float* lanes) {
  for (std::size_t half = kLanes / 2; half > 0; half /= 2) {
    for (std::size_t l = 0; l < half; ++l) lanes[l] += lanes[half + l];
  }
  return lanes[0];
}

// For exp_f32: adding 1.5 * 2^23 rounds to an integer; ln(2) is subtracted in two parts, the first
// with few bits; Taylor's series to r^7 leaves an error of 5e-9; below kExpLeast, e^x is about to
// leave f32's normal range.
inline constexpr float kExpRound = 0x1.8p23f;
inline constexpr float kLog2E = 1.44269504f;
inline constexpr float kLn2High = 0.693359375f;
inline constexpr float kLn2Low = -2.12194440e-4f;
inline constexpr float kExpSeries[] = {1.0f / 5040, 1.0f / 720, 1.0f / 120, 1.0f / 24,
                                       1.0f / 6,    0.5f,       1.0f,       1.0f};
inline constexpr float kExpLeast = -87.0f;

// e^x for x <= 88, within 2 units in the last place; 0 below kExpLeast. Uses only additions and
// products, because libm's result depends on its version.
TQC_INLINE float exp_f32(float x) {
  // e^x = 2^k e^r with |r| <= ln(2) / 2; the low bits of `shifted` then hold k.
  const float shifted = x * kLog2E + kExpRound;
  const float k = shifted - kExpRound;
  const float r = (x - k * kLn2High) - k * kLn2Low;
  float p = kExpSeries[0];
  for (std::size_t i = 1; i < std::size(kExpSeries); ++i) p = p * r + kExpSeries[i];
  // 2^k from the bits of `shifted`; the exponent field keeps the low eight of them.
  const float scale = std::bit_cast<float>((std::bit_cast<std::uint32_t>(shifted) + 127u) << 23);
  // A mask instead of ?:, which would become a branch and prevent vectorization; NaN passes it.
  const std::uint32_t keep = 0u - static_cast<std::uint32_t>(!(x < kExpLeast));
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(p * scale) & keep);
}

inline float sigmoid(float x) { return 1.0f / (1.0f + exp_f32(-std::max(x, -80.0f))); }

// Uses lanes as a sum does, then takes the larger of two, lane by lane.
TQC_INLINE float max_value(const float* row, std::size_t n) {
  float lanes[kLanes];
  for (float& lane : lanes) lane = -std::numeric_limits<float>::infinity();
  for (std::size_t i = 0; i < n; ++i) {
    float& lane = lanes[i % kLanes];
    lane = row[i] > lane ? row[i] : lane;
  }
  for (std::size_t half = kLanes / 2; half > 0; half /= 2) {
    for (std::size_t l = 0; l < half; ++l) {
      lanes[l] = lanes[half + l] > lanes[l] ? lanes[half + l] : lanes[l];
    }
  }
  return lanes[0];
}

TQC_INLINE float exp_sum(float shift, std::size_t n, float* row) {
  float lanes[kLanes] = {};
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (std::size_t l = 0; l < kLanes; ++l) {
      const float value = exp_f32(row[i + l] - shift);
      row[i + l] = value;
      lanes[l] += value;
    }
  }
  for (std::size_t l = 0; i < n; ++i, ++l) {
    row[i] = exp_f32(row[i] - shift);
    lanes[l] += row[i];
  }
  return fold(lanes);
}

inline constexpr float kSiluLeast = -88.0f;  // exp_f32's range ends at 88; x / e^88 is as good as 0

TQC_INLINE void silu_multiply(const float* up, std::size_t n, float* gate) {
  for (std::size_t i = 0; i < n; ++i) {
    const float bounded = gate[i] < kSiluLeast ? kSiluLeast : gate[i];
    gate[i] = gate[i] / (1.0f + exp_f32(-bounded)) * up[i];
  }
}

}  // namespace tqcache::model::loops
