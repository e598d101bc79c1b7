#pragma once
// model/linear/lanes_avx512.h: helpers shared by the AVX-512 kernels. Not for other files.
//
// Only functions with the target attribute use AVX-512. A file may define a larger target before.

#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 warns about undefined registers that its own header uses on purpose (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#include <immintrin.h>

#ifndef TQC_AVX512_TARGET
#define TQC_AVX512_TARGET gnu::target("avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl")
#endif
#define TQC_AVX512 [[TQC_AVX512_TARGET]]
#define TQC_AVX512_INLINE [[TQC_AVX512_TARGET, gnu::always_inline]] inline

namespace tqcache::model {
namespace {

// The upper half of sixteen lanes, in both halves of the result.
TQC_AVX512_INLINE __m256 upper_half(__m512 v) { return _mm512_extractf32x8_ps(v, 1); }

// loops::fold of two vectors of lanes.
TQC_AVX512_INLINE float fold(__m512 a, __m512 b) {
  const __m512 sixteen = _mm512_add_ps(a, b);
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(sixteen), upper_half(sixteen));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

// loops::fold of four sums at once. Shapes: a, b [4] as above; the result [4].
TQC_AVX512_INLINE __m128 fold_four(const __m512* a, const __m512* b) {
  // Each vector of `eight` has eight lanes of two sums; `four` has four lanes of every sum.
  __m512 eight[2];
  for (int i = 0; i < 2; ++i) {
    const __m512 first = _mm512_add_ps(a[2 * i], b[2 * i]);
    const __m512 second = _mm512_add_ps(a[2 * i + 1], b[2 * i + 1]);
    eight[i] = _mm512_add_ps(_mm512_shuffle_f32x4(first, second, 0x44),
                             _mm512_shuffle_f32x4(first, second, 0xee));
  }
  const __m512 four = _mm512_add_ps(_mm512_shuffle_f32x4(eight[0], eight[1], 0x88),
                                    _mm512_shuffle_f32x4(eight[0], eight[1], 0xdd));
  const __m512 two = _mm512_add_ps(four, _mm512_permute_ps(four, 0x4e));
  const __m512 one = _mm512_add_ps(two, _mm512_permute_ps(two, 0xb1));
  return _mm512_castps512_ps128(_mm512_maskz_compress_ps(0x1111, one));
}

}  // namespace
}  // namespace tqcache::model
