#pragma once
// codec/kernels/sinusoid_table.h: sinusoids over the tokens of a block, and how they are added up.
//
// What centering before RoPE takes out of keys comes back in the score as a sum of sinusoids, one a
// frequency pair: A cos(p w) + B sin(p w), p being the token's position. Seen from the middle of a
// block, tokens stand at u = -127.5, ..., -0.5, 0.5, ..., 127.5, and a sinusoid is the sum of an
// even and an odd function of u, cos(u w) and sin(u w). A function that is even or odd is known
// from its upper half, so a row of the table holds 128 values of an even function and 128 of an odd
// one, and one pass over it serves both halves of the block.
//
// Fast sinusoids have a row each. Sinusoids that turn little within a block are joined: their sum
// is one smooth function of u, so a few polynomials do for all of them.
//
// Spec: docs/reference/codec.md §8.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tqcache/bytes.h"

namespace tqcache::codec {

inline constexpr std::size_t kSinusoidHalf = 128;               // tokens of half a block
inline constexpr std::size_t kSinusoidRow = 2 * kSinusoidHalf;  // values of a row: even, then odd
inline constexpr std::size_t kSinusoidStep = 4;                 // rows that are added at once
inline constexpr std::size_t kSinusoidPad = 8;  // sinusoids come in eights, the last ones zero
inline constexpr std::size_t kMaxSinusoids = 512;
inline constexpr std::size_t kSinusoidPolynomials = 7;  // even ones, and as many odd ones

// Factors of rows: of all sinusoids, or of fast sinusoids and polynomials; and room to store whole
// vectors.
inline constexpr std::size_t kMaxSinusoidRows = kMaxSinusoids + 32;

// Threads: plain data; any number may read.
struct SinusoidTable {
  std::size_t n_sinusoids = 0;  // at most kMaxSinusoids
  std::size_t n_fast = 0;       // of them, from the first on

  // Fast sinusoids, then polynomials, then zeros. All values are at most 1 in magnitude, so that
  // they fit whole numbers too; the first even polynomial is 1.
  std::size_t n_rows = 0;  // a multiple of kSinusoidStep
  AlignedFloats values;    // [n_rows, kSinusoidRow]

  // The same as whole numbers of 1 / kUnit, neighboring rows interleaved, as units that add two
  // products of 16 bits want them.
  static constexpr int kUnit = 8191;
  std::vector<std::int16_t, AlignedAllocator<std::int16_t>> int16;  // [n_rows / 2, kSinusoidRow, 2]

  // How much of each polynomial is in each slow sinusoid, even before odd; the eighth is zero.
  AlignedFloats joins;  // [n_joined(), 8, 2]

  std::size_t n_padded() const {
    return (n_sinusoids + kSinusoidPad - 1) / kSinusoidPad * kSinusoidPad;
  }
  // An even number, for two sums at once.
  std::size_t n_joined() const { return (n_padded() - n_fast + 1) / 2 * 2; }
};

// Fills in `int16` and the zeros that pad `values` and `joins`.
//
// Shapes: values [n_fast + kSinusoidPolynomials, kSinusoidRow], each of magnitude 1 at most; joins
//         [n_sinusoids - n_fast, 8, 2].
SinusoidTable make_sinusoid_table(std::size_t n_sinusoids, std::size_t n_fast, AlignedFloats values,
                                  AlignedFloats joins);

// What queries make of the sinusoids, and where in their turn these are in the middle of a block.
struct Sinusoids {
  std::size_t n_queries = 0;
  const float* amplitudes = nullptr;  // [n_queries, n_padded(), 2]: A, B
  const float* constants = nullptr;   // [n_queries], added everywhere
  const float* phasors = nullptr;     // [n_padded(), 2]: cosine, sine
};

// What query `query` multiplies each row of the table with: the definition.
// Shapes: factors [kMaxSinusoidRows, 2], even before odd, of which n_rows are filled in.
void make_sinusoid_factors(const SinusoidTable& table, const Sinusoids& sinusoids,
                           std::size_t query, float* factors);

}  // namespace tqcache::codec
