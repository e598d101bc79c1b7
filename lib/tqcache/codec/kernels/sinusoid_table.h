#pragma once
// codec/kernels/sinusoid_table.h: sinusoids over the tokens of a block, and their summation.
//
// Centering before RoPE subtracts a mean from keys. The score gets it back as a sum of sinusoids,
// one per frequency pair: A cos(p w) + B sin(p w), where p is the token's position. Relative to the
// middle of a block, tokens are at u = -127.5, ..., -0.5, 0.5, ..., 127.5, and a sinusoid is the
// sum of an even and an odd function of u, cos(u w) and sin(u w). The upper half determines an even
// or odd function, so a row of the table holds 128 values of an even function and 128 of an odd
// one, and one pass over it serves both halves of the block.
//
// Fast sinusoids have a row each. Sinusoids that change little within a block are joined: their sum
// is a smooth function of u, so a few polynomials represent all of them.
//
// Spec: docs/reference/codec.md §8.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tqcache/bytes.h"

namespace tqcache::codec {

inline constexpr std::size_t kSinusoidHalf = 128;               // tokens of half a block
inline constexpr std::size_t kSinusoidRow = 2 * kSinusoidHalf;  // values of a row: even, then odd
inline constexpr std::size_t kSinusoidStep = 4;                 // rows added at once
inline constexpr std::size_t kSinusoidPad = 8;  // sinusoids are zero-padded to a multiple of this
inline constexpr std::size_t kMaxSinusoids = 512;
inline constexpr std::size_t kSinusoidPolynomials = 7;  // even ones, and as many odd ones

// Factors of rows: for all sinusoids, or for fast sinusoids and polynomials; with room to store
// whole vectors.
inline constexpr std::size_t kMaxSinusoidRows = kMaxSinusoids + 32;

// Threads: plain data; any number may read.
struct SinusoidTable {
  std::size_t n_sinusoids = 0;  // at most kMaxSinusoids
  std::size_t n_fast = 0;       // the first n_fast of them

  // Fast sinusoids, then polynomials, then zeros. All values are at most 1 in magnitude, so that
  // they also fit integers; the first even polynomial is 1.
  std::size_t n_rows = 0;  // a multiple of kSinusoidStep
  AlignedFloats values;    // [n_rows, kSinusoidRow]

  // The same as integers in units of 1 / kUnit, with neighboring rows interleaved, for instructions
  // that add two 16-bit products.
  static constexpr int kUnit = 8191;
  std::vector<std::int16_t, AlignedAllocator<std::int16_t>> int16;  // [n_rows / 2, kSinusoidRow, 2]

  // The factor of each polynomial in each slow sinusoid, even before odd; the eighth is zero.
  AlignedFloats joins;  // [n_joined(), 8, 2]

  std::size_t n_padded() const {
    return (n_sinusoids + kSinusoidPad - 1) / kSinusoidPad * kSinusoidPad;
  }
  // An even number, because two sums are computed at once.
  std::size_t n_joined() const { return (n_padded() - n_fast + 1) / 2 * 2; }
};

// Fills in `int16` and the zeros that pad `values` and `joins`.
//
// Shapes: values [n_fast + kSinusoidPolynomials, kSinusoidRow], at most 1 in magnitude; joins
//         [n_sinusoids - n_fast, 8, 2].
SinusoidTable make_sinusoid_table(std::size_t n_sinusoids, std::size_t n_fast, AlignedFloats values,
                                  AlignedFloats joins);

// The amplitudes from the queries, and the phases of the sinusoids in the middle of a block.
struct Sinusoids {
  std::size_t n_queries = 0;
  const float* amplitudes = nullptr;  // [n_queries, n_padded(), 2]: A, B
  const float* constants = nullptr;   // [n_queries], added to every token
  const float* phasors = nullptr;     // [n_padded(), 2]: cosine, sine
};

// The factors of query `query` for the rows of the table: the definition.
// Shapes: factors [kMaxSinusoidRows, 2], even before odd; the first n_rows are filled in.
void make_sinusoid_factors(const SinusoidTable& table, const Sinusoids& sinusoids,
                           std::size_t query, float* factors);

}  // namespace tqcache::codec
