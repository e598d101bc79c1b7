#pragma once
// codec/line_pass.h: scores and sums of values are one and the same loop over lines.
//
// In each lane, a sum over the lane's codes of c[code] * factor. Of keys, lanes are tokens and
// the factors are a query; of values, lanes are components and the factors are weights. Either way
// every group of the block takes the same rows of factors.

#include <cstddef>
#include <cstdint>

#include "tqcache/codec/kernels.h"

namespace tqcache::codec {

// What of a block is walked, and where results go: lane l of group g is column 16 g + l.
struct LinePass {
  const std::uint8_t* lines;
  std::size_t n_groups;
  std::size_t group_bytes;
  std::size_t whole_units;
  std::size_t tail_lines;
  std::size_t n_columns;
  const std::uint16_t* lane_scales;  // f16 bits, one a column; null if there are none
  OutputRows out;
  bool adds;  // to what is there already
};

inline LinePass key_pass(const PackedBlock& block, OutputRows scores) {
  return {.lines = block.codes,
          .n_groups = (block.n_tokens + kLanes - 1) / kLanes,
          .group_bytes = block.shape.group_bytes(),
          .whole_units = block.shape.whole_units(),
          .tail_lines = block.shape.tail_lines(),
          .n_columns = block.n_tokens,
          .lane_scales = block.scales,
          .out = scores,
          .adds = false};
}

// Units that hold only tokens beyond n_tokens are left out.
inline LinePass value_pass(const PackedBlock& block, OutputRows out) {
  return {.lines = block.codes,
          .n_groups = block.shape.groups(),
          .group_bytes = block.shape.group_bytes(),
          .whole_units = (block.n_tokens + kUnitLaneCodes - 1) / kUnitLaneCodes,
          .tail_lines = 0,
          .n_columns = block.shape.dim(),
          .lane_scales = nullptr,
          .out = out,
          .adds = true};
}

// Factors in f32: row r, for output row r.
struct FloatRows {
  const float* values;
  std::size_t stride;
};

// Factors as bytes: output row r / n_levels gets multipliers[r] times the sum of row r.
struct ByteRows {
  const std::int8_t* values;
  std::size_t stride;
  std::size_t n_levels;  // 1 or 2
  const float* multipliers;
  const std::int32_t* sums;  // of each row, for tables with an offset
};

inline ByteRows byte_rows(const QueryRows& queries) {
  return {queries.bytes, queries.stride, queries.n_levels, queries.multipliers, queries.sums};
}

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
