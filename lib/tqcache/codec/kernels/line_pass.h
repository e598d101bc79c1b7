#pragma once
// codec/kernels/line_pass.h: the loop over lines that computes scores and sums of values.
//
// In each lane it adds c[code] * factor over the lane's codes. For keys, lanes are tokens and the
// factors are a query; for values, lanes are components and the factors are weights. In both cases
// every group of the block uses the same rows of factors.

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "tqcache/codec/kernels/kernels.h"

namespace tqcache::codec {

// The prefetch distance in bytes: a unit of packed codes is done before the CPU itself detects that
// units follow each other. The block of the next kv head follows a block, so prefetching beyond the
// end is seldom useless, and never wrong.
inline constexpr std::size_t kPrefetchAhead = 4096;

// The range of a block to process, and where results go: lane l of group g is column 16 g + l.
struct LinePass {
  const std::uint8_t* lines;
  std::size_t n_groups;
  std::size_t group_bytes;
  std::size_t whole_units;
  std::size_t tail_lines;
  std::size_t n_columns;
  const std::uint16_t* lane_scales;  // f16 bits, one per column; null if there are none
  OutputRows out;
  bool adds;  // to the previous content of `out`
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

// Skips units that hold only tokens from n_tokens on.
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
  const std::int32_t* sums;  // sum of each row, for tables with an offset
};

// The initial values of the sums of kRows rows, which undo the tables' offset, and the factors of
// the sums. Copied, because compilers do not know that outputs do not alias them.
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
//   - a step is a fraction of the root of the weights' sum of squares, which is the size of a sum
//     of independent values, and not of the largest weight;
//   - weights are rounded up or down by a fixed pattern of thresholds, which keeps their sum right.
//     Rounding to nearest would turn many small weights all into 0, or double them all;
//   - there can only be few weights beyond the largest byte, as each takes its share of that sum of
//     squares. Their remainders are added in f32, token by token.

// For up to kMaxQueries queries, the most that a pass handles at once.
struct WeightBytes {
  static constexpr std::size_t kMaxQueries = 8;
  // Rounding up or down leaves s^2 / 6 per token for a step s: for 256 tokens .007 of the root.
  static constexpr float kStepsOfRoot = 900.0f;

  alignas(64) std::uint8_t bytes[kMaxQueries][kBlockTokens];  // zero beyond n_tokens
  alignas(64)
      std::uint32_t outliers[kMaxQueries][kBlockTokens / 32];  // bit t % 32 of t / 32: too large
  float steps[kMaxQueries];
};

// The step for weights with this sum of squares; 0 if bytes cannot represent them in f32.
inline float weight_step(float sum_of_squares) {
  constexpr float kLeast = 0x1p-100f, kMost = 0x1p100f;
  const bool fits = sum_of_squares >= kLeast && sum_of_squares <= kMost;
  return fits ? __builtin_sqrtf(sum_of_squares) / WeightBytes::kStepsOfRoot : 0.0f;
}

// Thresholds: one in each of 256 equal intervals per block, with distant values for neighbors (157
// is close to 256 times the golden ratio). A threshold is added before the fraction is cut off.
inline constexpr std::array<float, kBlockTokens> kWeightThresholds = [] {
  std::array<float, kBlockTokens> thresholds{};
  for (std::size_t t = 0; t < kBlockTokens; ++t) {
    thresholds[t] = (static_cast<float>(157 * t % 256) + 0.5f) / 256.0f;
  }
  return thresholds;
}();

// Weights times scales beyond the largest byte: the remainders.
struct OutlierTokens {
  static constexpr std::size_t kMost = 32;
  std::size_t n = 0;
  std::uint8_t tokens[kMost];
  float rests[kMost];
};

// The remainders of one query. `scaled` are its weights times scales; `most` is the largest byte.
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

// The largest number of weights above `most` steps, plus one for rounding.
constexpr float most_outliers(float most) {
  const float part = most / WeightBytes::kStepsOfRoot;
  return 1.0f / (part * part) + 1.0f;
}

}  // namespace tqcache::codec
