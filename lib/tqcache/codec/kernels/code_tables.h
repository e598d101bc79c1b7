#pragma once
// codec/kernels/code_tables.h: a codebook in the forms that kernels look codes up in.
//
// `values` serves the exact kernels. The fast ones multiply bytes: a centroid becomes a whole
// number of steps, offset to be unsigned, in one byte where that is precise enough and in two
// where it is not. The step is searched, not just the largest centroid / 127: a codebook of 16
// values leaves enough freedom to halve the error.
//
// Threads: plain data; any number may read.

#include <cstdint>
#include <span>

namespace tqcache::codec {

struct CodeTables {
  int bits = 0;

  // Every table goes round: entry i is that of code i % 2^bits, so that a kernel may look up with
  // stray bits above the code.
  alignas(64) float values[256] = {};

  // centroid = step * sum over levels of 256^(n_levels - 1 - level) * (bytes[level] - 128), with a
  // root mean square error below kByteError (of a unit vector of the codec's distribution).
  static constexpr float kByteError = 0.0045f;
  alignas(64) std::uint8_t bytes[2][256] = {};
  int n_levels = 1;
  float step = 0.0f;

  // Of 8 bits alone, as the code itself is a byte: centroid = linear_step * (code - 128) +
  // remainder_step * (remainder - 128). The line is chosen so that the remainders are small, and
  // one byte of them is as good as two of the centroids.
  float linear_step = 0.0f;
  float remainder_step = 0.0f;
  alignas(64) std::uint8_t remainder[256] = {};

  // Of 5 bits and more, in sixteen straight pieces, for units that look up sixteen entries and
  // multiply words: with h the four high bits of a code and l the others, centroid = piece_step *
  // (256 * piece_high[h] + piece_low[h] + piece_slope[h] * l), and that number is at most
  // kMostTimesInt16 in magnitude. A step of 0: straight pieces are not precise enough.
  static constexpr int kMinPieceBits = 5;
  static constexpr float kPieceError = 0.0065f;
  alignas(16) std::int8_t piece_high[16] = {};
  alignas(16) std::uint8_t piece_low[16] = {};
  alignas(16) std::int8_t piece_slope[16] = {};
  float piece_step = 0.0f;

  // In 171 steps, for units that add two products of bytes in 16 bits: centroid =
  // narrow_step * (narrow - kNarrowOffset). Such a pair must not pass 32767, so what is multiplied
  // with two neighbors must not pass kPairLimit in sum of magnitudes. Up to 4 bits a code.
  static constexpr int kMaxNarrowBits = 4;
  static constexpr int kNarrowOffset = 85;
  static constexpr int kPairLimit = 192;
  alignas(64) std::uint8_t narrow[16] = {};
  float narrow_step = 0.0f;
};

// Requires: 2^bits centroids, bits in [1, 8], finite and strictly ascending, as Quantizer has them;
//           head_dim tells how often each is used.
CodeTables make_code_tables(int head_dim, int bits, std::span<const float> centroids);

static_assert(2 * CodeTables::kNarrowOffset * CodeTables::kPairLimit <= 32767);

// Whole numbers of up to 14 bits in two bytes, neither of which passes half a kPairLimit.
inline constexpr int kByteRadix = CodeTables::kPairLimit;
inline constexpr int kMaxTwoBytes = kByteRadix / 2 * kByteRadix;

}  // namespace tqcache::codec
