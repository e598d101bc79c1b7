// The kernels in AVX-512: the 32 lanes of a sum are two vectors, and the remainder is masked. As in
// kernels_avx2.cpp, only functions with the target attribute use AVX-512.

#include "tqcache/model/linear/product_kernels.h"

#if defined(__x86_64__) && !defined(TQCACHE_SCALAR)

#include <cstdint>
#include <cstring>
#include <limits>

#include "tqcache/codec/kernels/lanes.h"
#include "tqcache/model/linear/block_kernels.h"
#include "tqcache/model/linear/chunk_kernels.h"
#include "tqcache/model/linear/kernel_loops.h"
#include "tqcache/model/linear/lanes_avx512.h"

namespace tqcache::model {
namespace {

constexpr std::size_t kVector = 16;  // floats

// A mask of the first n lanes of a vector, all of them if n is 16 or more.
TQC_AVX512_INLINE __mmask16 first_lanes(std::size_t n) {
  return static_cast<__mmask16>(n >= kVector ? 0xffffu : (1u << n) - 1u);
}

// Loads weights i to i + 15 of a row, one struct per type; or only those selected by `lanes`, else
// 0.
struct F32 {
  static constexpr std::size_t kSize = 4;  // bytes
  TQC_AVX512_INLINE static __m512 load(const std::byte* row) { return _mm512_loadu_ps(row); }
  TQC_AVX512_INLINE static __m512 load(const std::byte* row, __mmask16 lanes) {
    return _mm512_maskz_loadu_ps(lanes, row);
  }
};

TQC_AVX512_INLINE __m256i load_halves(const std::byte* row) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row));
}

struct F16 {
  static constexpr std::size_t kSize = 2;
  TQC_AVX512_INLINE static __m512 load(const std::byte* row) {
    return _mm512_cvtph_ps(load_halves(row));
  }
  TQC_AVX512_INLINE static __m512 load(const std::byte* row, __mmask16 lanes) {
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(lanes, row));
  }
};

TQC_AVX512_INLINE __m512 widen_bf16(__m256i halves) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

struct BF16 {
  static constexpr std::size_t kSize = 2;
  TQC_AVX512_INLINE static __m512 load(const std::byte* row) {
    return widen_bf16(load_halves(row));
  }
  TQC_AVX512_INLINE static __m512 load(const std::byte* row, __mmask16 lanes) {
    return widen_bf16(_mm256_maskz_loadu_epi16(lanes, row));
  }
};

// The larger of a and b lane by lane; b if one of them is NaN.
TQC_AVX512_INLINE float fold_max(__m512 a, __m512 b) {
  const __m512 sixteen = _mm512_max_ps(b, a);
  const __m256 eight = _mm256_max_ps(upper_half(sixteen), _mm512_castps512_ps256(sixteen));
  const __m128 four = _mm_max_ps(_mm256_extractf128_ps(eight, 1), _mm256_castps256_ps128(eight));
  const __m128 two = _mm_max_ps(_mm_movehl_ps(four, four), four);
  return _mm_cvtss_f32(_mm_max_ss(_mm_movehdup_ps(two), two));
}

TQC_AVX512_INLINE __m512 multiply_add(__m512 sum, __m512 w, const float* x) {
  return _mm512_add_ps(sum, _mm512_mul_ps(w, _mm512_loadu_ps(x)));
}

// The same for the first n lanes; the others keep their sums.
template <class Layout>
TQC_AVX512_INLINE __m512 multiply_add_first(__m512 sum, const std::byte* row, const float* x,
                                            std::size_t n) {
  const __mmask16 lanes = first_lanes(n);
  const __m512 products = _mm512_mul_ps(Layout::load(row, lanes), _mm512_maskz_loadu_ps(lanes, x));
  return _mm512_mask_add_ps(sum, lanes, sum, products);
}

template <class Layout>
TQC_AVX512 float dot(const std::byte* row, const float* x, std::size_t n) {
  constexpr std::size_t kStep = kVector * Layout::kSize;
  __m512 a = _mm512_setzero_ps(), b = a;
  for (; n >= kLanes; n -= kLanes, row += 2 * kStep, x += kLanes) {
    a = multiply_add(a, Layout::load(row), x);
    b = multiply_add(b, Layout::load(row + kStep), x + kVector);
  }
  if (n > 0) a = multiply_add_first<Layout>(a, row, x, n);
  if (n > kVector) b = multiply_add_first<Layout>(b, row + kStep, x + kVector, n - kVector);
  return fold(a, b);
}

template <class Layout>
TQC_AVX512 void add_scaled(float factor, const std::byte* row, std::size_t n, float* y) {
  constexpr std::size_t kStep = kVector * Layout::kSize;
  const __m512 factors = _mm512_set1_ps(factor);
  for (; n >= kVector; n -= kVector, row += kStep, y += kVector) {
    const __m512 terms = _mm512_mul_ps(factors, Layout::load(row));
    _mm512_storeu_ps(y, _mm512_add_ps(_mm512_loadu_ps(y), terms));
  }
  const __mmask16 lanes = first_lanes(n);
  const __m512 terms = _mm512_mul_ps(factors, Layout::load(row, lanes));
  _mm512_mask_storeu_ps(y, lanes, _mm512_add_ps(_mm512_maskz_loadu_ps(lanes, y), terms));
}

