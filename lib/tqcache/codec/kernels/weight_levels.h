#pragma once
// codec/kernels/weight_levels.h: softmax weights times scales, as two signed bytes each.
//
// For kernels that multiply signed bytes alone, which have too few steps for the scheme of
// weight_bytes.h.

#include <cstddef>
#include <cstdint>

#include "tqcache/codec/kernels/line_pass.h"

namespace tqcache::codec {

// What the weights of some queries become: times the scales, in f32 and in two levels of bytes.
struct PreparedWeights {
  static constexpr std::size_t kMaxQueries = 8;
  alignas(64) float values[kMaxQueries][kBlockTokens];
  alignas(64) std::int8_t bytes[2 * kMaxQueries][kBlockTokens];
  float multipliers[2 * kMaxQueries];
  std::int32_t sums[2 * kMaxQueries];

  FloatRows float_rows() const { return {values[0], kBlockTokens}; }
  ByteRows byte_rows() const { return {bytes[0], kBlockTokens, 2, multipliers, sums}; }
};

// weights * scales, zero beyond the tokens. Returns the largest magnitude, or NaN if one is NaN.
using ScaleWeights = float (*)(const PackedBlock&, const float* weights, float* scaled);

// values = step * (kByteRadix * high + low), rounded; and the sums of both. All of 256 values.
using RoundToBytes = void (*)(const float* values, float step, std::int8_t* high, std::int8_t* low,
                              std::int32_t* sums);

// Prepares queries first to first + n - 1. Returns whether bytes are wanted and can stand for the
// weights: not for NaN and infinity, nor where a step would be too small for f32.
inline bool prepare_weights(const PackedBlock& block, const WeightRows& weights, std::size_t first,
                            std::size_t n, bool bytes, ScaleWeights scale, RoundToBytes round,
                            PreparedWeights& prepared) {
  constexpr float kLeast = 0x1p-100f, kMost = 0x1p100f;
  for (std::size_t q = 0; q < n; ++q) {
    const float* const row = weights.values + (first + q) * weights.stride;
    const float largest = scale(block, row, prepared.values[q]);
    const bool zeros = largest == 0.0f;
    bytes = bytes && (zeros || (largest >= kLeast && largest <= kMost));
    if (!bytes) continue;
    const float step = (zeros ? 1.0f : largest) / static_cast<float>(kMaxTwoBytes);
    prepared.multipliers[2 * q] = step * static_cast<float>(kByteRadix);
    prepared.multipliers[2 * q + 1] = step;
    round(prepared.values[q], step, prepared.bytes[2 * q], prepared.bytes[2 * q + 1],
          prepared.sums + 2 * q);
  }
  return bytes;
}

}  // namespace tqcache::codec
