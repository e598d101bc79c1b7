#pragma once
// codec/kernels/line_pass.h: scores and sums of values are one and the same loop over lines.
//
// In each lane, a sum over the lane's codes of c[code] * factor. Of keys, lanes are tokens and
// the factors are a query; of values, lanes are components and the factors are weights. Either way
// every group of the block takes the same rows of factors.

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "tqcache/codec/kernels/kernels.h"

namespace tqcache::codec {

// How far ahead of what is read memory is asked for, in bytes: units of packed codes are done with
// sooner than a CPU notices by itself that they follow each other. What follows a kv head's block
// is the next one's, so that reaching beyond the end is seldom in vain, and never wrong.
inline constexpr std::size_t kPrefetchAhead = 4096;

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

// What the sums of kRows rows begin with, to undo the tables' offset, and what they are multiplied
// with. Set aside, as compilers do not know that outputs leave them alone.
template <std::size_t kRows>
struct RowConstants {
  std::int32_t offsets[kRows];
  float factors[kRows];

  RowConstants(const ByteRows& rows, std::size_t first, std::int32_t offset, float step) {
    for (std::size_t r = 0; r < kRows; ++r) {
      offsets[r] = -offset * rows.sums[first + r];
      factors[r] = step * rows.multipliers[first + r];
    }
  }
};

inline ByteRows byte_rows(const QueryRows& queries) {
  return {queries.bytes, queries.stride, queries.n_levels, queries.multipliers, queries.sums};
}

// --- Softmax weights times scales, as one unsigned byte each (docs/reference/codec.md §9).
//
// A byte has too few steps for weights of very different size, so:
//   - a step is a part of the root of the weights' sum of squares, which is what independent values
//     add up to, and not of the largest weight;
//   - weights are rounded up or down by a fixed pattern of thresholds. Rounded to the nearest, many
//     small weights would all be lost, or all be doubled; this way their sum is right;
//   - of weights beyond the largest byte there can only be few, as each takes its part of that sum
//     of squares. Their remainders are added in f32, token by token.

// Of up to kMaxQueries queries, as many as a pass takes at once.
struct WeightBytes {
  static constexpr std::size_t kMaxQueries = 8;
  // Rounding up or down leaves s^2 / 6 of a step s in a token: of 256 tokens .007 of the root.
  static constexpr float kStepsOfRoot = 900.0f;

  alignas(64) std::uint8_t bytes[kMaxQueries][kBlockTokens];  // zero beyond n_tokens
  alignas(64)
      std::uint32_t outliers[kMaxQueries][kBlockTokens / 32];  // bit t % 32 of t / 32: left over
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
                          const float* scaled, OutlierTokens& outliers) {
  outliers.n = 0;
  for (std::size_t w = 0; w < kBlockTokens / 32; ++w) {
    for (std::uint32_t left = prepared.outliers[query][w]; left != 0; left &= left - 1) {
      const std::size_t t = 32 * w + static_cast<std::size_t>(std::countr_zero(left));
      outliers.tokens[outliers.n] = static_cast<std::uint8_t>(t);
      outliers.rests[outliers.n++] = scaled[t] - most * prepared.steps[query];
    }
  }
}

// As many weights as can be above `most` steps, and one for rounding.
constexpr float most_outliers(float most) {
  const float part = most / WeightBytes::kStepsOfRoot;
  return 1.0f / (part * part) + 1.0f;
}

}  // namespace tqcache::codec
