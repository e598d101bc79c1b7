// The kernels in AVX2. Only functions with the target attribute use AVX2, and they call only
// functions that are forced inline: otherwise the linker could keep the AVX2 copy of a shared
// inline function for all callers.

#include "tqcache/base/processor.h"
#include "tqcache/model/linear/product_kernels.h"

#if defined(__x86_64__) && !defined(TQCACHE_SCALAR)

#include <cstdint>
#include <cstring>
#include <limits>

#include "tqcache/codec/kernels/lanes.h"
#include "tqcache/model/linear/block_kernels.h"
#include "tqcache/model/linear/chunk_kernels.h"
#include "tqcache/model/linear/kernel_loops.h"
#include "tqcache/model/linear/lanes_avx2.h"

namespace tqcache::model {
namespace {

constexpr std::size_t kVector = 8;  // floats

// Loads weights i to i + 7 of a row, one struct per type.
struct F32 {
  static constexpr std::size_t kSize = 4;  // bytes
  TQC_AVX2_INLINE static __m256 load(const std::byte* row) {
    return _mm256_loadu_ps(reinterpret_cast<const float*>(row));
  }
};

struct F16 {
  static constexpr std::size_t kSize = 2;
  TQC_AVX2_INLINE static __m256 load(const std::byte* row) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(row)));
  }
};

struct BF16 {
  static constexpr std::size_t kSize = 2;
  TQC_AVX2_INLINE static __m256 load(const std::byte* row) {
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(row));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
  }
};

TQC_AVX2_INLINE __m256 multiply_add(__m256 sum, __m256 w, const float* x) {
  return _mm256_add_ps(sum, _mm256_mul_ps(w, _mm256_loadu_ps(x)));
}

// Widens fewer values than a vector holds, without reading past them.
template <class Layout>
TQC_AVX2_INLINE void widen_rest(const std::byte* row, std::size_t n, float* widened) {
  std::byte rest[kVector * Layout::kSize] = {};
  std::memcpy(rest, row, n * Layout::kSize);
  _mm256_storeu_ps(widened, Layout::load(rest));
}

template <class Layout>
TQC_AVX2 float dot(const std::byte* row, const float* x, std::size_t n) {
  constexpr std::size_t kStep = kVector * Layout::kSize;
  const std::size_t whole = n / kLanes * kLanes;
  __m256 a = _mm256_setzero_ps(), b = a, c = a, d = a;
  for (std::size_t i = 0; i < whole; i += kLanes, row += 4 * kStep, x += kLanes) {
    a = multiply_add(a, Layout::load(row), x);
    b = multiply_add(b, Layout::load(row + kStep), x + kVector);
    c = multiply_add(c, Layout::load(row + 2 * kStep), x + 2 * kVector);
    d = multiply_add(d, Layout::load(row + 3 * kStep), x + 3 * kVector);
  }
  if (whole == n) return fold(a, b, c, d);
  float lanes[kLanes];
  _mm256_storeu_ps(lanes, a);
  _mm256_storeu_ps(lanes + kVector, b);
  _mm256_storeu_ps(lanes + 2 * kVector, c);
  _mm256_storeu_ps(lanes + 3 * kVector, d);
  for (std::size_t i = whole; i < n; i += kVector, row += kStep, x += kVector) {
    const std::size_t count = n - i < kVector ? n - i : kVector;
    float widened[kVector];
    widen_rest<Layout>(row, count, widened);
    for (std::size_t l = 0; l < count; ++l) lanes[i - whole + l] += widened[l] * x[l];
  }
  return loops::fold(lanes);
}

template <class Layout>
TQC_AVX2 void add_scaled(float factor, const std::byte* row, std::size_t n, float* y) {
  constexpr std::size_t kStep = kVector * Layout::kSize;
  const __m256 factors = _mm256_set1_ps(factor);
  for (; n >= kVector; n -= kVector, row += kStep, y += kVector) {
    const __m256 terms = _mm256_mul_ps(factors, Layout::load(row));
    _mm256_storeu_ps(y, _mm256_add_ps(_mm256_loadu_ps(y), terms));
  }
  float widened[kVector];
  widen_rest<Layout>(row, n, widened);
  for (std::size_t i = 0; i < n; ++i) y[i] += factor * widened[i];
}

// A mask of the first n lanes of a vector, all of them if n is 8 or more.
TQC_AVX2_INLINE __m256i first_lanes(std::size_t n) {
  const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n < kVector ? static_cast<int>(n) : 8), lanes);
}

// Folds four vectors of lanes in the order of loops::max_value.
TQC_AVX2_INLINE float fold_max(const __m256 (&v)[4]) {
  const __m256 eight = _mm256_max_ps(_mm256_max_ps(v[3], v[1]), _mm256_max_ps(v[2], v[0]));
  const __m128 four = _mm_max_ps(_mm256_extractf128_ps(eight, 1), _mm256_castps256_ps128(eight));
  const __m128 two = _mm_max_ps(_mm_movehl_ps(four, four), four);
  return _mm_cvtss_f32(_mm_max_ss(_mm_movehdup_ps(two), two));
}

