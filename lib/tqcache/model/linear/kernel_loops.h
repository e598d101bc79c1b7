#pragma once
// model/linear/kernel_loops.h: the definition of softmax's and SiLU's loops, and of how lanes are added
// up.
//
// All are forced inline: the caller's target attribute decides which instructions they become,
// and no copy is left for the linker to hand to code that must run on any CPU.

#include <bit>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>

#include "tqcache/model/linear/kernels.h"

#define TQC_INLINE [[gnu::always_inline]] inline

namespace tqcache::model::loops {

// Adds up the lanes: the upper half to the lower half, until one is left.
TQC_INLINE float fold(float* lanes) {
  for (std::size_t half = kLanes / 2; half > 0; half /= 2) {
    for (std::size_t l = 0; l < half; ++l) lanes[l] += lanes[half + l];
  }
  return lanes[0];
}

// Of exp_f32: 1.5 * 2^23 rounds to an integer when added; ln(2) is taken off in two parts, the
// first of few bits; Taylor's series to r^7 leaves 5e-9; below kExpLeast, e^x is about to leave
// f32's normal range.
inline constexpr float kExpRound = 0x1.8p23f;
inline constexpr float kLog2E = 1.44269504f;
inline constexpr float kLn2High = 0.693359375f;
inline constexpr float kLn2Low = -2.12194440e-4f;
inline constexpr float kExpSeries[] = {1.0f / 5040, 1.0f / 720, 1.0f / 120, 1.0f / 24,
                                       1.0f / 6,    0.5f,       1.0f,       1.0f};
inline constexpr float kExpLeast = -87.0f;

// e^x for x <= 88, within 2 units in the last place; 0 below kExpLeast. Made of additions and
// products alone: libm's result depends on its version.
TQC_INLINE float exp_f32(float x) {
  // e^x = 2^k e^r with |r| <= ln(2) / 2; k then stands in the low bits of `shifted`.
  const float shifted = x * kLog2E + kExpRound;
  const float k = shifted - kExpRound;
  const float r = (x - k * kLn2High) - k * kLn2Low;
  float p = kExpSeries[0];
  for (std::size_t i = 1; i < std::size(kExpSeries); ++i) p = p * r + kExpSeries[i];
  // 2^k from the bits of `shifted`, of which the exponent field keeps the low eight.
  const float scale = std::bit_cast<float>((std::bit_cast<std::uint32_t>(shifted) + 127u) << 23);
  // A mask, where ?: would become a branch and keep compilers from vectorizing; NaN passes it.
  const std::uint32_t keep = 0u - static_cast<std::uint32_t>(!(x < kExpLeast));
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(p * scale) & keep);
}

// The lanes as for a sum; then the larger of two, lane by lane.
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