TQC_AVX512 float max_value(const float* row, std::size_t n) {
  const __m512 none = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
  __m512 a = none, b = none;
  for (; n >= kLanes; n -= kLanes, row += kLanes) {
    a = _mm512_max_ps(_mm512_loadu_ps(row), a);
    b = _mm512_max_ps(_mm512_loadu_ps(row + kVector), b);
  }
  const __mmask16 low = first_lanes(n), high = first_lanes(n > kVector ? n - kVector : 0);
  a = _mm512_mask_max_ps(a, low, _mm512_maskz_loadu_ps(low, row), a);
  b = _mm512_mask_max_ps(b, high, _mm512_maskz_loadu_ps(high, row + kVector), b);
  return fold_max(a, b);
}

// loops::exp_f32 of sixteen values.
TQC_AVX512_INLINE __m512 exp_f32(__m512 x) {
  using namespace loops;
  const __m512 round = _mm512_set1_ps(kExpRound);
  const __m512 shifted = _mm512_add_ps(_mm512_mul_ps(x, _mm512_set1_ps(kLog2E)), round);
  const __m512 k = _mm512_sub_ps(shifted, round);
  const __m512 high = _mm512_sub_ps(x, _mm512_mul_ps(k, _mm512_set1_ps(kLn2High)));
  const __m512 r = _mm512_sub_ps(high, _mm512_mul_ps(k, _mm512_set1_ps(kLn2Low)));
  __m512 p = _mm512_set1_ps(kExpSeries[0]);
  TQC_UNROLL for (std::size_t i = 1; i < std::size(kExpSeries); ++i) {
    p = _mm512_add_ps(_mm512_mul_ps(p, r), _mm512_set1_ps(kExpSeries[i]));
  }
  const __m512i exponent = _mm512_add_epi32(_mm512_castps_si512(shifted), _mm512_set1_epi32(127));
  const __m512 scale = _mm512_castsi512_ps(_mm512_slli_epi32(exponent, 23));
  const __mmask16 keep = _mm512_cmp_ps_mask(x, _mm512_set1_ps(kExpLeast), _CMP_NLT_UQ);
  return _mm512_maskz_mul_ps(keep, p, scale);
}

TQC_AVX512 float exp_sum(float shift, std::size_t n, float* row) {
  const __m512 shifts = _mm512_set1_ps(shift);
  __m512 a = _mm512_setzero_ps(), b = a;
  for (; n >= kLanes; n -= kLanes, row += kLanes) {
    const __m512 low = exp_f32(_mm512_sub_ps(_mm512_loadu_ps(row), shifts));
    const __m512 high = exp_f32(_mm512_sub_ps(_mm512_loadu_ps(row + kVector), shifts));
    _mm512_storeu_ps(row, low);
    _mm512_storeu_ps(row + kVector, high);
    a = _mm512_add_ps(a, low);
    b = _mm512_add_ps(b, high);
  }
  for (__m512* sum = &a; n > 0; sum = &b, row += kVector) {
    const __mmask16 lanes = first_lanes(n);
    const __m512 values = exp_f32(_mm512_sub_ps(_mm512_maskz_loadu_ps(lanes, row), shifts));
    _mm512_mask_storeu_ps(row, lanes, values);
    *sum = _mm512_mask_add_ps(*sum, lanes, *sum, values);
    n -= n < kVector ? n : kVector;
  }
  return fold(a, b);
}

TQC_AVX512 void silu_multiply(const float* up, std::size_t n, float* gate) {
  const __m512 least = _mm512_set1_ps(loops::kSiluLeast), one = _mm512_set1_ps(1.0f);
  const __m512 sign = _mm512_set1_ps(-0.0f);
  for (std::size_t i = 0; i < n; i += kVector) {
    const __mmask16 lanes = first_lanes(n - i);
    const __m512 x = _mm512_maskz_loadu_ps(lanes, gate + i);
    const __m512 bounded = _mm512_max_ps(least, x);
    const __m512 logistic = _mm512_add_ps(one, exp_f32(_mm512_xor_ps(bounded, sign)));
    const __m512 factor = _mm512_maskz_loadu_ps(lanes, up + i);
    _mm512_mask_storeu_ps(gate + i, lanes, _mm512_mul_ps(_mm512_div_ps(x, logistic), factor));
  }
}

}  // namespace

constexpr Kernels kAvx512Kernels = {
    codec::Isa::kAvx512, dot<F32>,  dot<F16>, dot<BF16>,     add_scaled<F32>, add_scaled<F16>,
    add_scaled<BF16>,    max_value, exp_sum,  silu_multiply, &kAvx512Blocks,  &kAvx512Chunks};

}  // namespace tqcache::model

#endif