TQC_AVX2 float max_value(const float* row, std::size_t n) {
  const __m256 none = _mm256_set1_ps(-std::numeric_limits<float>::infinity());
  __m256 lanes[4] = {none, none, none, none};
  for (; n >= kLanes; n -= kLanes, row += kLanes) {
    TQC_UNROLL for (std::size_t v = 0; v < 4; ++v) {
      lanes[v] = _mm256_max_ps(_mm256_loadu_ps(row + v * kVector), lanes[v]);
    }
  }
  for (std::size_t v = 0; v * kVector < n; ++v) {
    const __m256i here = first_lanes(n - v * kVector);
    const __m256 values = _mm256_maskload_ps(row + v * kVector, here);
    const __m256 largest = _mm256_max_ps(values, lanes[v]);
    lanes[v] = _mm256_blendv_ps(lanes[v], largest, _mm256_castsi256_ps(here));
  }
  return fold_max(lanes);
}

// loops::exp_f32 of eight values.
TQC_AVX2_INLINE __m256 exp_f32(__m256 x) {
  using namespace loops;
  const __m256 round = _mm256_set1_ps(kExpRound);
  const __m256 shifted = _mm256_add_ps(_mm256_mul_ps(x, _mm256_set1_ps(kLog2E)), round);
  const __m256 k = _mm256_sub_ps(shifted, round);
  const __m256 high = _mm256_sub_ps(x, _mm256_mul_ps(k, _mm256_set1_ps(kLn2High)));
  const __m256 r = _mm256_sub_ps(high, _mm256_mul_ps(k, _mm256_set1_ps(kLn2Low)));
  __m256 p = _mm256_set1_ps(kExpSeries[0]);
  TQC_UNROLL for (std::size_t i = 1; i < std::size(kExpSeries); ++i) {
    p = _mm256_add_ps(_mm256_mul_ps(p, r), _mm256_set1_ps(kExpSeries[i]));
  }
  const __m256i exponent = _mm256_add_epi32(_mm256_castps_si256(shifted), _mm256_set1_epi32(127));
  const __m256 scale = _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23));
  const __m256 keep = _mm256_cmp_ps(x, _mm256_set1_ps(kExpLeast), _CMP_NLT_UQ);
  return _mm256_and_ps(_mm256_mul_ps(p, scale), keep);
}

TQC_AVX2 float exp_sum(float shift, std::size_t n, float* row) {
  const __m256 shifts = _mm256_set1_ps(shift);
  __m256 sums[4] = {};
  for (; n >= kLanes; n -= kLanes, row += kLanes) {
    TQC_UNROLL for (std::size_t v = 0; v < 4; ++v) {
      const __m256 x = _mm256_sub_ps(_mm256_loadu_ps(row + v * kVector), shifts);
      const __m256 values = exp_f32(x);
      _mm256_storeu_ps(row + v * kVector, values);
      sums[v] = _mm256_add_ps(sums[v], values);
    }
  }
  for (std::size_t v = 0; v * kVector < n; ++v) {
    const __m256i here = first_lanes(n - v * kVector);
    const __m256 x = _mm256_sub_ps(_mm256_maskload_ps(row + v * kVector, here), shifts);
    const __m256 values = _mm256_and_ps(exp_f32(x), _mm256_castsi256_ps(here));
    _mm256_maskstore_ps(row + v * kVector, here, values);
    sums[v] = _mm256_add_ps(sums[v], values);  // no sum is -0, so adding 0 does not change it
  }
  return fold(sums[0], sums[1], sums[2], sums[3]);
}

TQC_AVX2 void silu_multiply(const float* up, std::size_t n, float* gate) {
  const __m256 least = _mm256_set1_ps(loops::kSiluLeast), one = _mm256_set1_ps(1.0f);
  const __m256 sign = _mm256_set1_ps(-0.0f);
  for (std::size_t i = 0; i < n; i += kVector) {
    const __m256i here = first_lanes(n - i);
    const __m256 x = _mm256_maskload_ps(gate + i, here);
    const __m256 bounded = _mm256_max_ps(least, x);
    const __m256 logistic = _mm256_add_ps(one, exp_f32(_mm256_xor_ps(bounded, sign)));
    const __m256 factor = _mm256_maskload_ps(up + i, here);
    _mm256_maskstore_ps(gate + i, here, _mm256_mul_ps(_mm256_div_ps(x, logistic), factor));
  }
}

constexpr Kernels make_kernels(const ChunkKernels& chunks) {
  return {codec::Isa::kAvx2, dot<F32>,  dot<F16>, dot<BF16>,     add_scaled<F32>, add_scaled<F16>,
          add_scaled<BF16>,  max_value, exp_sum,  silu_multiply, &kAvx2Blocks,    &chunks};
}

}  // namespace

const Kernels& avx2_kernels() {
  static constexpr Kernels kPlain = make_kernels(kAvx2Chunks);
  static constexpr Kernels kWithVnni = make_kernels(kAvx2VnniChunks);
  static const bool has_vnni = find_processor().avx_vnni;
  return has_vnni ? kWithVnni : kPlain;
}

}  // namespace tqcache::model

#endif
