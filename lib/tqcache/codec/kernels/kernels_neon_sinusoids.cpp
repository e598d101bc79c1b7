// Sinusoids with NEON: FMLA of f32.

#include "tqcache/codec/kernels/kernels_neon.h"

#ifdef TQCACHE_NEON

#include "tqcache/codec/kernels/sinusoid_rows.h"

namespace tqcache::codec {
namespace {

using neon::kWidth;

constexpr std::size_t kVectors = kSinusoidHalf / kWidth;  // of half a block

// The sums of row products of four tokens, and of the four that mirror them.
struct Parts {
  float32x4_t even = vdupq_n_f32(0.0f);
  float32x4_t odd = vdupq_n_f32(0.0f);
};

float32x4_t backwards(float32x4_t v) {
  const float32x4_t pairs = vrev64q_f32(v);
  return vextq_f32(pairs, pairs, 2);
}

// Adds even and odd parts to four tokens of either half of a block.
void put_both_halves(float* scores, std::size_t vector, const Parts& parts) {
  float* const upper = scores + kSinusoidHalf + kWidth * vector;
  float* const lower = scores + kSinusoidHalf - kWidth * (vector + 1);
  vst1q_f32(upper, vaddq_f32(vld1q_f32(upper), vaddq_f32(parts.even, parts.odd)));
  vst1q_f32(lower, vaddq_f32(vld1q_f32(lower), backwards(vsubq_f32(parts.even, parts.odd))));
}

template <std::size_t kQueries>
void add_group(const SinusoidTable& table, const Sinusoids& sinusoids, std::size_t first,
               OutputRows scores) {
  constexpr std::size_t kTile = 2;
  SinusoidRows rows;
  for (std::size_t q = 0; q < kQueries; ++q) {
    make_sinusoid_factors(table, sinusoids, first + q, rows.factors[q]);
  }
  for (std::size_t v = 0; v < kVectors; v += kTile) {
    Parts sums[kQueries][kTile];
    const float* row = table.values.data() + kWidth * v;
    for (std::size_t r = 0; r < table.n_rows; ++r, row += kSinusoidRow) {
      TQC_UNROLL for (std::size_t i = 0; i < kTile; ++i) {
        const float32x4_t even = vld1q_f32(row + kWidth * i);
        const float32x4_t odd = vld1q_f32(row + kSinusoidHalf + kWidth * i);
        TQC_UNROLL for (std::size_t q = 0; q < kQueries; ++q) {
          Parts& sum = sums[q][i];
          sum.even = vfmaq_n_f32(sum.even, even, rows.factors[q][2 * r]);
          sum.odd = vfmaq_n_f32(sum.odd, odd, rows.factors[q][2 * r + 1]);
        }
      }
    }
    TQC_UNROLL for (std::size_t q = 0; q < kQueries; ++q) {
      TQC_UNROLL for (std::size_t i = 0; i < kTile; ++i) {
        put_both_halves(scores.values + q * scores.stride, v + i, sums[q][i]);
      }
    }
  }
}

}  // namespace

void neon::add_sinusoids(const SinusoidTable& table, const Sinusoids& sinusoids,
                         OutputRows scores) {
  constexpr AddSinusoidGroup kGroups[] = {add_group<1>, add_group<2>, add_group<3>, add_group<4>};
  add_in_groups(kGroups, table, sinusoids, scores);
}

}  // namespace tqcache::codec

#endif  // TQCACHE_NEON
