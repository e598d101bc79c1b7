#pragma once
// codec/mirrored_sum.h: sums of functions of a token's place in its block.
//
// Seen from the middle of a block, tokens stand at -127.5, ..., -0.5, 0.5, ..., 127.5. A function
// that is even or odd about the middle is known from its upper half, so a row holds 128 values of
// an even function and 128 of an odd one, and one pass over it serves both halves of the block.
//
// Forced inline: the caller's target attribute decides which instructions this becomes.

#include <cstddef>

namespace tqcache::codec {

inline constexpr std::size_t kMirrorHalf = 128;             // tokens of half a block
inline constexpr std::size_t kMirrorRow = 2 * kMirrorHalf;  // values of a row: even, then odd
inline constexpr std::size_t kMirrorStep = 4;               // rows that are added at once

// sums[q][i] += the sum of four functions, each times its factor of q.
template <std::size_t kQueries>
[[gnu::always_inline]] inline void add_four(const float* __restrict rows,
                                            const float* __restrict factors, std::size_t stride,
                                            float* __restrict sums) {
  for (std::size_t i = 0; i < kMirrorHalf; ++i) {
    const float a = rows[i];
    const float b = rows[kMirrorRow + i];
    const float c = rows[2 * kMirrorRow + i];
    const float d = rows[3 * kMirrorRow + i];
    for (std::size_t q = 0; q < kQueries; ++q) {
      const float* const f = factors + q * stride;
      sums[q * kMirrorHalf + i] += (f[0] * a + f[2] * b) + (f[4] * c + f[6] * d);
    }
  }
}

// scores[q][t] += sum over r of factors[q][r].even * even_r(t) + factors[q][r].odd * odd_r(t), for
// the tokens t of a block. Two queries at a time read the rows once.
//
// Shapes:   rows [n_rows, kMirrorRow]; factors [kQueries, n_rows, 2], even before odd; scores
//           [kQueries, 256], rows `stride` apart.
// Requires: n_rows is a multiple of kMirrorStep; nothing overlaps.
template <std::size_t kQueries>
[[gnu::always_inline]] inline void add_mirrored(const float* __restrict rows, std::size_t n_rows,
                                                const float* __restrict factors,
                                                float* __restrict scores, std::size_t stride) {
  alignas(64) float even[kQueries * kMirrorHalf] = {};
  alignas(64) float odd[kQueries * kMirrorHalf] = {};
  for (std::size_t r = 0; r < n_rows; r += kMirrorStep) {
    const float* const four = rows + r * kMirrorRow;
    add_four<kQueries>(four, factors + 2 * r, 2 * n_rows, even);
    add_four<kQueries>(four + kMirrorHalf, factors + 2 * r + 1, 2 * n_rows, odd);
  }
  for (std::size_t q = 0; q < kQueries; ++q) {
    const float* const e = even + q * kMirrorHalf;
    const float* const o = odd + q * kMirrorHalf;
    float* const middle = scores + q * stride + kMirrorHalf;
    for (std::size_t i = 0; i < kMirrorHalf; ++i) middle[i] += e[i] + o[i];
    for (std::size_t i = 0; i < kMirrorHalf; ++i) {
      middle[-1 - static_cast<std::ptrdiff_t>(i)] += e[i] - o[i];
    }
  }
}

}  // namespace tqcache::codec
