// Centering with NEON: four components of a head vector at once.

#include "tqcache/codec/kernels/by_dtype.h"
#include "tqcache/codec/kernels/rows_neon.h"

#ifdef TQCACHE_NEON

namespace tqcache::codec {
namespace {

using neon::kWidth;

float32x4_t load(const float* p, std::size_t n) {
  return neon::widen<Dtype::kF32>(reinterpret_cast<const std::byte*>(p), 0, n);
}

template <Dtype kDtype>
float32x4_t widen(const std::byte* row, std::size_t i, std::size_t n) {
  return neon::widen<kDtype>(row, i, n);
}

void put(float* to, float32x4_t v, std::size_t n) {
  neon::narrow<Dtype::kF32>(v, reinterpret_cast<std::byte*>(to), 0, n);
}

// One row less the mean, turned by the angles of its token.
template <Dtype kDtype>
void center_row(const std::byte* x, std::size_t head_dim, const Center& center, std::size_t token,
                float* out) {
  const std::size_t half = center.n_pairs;
  for (std::size_t i = 0; i < half; i += kWidth) {
    const std::size_t n = half - i;
    const float32x4_t c = load(center.cos + token * half + i, n);
    const float32x4_t s = load(center.sin + token * half + i, n);
    const float32x4_t a = load(center.mean + i, n), b = load(center.mean + half + i, n);
    const float32x4_t low = vsubq_f32(vmulq_f32(a, c), vmulq_f32(b, s));
    const float32x4_t high = vaddq_f32(vmulq_f32(b, c), vmulq_f32(a, s));
    put(out + i, vsubq_f32(widen<kDtype>(x, i, n), low), n);
    put(out + half + i, vsubq_f32(widen<kDtype>(x, half + i, n), high), n);
  }
  for (std::size_t i = 2 * half; i < head_dim; i += kWidth) {
    const std::size_t n = head_dim - i;
    put(out + i, vsubq_f32(widen<kDtype>(x, i, n), load(center.mean + i, n)), n);
  }
}

template <Dtype kDtype>
void center_all(const VectorRows& x, std::size_t n, std::size_t head_dim, const Center& center,
                std::size_t first_token, float* out) {
  for (std::size_t t = 0; t < n; ++t, out += head_dim) {
    const std::byte* const row = x.rows + t * x.stride;
    if (center.mean != nullptr) {
      center_row<kDtype>(row, head_dim, center, first_token + t, out);
      continue;
    }
    for (std::size_t i = 0; i < head_dim; i += kWidth) {
      put(out + i, widen<kDtype>(row, i, head_dim - i), head_dim - i);
    }
  }
}

using Lanes = float32x4_t;

Lanes load_some(const float* from, std::size_t n) { return load(from, n); }

template <Dtype kDtype>
void narrow_some(Lanes v, std::byte* row, std::size_t first, std::size_t n) {
  neon::narrow<kDtype>(v, row, first, n);
}

}  // namespace
}  // namespace tqcache::codec

#define TQC_LANES __attribute__((always_inline)) inline
#define TQC_LANES_FUNCTION

#include "tqcache/codec/kernels/restore_lanes.h"

namespace tqcache::codec {

void neon::center_rows(VectorRows x, std::size_t n, std::size_t head_dim, const Center& center,
                       std::size_t first_token, float* out) {
  return by_dtype(x.dtype, [&]<Dtype kDtype>() {
    return center_all<kDtype>(x, n, head_dim, center, first_token, out);
  });
}

void neon::restore_rows(const TransformedRows& x, const Center& center, std::size_t first_token,
                        MutableVectorRows out) {
  return by_dtype(out.dtype,
                  [&]<Dtype kDtype>() { return restore_all<kDtype>(x, center, first_token, out); });
}

}  // namespace tqcache::codec

#endif  // TQCACHE_NEON
