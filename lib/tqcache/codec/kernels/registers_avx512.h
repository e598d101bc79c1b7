#pragma once
// codec/kernels/registers_avx512.h: AVX-512 registers for the kernels: Lanes, sixteen floats.
//
// A source file of kernels includes the header of one instruction set, then the loops written for
// all of them (lane_rotation.h, *_lanes.h).

#include "tqcache/codec/kernels/lanes.h"

#ifdef TQCACHE_X86

#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 warns of registers that its own header leaves undefined on purpose (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#include <immintrin.h>

// For functions of this instruction set; and for those that are always inlined into them.
#define TQC_LANES_FUNCTION                                                  \
  __attribute__((                                                           \
      target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi," \
             "avx512vnni")))
#define TQC_LANES TQC_LANES_FUNCTION __attribute__((always_inline)) inline
#define TQC_SET avx512

namespace tqcache::codec {
namespace {

using Lanes = __m512;
typedef std::int32_t Ints __attribute__((vector_size(sizeof(Lanes))));
typedef std::uint32_t LaneBits __attribute__((vector_size(sizeof(Lanes))));

constexpr std::size_t kWidth = 16;      // floats per register: the lanes of a line
constexpr std::size_t kPassStages = 4;  // of a Hadamard transform, in half of the registers

// The first lanes of a register: a mask.
using Part = __mmask16;
constexpr Part kWhole = 0xffff;
TQC_LANES Part part_of(std::size_t n) {
  return static_cast<__mmask16>(n >= 16 ? 0xffffu : (1u << n) - 1u);
}

TQC_LANES Lanes spread(float value) { return _mm512_set1_ps(value); }
TQC_LANES Lanes load(const float* p) { return _mm512_loadu_ps(p); }
TQC_LANES Lanes load(const float* p, Part part) { return _mm512_maskz_loadu_ps(part, p); }
TQC_LANES void store(float* p, Lanes v) { _mm512_storeu_ps(p, v); }
// Masked stores are slow on some CPUs, so whole registers are stored without a mask.
TQC_LANES void put(float* to, Lanes v, Part part) {
  if (part == kWhole) return _mm512_storeu_ps(to, v);
  _mm512_mask_storeu_ps(to, part, v);
}

// a * b + c, rounded once. Do not use it for bytes that must be the same on every CPU.
TQC_LANES Lanes fused(Lanes a, Lanes b, Lanes c) { return _mm512_fmadd_ps(a, b, c); }
TQC_LANES Lanes larger(Lanes a, Lanes b) { return _mm512_max_ps(a, b); }
TQC_LANES Lanes magnitude(Lanes v) { return _mm512_abs_ps(v); }
TQC_LANES Lanes square_root(Lanes v) { return _mm512_sqrt_ps(v); }
TQC_LANES float sum_of(Lanes v) { return _mm512_reduce_add_ps(v); }
TQC_LANES float largest_of(Lanes v) { return _mm512_reduce_max_ps(v); }

// Adds neighboring lanes of a and of b; a's results are below or between b's.
TQC_LANES __m512 add_neighbors(__m512 a, __m512 b) {
  return _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
}
TQC_LANES __m512 add_pairs(__m512 a, __m512 b) {
  const __m512d low = _mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b));
  const __m512d high = _mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b));
  return _mm512_add_ps(_mm512_castpd_ps(low), _mm512_castpd_ps(high));
}
TQC_LANES __m512 add_quads(__m512 a, __m512 b) {
  return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
}

// Lane i of the result is the sum of the lanes of sums[i].
TQC_LANES __m512 add_lanes(const __m512 (&sums)[16]) {
  __m512 fours[4];
  TQC_UNROLL for (std::size_t i = 0; i < 4; ++i) {
    // Each group of four lanes then holds sums 4i, 4i+1, 4i+2, 4i+3 of its own lanes.
    fours[i] = add_pairs(add_neighbors(sums[4 * i], sums[4 * i + 1]),
                         add_neighbors(sums[4 * i + 2], sums[4 * i + 3]));
  }
  return add_quads(add_quads(fours[0], fours[1]), add_quads(fours[2], fours[3]));
}

// Sixteen values, or the first lanes of a row that may end after them, followed by zeros.
template <Dtype kDtype>
TQC_LANES __m512 widen(const std::byte* row, std::size_t first) {
  if constexpr (kDtype == Dtype::kF32) return _mm512_loadu_ps(row + 4 * first);
  const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row + 2 * first));
  if constexpr (kDtype == Dtype::kF16) return _mm512_cvtph_ps(halves);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}
template <Dtype kDtype>
TQC_LANES __m512 widen(const std::byte* row, std::size_t first, Part lanes) {
  if constexpr (kDtype == Dtype::kF32) return _mm512_maskz_loadu_ps(lanes, row + 4 * first);
  const __m256i halves = _mm256_maskz_loadu_epi16(lanes, row + 2 * first);
  if constexpr (kDtype == Dtype::kF16) return _mm512_cvtph_ps(halves);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

// To bf16, ties to even; a NaN keeps its upper bits and is made quiet.
TQC_LANES __m256i to_bf16(__m512 v) {
  const __m512i bits = _mm512_castps_si512(v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
  const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
  const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_mov_epi32(rounded, nan, quiet), 16));
}

template <Dtype kDtype>
TQC_LANES void narrow(__m512 v, std::byte* row, std::size_t first, Part lanes) {
  if constexpr (kDtype == Dtype::kF32) {
    return put(reinterpret_cast<float*>(row) + first, v, lanes);
  }
  const __m256i halves = kDtype == Dtype::kF16
                             ? _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
                             : to_bf16(v);
  if (lanes == 0xffff) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(row + 2 * first), halves);
  } else {
    _mm256_mask_storeu_epi16(row + 2 * first, lanes, halves);
  }
}

// Transposes a matrix of sixteen registers.
TQC_LANES void transpose(__m512 (&r)[16]) {
  __m512 words[16], pairs[16];
  TQC_UNROLL for (std::size_t i = 0; i < 16; i += 2) {
    words[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
    words[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
  }
  TQC_UNROLL for (std::size_t i = 0; i < 16; i += 4) {
    TQC_UNROLL for (std::size_t j = 0; j < 2; ++j) {
      const __m512d a = _mm512_castps_pd(words[i + j]), b = _mm512_castps_pd(words[i + j + 2]);
      pairs[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
      pairs[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
    }
  }
  // Group k of four lanes of pairs[4q + j] now holds column 4k + j of rows 4q to 4q + 3.
  TQC_UNROLL for (std::size_t j = 0; j < 4; ++j) {
    const __m512 low = _mm512_shuffle_f32x4(pairs[j], pairs[4 + j], 0x88);
    const __m512 high = _mm512_shuffle_f32x4(pairs[8 + j], pairs[12 + j], 0x88);
    const __m512 odd_low = _mm512_shuffle_f32x4(pairs[j], pairs[4 + j], 0xdd);
    const __m512 odd_high = _mm512_shuffle_f32x4(pairs[8 + j], pairs[12 + j], 0xdd);
    r[j] = _mm512_shuffle_f32x4(low, high, 0x88);
    r[8 + j] = _mm512_shuffle_f32x4(low, high, 0xdd);
    r[4 + j] = _mm512_shuffle_f32x4(odd_low, odd_high, 0x88);
    r[12 + j] = _mm512_shuffle_f32x4(odd_low, odd_high, 0xdd);
  }
}

}  // namespace
}  // namespace tqcache::codec

#endif  // TQCACHE_X86
