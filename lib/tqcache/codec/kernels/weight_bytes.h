#pragma once
// codec/kernels/weight_bytes.h: softmax weights times scales, as one unsigned byte each.
//
// A byte has too few steps for weights of very different size, so:
//   - a step is a part of the root of the weights' sum of squares, which is what independent values
//     add up to, and not of the largest weight;
//   - weights are rounded up or down by a fixed pattern of thresholds. Rounded to the nearest, many
//     small weights would all be lost, or all be doubled; this way their sum is right;
//   - of weights beyond the largest byte there can only be few, as each takes its part of that sum
//     of squares. What is left of them is added in f32, token by token.
//
// Spec: docs/reference/codec.md §9.

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "tqcache/codec/kernels/kernels.h"

namespace tqcache::codec {

// Of up to kMaxQueries queries, as many as a pass takes at once.
struct WeightBytes {
  static constexpr std::size_t kMaxQueries = 8;
  // Rounding up or down leaves s^2 / 6 of a step s in a token: of 256 tokens .007 of the root.
  static constexpr float kStepsOfRoot = 900.0f;

  alignas(64) std::uint8_t bytes[kMaxQueries][kBlockTokens];  // zero beyond n_tokens
  alignas(
      64) std::uint32_t loud[kMaxQueries][kBlockTokens / 32];  // bit t % 32 of t / 32: left over
  float steps[kMaxQueries];
};

// The step for weights of this sum of squares; 0 where bytes cannot stand for them in f32.
inline float weight_step(float sum_of_squares) {
  constexpr float kLeast = 0x1p-100f, kMost = 0x1p100f;
  const bool fits = sum_of_squares >= kLeast && sum_of_squares <= kMost;
  return fits ? __builtin_sqrtf(sum_of_squares) / WeightBytes::kStepsOfRoot : 0.0f;
}

// Thresholds: each part in 256 once in a block, and neighbors far apart (157 is near 256 times the
// golden ratio). Added before a fraction is cut off.
inline constexpr std::array<float, kBlockTokens> kWeightThresholds = [] {
  std::array<float, kBlockTokens> thresholds{};
  for (std::size_t t = 0; t < kBlockTokens; ++t) {
    thresholds[t] = (static_cast<float>(157 * t % 256) + 0.5f) / 256.0f;
  }
  return thresholds;
}();

// What the largest byte leaves of some weights times scales.
struct OutlierTokens {
  static constexpr std::size_t kMost = 32;
  std::size_t n = 0;
  std::uint8_t tokens[kMost];
  float rests[kMost];
};

// Those of one query. `scaled` are its weights times scales; `most` is the largest byte.
inline void find_outliers(const WeightBytes& prepared, std::size_t query, float most,
                          const float* scaled, OutlierTokens& loud) {
  loud.n = 0;
  for (std::size_t w = 0; w < kBlockTokens / 32; ++w) {
    for (std::uint32_t left = prepared.loud[query][w]; left != 0; left &= left - 1) {
      const std::size_t t = 32 * w + static_cast<std::size_t>(std::countr_zero(left));
      loud.tokens[loud.n] = static_cast<std::uint8_t>(t);
      loud.rests[loud.n++] = scaled[t] - most * prepared.steps[query];
    }
  }
}

// As many weights as can be above `most` steps, and one for rounding.
constexpr float most_outliers(float most) {
  const float part = most / WeightBytes::kStepsOfRoot;
  return 1.0f / (part * part) + 1.0f;
}

}  // namespace tqcache::codec
