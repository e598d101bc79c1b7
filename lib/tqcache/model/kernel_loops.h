#pragma once
// model/kernel_loops.h: loops that every set of kernels compiles for its own instructions.
//
// All are forced inline: the caller's target attribute decides which instructions they become,
// and no copy is left for the linker to hand to code that must run on any CPU.

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "tqcache/model/kernels.h"

#define TQC_INLINE [[gnu::always_inline]] inline

namespace tqcache::model::loops {

// Adds up the lanes: the upper half to the lower half, until one is left.
TQC_INLINE float fold(float* lanes) {
  for (std::size_t half = kLanes / 2; half > 0; half /= 2) {
    for (std::size_t l = 0; l < half; ++l) lanes[l] += lanes[half + l];
  }
  return lanes[0];
}

// e^x for x <= 88, within 2 units in the last place; 0 below -87, where e^x is about to leave
// f32's normal range. Made of additions and products alone: libm's result depends on its version.
TQC_INLINE float exp_f32(float x) {
  // e^x = 2^k e^r with |r| <= ln(2) / 2. Adding 1.5 * 2^23 rounds to an integer, which then
  // stands in the low bits; ln(2) is taken off in two parts, the first of few bits.
  constexpr float kRound = 0x1.8p23f;
  constexpr float kLog2E = 1.44269504f;
  constexpr float kLn2High = 0.693359375f;
  constexpr float kLn2Low = -2.12194440e-4f;
  const float shifted = x * kLog2E + kRound;
  const float k = shifted - kRound;
  const float r = (x - k * kLn2High) - k * kLn2Low;
  float p = 1.0f / 5040;  // Taylor's series to r^7 leaves 5e-9
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  // 2^k from the bits of `shifted`, of which the exponent field keeps the low eight.
  const float scale = std::bit_cast<float>((std::bit_cast<std::uint32_t>(shifted) + 127u) << 23);
  // A mask, where ?: would become a branch and keep compilers from vectorizing; NaN passes it.
  const std::uint32_t keep = 0u - static_cast<std::uint32_t>(!(x < -87.0f));
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(p * scale) & keep);
}

TQC_INLINE float max_value(const float* row, std::size_t n) {
  float lanes[kLanes];
  for (float& lane : lanes) lane = -std::numeric_limits<float>::infinity();
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (std::size_t l = 0; l < kLanes; ++l)
      lanes[l] = row[i + l] > lanes[l] ? row[i + l] : lanes[l];
  }
  for (; i < n; ++i) lanes[0] = row[i] > lanes[0] ? row[i] : lanes[0];
  float largest = lanes[0];
  for (const float lane : lanes) largest = lane > largest ? lane : largest;
  return largest;
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

TQC_INLINE void silu_multiply(const float* up, std::size_t n, float* gate) {
  for (std::size_t i = 0; i < n; ++i) {
    // -88 is the end of exp_f32's range, and x / e^88 is as good as 0.
    const float bounded = gate[i] < -88.0f ? -88.0f : gate[i];
    gate[i] = gate[i] / (1.0f + exp_f32(-bounded)) * up[i];
  }
}

}  // namespace tqcache::model::loops
