// Centering with AVX-512: sixteen components of a head vector at once.

#include "tqcache/codec/kernels/by_dtype.h"
#include "tqcache/codec/kernels/rows_avx512.h"

#ifdef TQCACHE_X86

namespace tqcache::codec {
namespace {

using namespace avx512;

TQC_AVX512 __m512 load(const float* p, __mmask16 lanes) { return _mm512_maskz_loadu_ps(lanes, p); }

// Up to sixteen pairs of components, from the i-th on, of every row.
template <Dtype kDtype>
TQC_AVX512 void center_pairs(const VectorRows& x, std::size_t n, std::size_t head_dim,
                             const Center& center, std::size_t first_token, std::size_t i,
                             __mmask16 lanes, float* out) {
  const std::size_t half = center.n_pairs;
  const __m512 a = load(center.mean + i, lanes), b = load(center.mean + half + i, lanes);
  for (std::size_t t = 0; t < n; ++t) {
    const std::byte* const row = x.rows + t * x.stride;
    const __m512 c = load(center.cos + (first_token + t) * half + i, lanes);
    const __m512 s = load(center.sin + (first_token + t) * half + i, lanes);
    const __m512 low = _mm512_sub_ps(_mm512_mul_ps(a, c), _mm512_mul_ps(b, s));
    const __m512 high = _mm512_add_ps(_mm512_mul_ps(b, c), _mm512_mul_ps(a, s));
    float* const to = out + t * head_dim + i;
    put(to, _mm512_sub_ps(widen<kDtype>(row, i, lanes), low), lanes);
    put(to + half, _mm512_sub_ps(widen<kDtype>(row, half + i, lanes), high), lanes);
  }
}

// Up to sixteen components that do not turn.
template <Dtype kDtype>
TQC_AVX512 void center_singles(const VectorRows& x, std::size_t n, std::size_t head_dim,
                               const Center& center, std::size_t i, __mmask16 lanes, float* out) {
  const __m512 mean = center.mean == nullptr ? _mm512_setzero_ps() : load(center.mean + i, lanes);
  for (std::size_t t = 0; t < n; ++t) {
    const __m512 v = widen<kDtype>(x.rows + t * x.stride, i, lanes);
    // Taking 0 away would make a signaling NaN a quiet one.
    put(out + t * head_dim + i, center.mean == nullptr ? v : _mm512_sub_ps(v, mean), lanes);
  }
}

template <Dtype kDtype>
TQC_AVX512_FUNCTION void center_all(const VectorRows& x, std::size_t n, std::size_t head_dim,
                                    const Center& center, std::size_t first_token, float* out) {
  const std::size_t half = center.n_pairs;
  std::size_t i = 0;
  for (; i + 16 <= half; i += 16) {
    center_pairs<kDtype>(x, n, head_dim, center, first_token, i, 0xffff, out);
  }
  if (i < half) {
    center_pairs<kDtype>(x, n, head_dim, center, first_token, i, first_lanes(half - i), out);
  }
  for (i = 2 * half; i + 16 <= head_dim; i += 16) {
    center_singles<kDtype>(x, n, head_dim, center, i, 0xffff, out);
  }
  if (i < head_dim) {
    center_singles<kDtype>(x, n, head_dim, center, i, first_lanes(head_dim - i), out);
  }
}

using Lanes = __m512;

TQC_AVX512 Lanes load_some(const float* from, std::size_t n) {
  return _mm512_maskz_loadu_ps(first_lanes(n), from);
}

template <Dtype kDtype>
TQC_AVX512 void narrow_some(Lanes v, std::byte* row, std::size_t first, std::size_t n) {
  narrow<kDtype>(v, row, first, first_lanes(n));
}

}  // namespace
}  // namespace tqcache::codec

#define TQC_LANES TQC_AVX512
#define TQC_LANES_FUNCTION TQC_AVX512_FUNCTION

#include "tqcache/codec/kernels/restore_lanes.h"

namespace tqcache::codec {

void avx512::center_rows(VectorRows x, std::size_t n, std::size_t head_dim, const Center& center,
                         std::size_t first_token, float* out) {
  return by_dtype(x.dtype, [&]<Dtype kDtype>() {
    return center_all<kDtype>(x, n, head_dim, center, first_token, out);
  });
}

void avx512::restore_rows(const TransformedRows& x, const Center& center, std::size_t first_token,
                          MutableVectorRows out) {
  return by_dtype(out.dtype,
                  [&]<Dtype kDtype>() { return restore_all<kDtype>(x, center, first_token, out); });
}

}  // namespace tqcache::codec

#endif  // TQCACHE_X86
