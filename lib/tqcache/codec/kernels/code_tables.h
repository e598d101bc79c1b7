#pragma once
// codec/kernels/code_tables.h: a codebook as look-up tables for the kernels.
//
// The exact kernels use `values`. The fast kernels multiply bytes: a centroid becomes an integer
// number of steps, offset to be unsigned, in one byte if that is precise enough and otherwise in
// two. The step is found by a search instead of largest centroid / 127: for a codebook of 16 values
// the search halves the error.
//
// Threads: plain data; any number may read.

#include <cstdint>
#include <span>

namespace tqcache::codec {

struct CodeTables {
  int bits = 0;

  // Every table is periodic: entry i belongs to code i % 2^bits, so a kernel may look up with extra
  // bits above the code.
  alignas(64) float values[256] = {};

  // centroid = step * sum over levels of 256^(n_levels - 1 - level) * (bytes[level] - 128), with a
  // root mean square error below kByteError (of a unit vector of the codec's distribution).
  static constexpr float kByteError = 0.0045f;
  alignas(64) std::uint8_t bytes[2][256] = {};
  int n_levels = 1;
  float step = 0.0f;

  // For 8 bits only, where the code itself is a byte: centroid = linear_step * (code - 128) +
  // remainder_step * (remainder - 128). The line makes the remainders small, so that one byte of
  // them is as good as two bytes of the centroids.
  float linear_step = 0.0f;
  float remainder_step = 0.0f;
  alignas(64) std::uint8_t remainder[256] = {};

  // For 5 bits and more, in sixteen linear pieces, for instruction sets that look up sixteen
  // entries and multiply int16: with h the four high bits of a code and l the others, centroid =
  // piece_step * (256 * piece_high[h] + piece_low[h] + piece_slope[h] * l), and the expression in
  // parentheses is at most kMostTimesInt16 in magnitude. A step of 0: linear pieces are not precise
  // enough.
  static constexpr int kMinPieceBits = 5;
  static constexpr float kPieceError = 0.0065f;
  alignas(16) std::int8_t piece_high[16] = {};
  alignas(16) std::uint8_t piece_low[16] = {};
  alignas(16) std::int8_t piece_slope[16] = {};
  float piece_step = 0.0f;

  // In 171 steps, for instruction sets that add two products of bytes in 16 bits: centroid =
  // narrow_step * (narrow - kNarrowOffset). Such a pair must not exceed 32767, so the magnitudes of
  // the two neighboring factors must not exceed kPairLimit in sum. For at most 4 bits per code.
  static constexpr int kMaxNarrowBits = 4;
  static constexpr int kNarrowOffset = 85;
  static constexpr int kPairLimit = 192;
  alignas(64) std::uint8_t narrow[16] = {};
  float narrow_step = 0.0f;
};

// Requires: 2^bits centroids, bits in [1, 8], finite and strictly ascending, as in Quantizer;
//           head_dim determines the frequency of each.
CodeTables make_code_tables(int head_dim, int bits, std::span<const float> centroids);

static_assert(2 * CodeTables::kNarrowOffset * CodeTables::kPairLimit <= 32767);

// Integers of up to 14 bits in two bytes, neither of which exceeds half of kPairLimit.
inline constexpr int kByteRadix = CodeTables::kPairLimit;
inline constexpr int kMaxTwoBytes = kByteRadix / 2 * kByteRadix;

}  // namespace tqcache::codec
