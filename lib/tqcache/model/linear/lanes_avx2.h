#pragma once
// model/linear/lanes_avx2.h: helpers shared by the AVX2 kernels. Not for other files.
//
// Only functions with the target attribute use AVX2.

#include <immintrin.h>

#define TQC_AVX2 [[gnu::target("avx2,f16c")]]
#define TQC_AVX2_INLINE [[gnu::target("avx2,f16c"), gnu::always_inline]] inline

namespace tqcache::model {
namespace {

// loops::fold of four vectors of lanes.
TQC_AVX2_INLINE float fold(__m256 a, __m256 b, __m256 c, __m256 d) {
  const __m256 eight = _mm256_add_ps(_mm256_add_ps(a, c), _mm256_add_ps(b, d));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

}  // namespace
}  // namespace tqcache::model
