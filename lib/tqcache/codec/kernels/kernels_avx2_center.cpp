// Centering with AVX2: eight components of a head vector at once.

#include "tqcache/codec/kernels/by_dtype.h"
#include "tqcache/codec/kernels/rows_avx2.h"

#ifdef TQCACHE_X86

namespace tqcache::codec {
namespace {

using namespace avx2;

TQC_AVX2 __m256 load(const float* p, std::size_t n) {
  return n >= kWidth ? _mm256_loadu_ps(p) : _mm256_maskload_ps(p, first_lanes(n));
}

// Up to eight pairs of components, from the i-th on, of every row.
template <Dtype kDtype>
TQC_AVX2 void center_pairs(const VectorRows& x, std::size_t n, std::size_t head_dim,
                           const Center& center, std::size_t first_token, std::size_t i,
                           std::size_t count, float* out) {
  const std::size_t half = center.n_pairs;
  const __m256 a = load(center.mean + i, count), b = load(center.mean + half + i, count);
  for (std::size_t t = 0; t < n; ++t) {
    const std::byte* const row = x.rows + t * x.stride;
    const __m256 c = load(center.cos + (first_token + t) * half + i, count);
    const __m256 s = load(center.sin + (first_token + t) * half + i, count);
    const __m256 low = _mm256_sub_ps(_mm256_mul_ps(a, c), _mm256_mul_ps(b, s));
    const __m256 high = _mm256_add_ps(_mm256_mul_ps(b, c), _mm256_mul_ps(a, s));
    float* const to = out + t * head_dim + i;
    put(to, _mm256_sub_ps(widen<kDtype>(row, i, count), low), count);
    put(to + half, _mm256_sub_ps(widen<kDtype>(row, half + i, count), high), count);
  }
}

// Up to eight components that do not turn.
template <Dtype kDtype>
TQC_AVX2 void center_singles(const VectorRows& x, std::size_t n, std::size_t head_dim,
                             const Center& center, std::size_t i, std::size_t count, float* out) {
  const __m256 mean = center.mean == nullptr ? _mm256_setzero_ps() : load(center.mean + i, count);
  for (std::size_t t = 0; t < n; ++t) {
    const __m256 v = widen<kDtype>(x.rows + t * x.stride, i, count);
    // Taking 0 away would make a signaling NaN a quiet one.
    put(out + t * head_dim + i, center.mean == nullptr ? v : _mm256_sub_ps(v, mean), count);
  }
}

template <Dtype kDtype>
TQC_AVX2_FUNCTION void center_all(const VectorRows& x, std::size_t n, std::size_t head_dim,
                                  const Center& center, std::size_t first_token, float* out) {
  const std::size_t half = center.n_pairs;
  std::size_t i = 0;
  for (; i + kWidth <= half; i += kWidth) {
    center_pairs<kDtype>(x, n, head_dim, center, first_token, i, kWidth, out);
  }
  if (i < half) center_pairs<kDtype>(x, n, head_dim, center, first_token, i, half - i, out);
  for (i = 2 * half; i + kWidth <= head_dim; i += kWidth) {
    center_singles<kDtype>(x, n, head_dim, center, i, kWidth, out);
  }
  if (i < head_dim) center_singles<kDtype>(x, n, head_dim, center, i, head_dim - i, out);
}

using Lanes = __m256;

TQC_AVX2 Lanes load_some(const float* from, std::size_t n) { return load(from, n); }

template <Dtype kDtype>
TQC_AVX2 void narrow_some(Lanes v, std::byte* row, std::size_t first, std::size_t n) {
  narrow<kDtype>(v, row, first, n);
}

}  // namespace
}  // namespace tqcache::codec

#define TQC_LANES TQC_AVX2
#define TQC_LANES_FUNCTION TQC_AVX2_FUNCTION

#include "tqcache/codec/kernels/restore_lanes.h"

namespace tqcache::codec {

void avx2::center_rows(VectorRows x, std::size_t n, std::size_t head_dim, const Center& center,
                       std::size_t first_token, float* out) {
  return by_dtype(x.dtype, [&]<Dtype kDtype>() {
    return center_all<kDtype>(x, n, head_dim, center, first_token, out);
  });
}

void avx2::restore_rows(const TransformedRows& x, const Center& center, std::size_t first_token,
                        MutableVectorRows out) {
  return by_dtype(out.dtype,
                  [&]<Dtype kDtype>() { return restore_all<kDtype>(x, center, first_token, out); });
}

}  // namespace tqcache::codec

#endif  // TQCACHE_X86
