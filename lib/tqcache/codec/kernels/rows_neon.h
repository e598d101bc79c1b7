#pragma once
// codec/kernels/rows_neon.h: rows of f32, f16 or bf16 in and out of registers of NEON.

#include "tqcache/codec/kernels/kernels_neon.h"

#ifdef TQCACHE_NEON

namespace tqcache::codec::neon {

// Four values from the i-th on, or the n that are left: the others are zero and not touched.
template <Dtype kDtype>
inline float32x4_t widen(const std::byte* row, std::size_t i, std::size_t n) {
  constexpr std::size_t kSize = kDtype == Dtype::kF32 ? 4 : 2;
  const std::byte* from = row + i * kSize;
  std::byte padded[kWidth * kSize] = {};
  if (n < kWidth) {
    __builtin_memcpy(padded, from, n * kSize);
    from = padded;
  }
  if constexpr (kDtype == Dtype::kF32) {
    float32x4_t v;
    __builtin_memcpy(&v, from, sizeof(v));
    return v;
  } else {
    uint16x4_t halves;
    __builtin_memcpy(&halves, from, sizeof(halves));
    if constexpr (kDtype == Dtype::kF16) return vcvt_f32_f16(vreinterpret_f16_u16(halves));
    return vreinterpretq_f32_u32(vshll_n_u16(halves, 16));
  }
}

// To bf16, ties to even; a NaN keeps its upper bits and is made quiet.
inline uint16x4_t to_bf16(float32x4_t v) {
  const uint32x4_t bits = vreinterpretq_u32_f32(v);
  const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
  const uint32x4_t rounded = vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7fff)), odd);
  const uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x400000));
  return vshrn_n_u32(vbslq_u32(vceqq_f32(v, v), rounded, quiet), 16);
}

template <Dtype kDtype>
inline void narrow(float32x4_t v, std::byte* row, std::size_t i, std::size_t n) {
  const std::size_t count = n < kWidth ? n : kWidth;
  if constexpr (kDtype == Dtype::kF32) {
    __builtin_memcpy(row + 4 * i, &v, 4 * count);
  } else {
    uint16x4_t halves;
    if constexpr (kDtype == Dtype::kF16) {
      halves = vreinterpret_u16_f16(vcvt_f16_f32(v));
    } else {
      halves = to_bf16(v);
    }
    __builtin_memcpy(row + 2 * i, &halves, 2 * count);
  }
}

// Rows and columns of four registers change their parts.
inline void transpose(float32x4_t (&r)[4]) {
  const float32x4_t a = vzip1q_f32(r[0], r[2]), b = vzip2q_f32(r[0], r[2]);
  const float32x4_t c = vzip1q_f32(r[1], r[3]), d = vzip2q_f32(r[1], r[3]);
  r[0] = vzip1q_f32(a, c);
  r[1] = vzip2q_f32(a, c);
  r[2] = vzip1q_f32(b, d);
  r[3] = vzip2q_f32(b, d);
}

void center_rows(VectorRows x, std::size_t n, std::size_t head_dim, const Center&,
                 std::size_t first_token, float* out);
void restore_rows(const TransformedRows&, const Center&, std::size_t first_token,
                  MutableVectorRows out);
std::uint32_t encode_lines(const RotationTables&, VectorRows, std::size_t n, std::uint8_t* lines,
                           std::uint16_t* scales);
void decode_lines(const RotationTables&, const std::uint8_t* lines, const std::uint16_t* scales,
                  std::size_t n, MutableVectorRows);

}  // namespace tqcache::codec::neon

#endif  // TQCACHE_NEON
