#pragma once
// codec/kernels/line_pass.h: scores and sums of values are one and the same loop over lines.
//
// In each lane, a sum over the lane's codes of c[code] * factor. Of keys, lanes are tokens and
// the factors are a query; of values, lanes are components and the factors are weights. Either way
// every group of the block takes the same rows of factors.

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

}  // namespace tqcache::codec
