#pragma once
// codec/kernels/registers_neon.h: NEON registers for the kernels: Lanes, four floats.
//
// A source file of kernels includes the header of one instruction set, then the loops written for
// all of them (lane_rotation.h, *_lanes.h).

#include "tqcache/codec/kernels/lanes.h"

#ifdef TQCACHE_NEON

#include <arm_neon.h>

// Every CPU of this architecture has the instruction set.
#define TQC_LANES_FUNCTION
#define TQC_LANES __attribute__((always_inline)) inline
#define TQC_SET neon

namespace tqcache::codec {
namespace {

using Lanes = float32x4_t;
typedef std::int32_t Ints __attribute__((vector_size(sizeof(Lanes))));
typedef std::uint32_t LaneBits __attribute__((vector_size(sizeof(Lanes))));

constexpr std::size_t kWidth = 4;       // floats per register: a quarter of a line's lanes
constexpr std::size_t kPassStages = 4;  // of a Hadamard transform, in half of the registers

// The first lanes of a register: their number; kWidth or more means all.
using Part = std::size_t;
constexpr Part kWhole = kWidth;
TQC_LANES Part part_of(std::size_t n) { return n; }

TQC_LANES Lanes spread(float value) { return vdupq_n_f32(value); }
TQC_LANES Lanes larger(Lanes a, Lanes b) { return vmaxq_f32(a, b); }
TQC_LANES Lanes magnitude(Lanes v) { return vabsq_f32(v); }
TQC_LANES Lanes square_root(Lanes v) { return vsqrtq_f32(v); }

// Four values from the i-th on, or the n that are left: the others are zero and not read.
template <Dtype kDtype>
TQC_LANES float32x4_t widen(const std::byte* row, std::size_t i, std::size_t n) {
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
TQC_LANES uint16x4_t to_bf16(float32x4_t v) {
  const uint32x4_t bits = vreinterpretq_u32_f32(v);
  const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
  const uint32x4_t rounded = vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7fff)), odd);
  const uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x400000));
  return vshrn_n_u32(vbslq_u32(vceqq_f32(v, v), rounded, quiet), 16);
}

template <Dtype kDtype>
TQC_LANES void narrow(float32x4_t v, std::byte* row, std::size_t i, std::size_t n) {
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

TQC_LANES Lanes load(const float* p, Part part) {
  return widen<Dtype::kF32>(reinterpret_cast<const std::byte*>(p), 0, part);
}
TQC_LANES void put(float* to, Lanes v, Part part) {
  narrow<Dtype::kF32>(v, reinterpret_cast<std::byte*>(to), 0, part);
}

// Transposes a matrix of four registers.
TQC_LANES void transpose(float32x4_t (&r)[4]) {
  const float32x4_t a = vzip1q_f32(r[0], r[2]), b = vzip2q_f32(r[0], r[2]);
  const float32x4_t c = vzip1q_f32(r[1], r[3]), d = vzip2q_f32(r[1], r[3]);
  r[0] = vzip1q_f32(a, c);
  r[1] = vzip2q_f32(a, c);
  r[2] = vzip1q_f32(b, d);
  r[3] = vzip2q_f32(b, d);
}

}  // namespace
}  // namespace tqcache::codec

#endif  // TQCACHE_NEON
