#pragma once
// codec/kernels/rows_avx512.h: rows of f32, f16 or bf16 in and out of registers of AVX-512.

#include "tqcache/codec/kernels/kernels_avx512.h"

#ifdef TQCACHE_X86

namespace tqcache::codec::avx512 {

// The first lanes of what may end behind them; the others are zero.
template <Dtype kDtype>
TQC_AVX512 __m512 widen(const std::byte* row, std::size_t first, __mmask16 lanes) {
  if constexpr (kDtype == Dtype::kF32) return _mm512_maskz_loadu_ps(lanes, row + 4 * first);
  const __m256i halves = _mm256_maskz_loadu_epi16(lanes, row + 2 * first);
  if constexpr (kDtype == Dtype::kF16) return _mm512_cvtph_ps(halves);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

// To bf16, ties to even; a NaN keeps its upper bits and is made quiet.
TQC_AVX512 __m256i to_bf16(__m512 v) {
  const __m512i bits = _mm512_castps_si512(v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
  const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
  const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_mov_epi32(rounded, nan, quiet), 16));
}

// Masked stores are slow on some CPUs, so whole registers go without.
TQC_AVX512 void put(float* to, __m512 v, __mmask16 lanes) {
  if (lanes == 0xffff) {
    _mm512_storeu_ps(to, v);
  } else {
    _mm512_mask_storeu_ps(to, lanes, v);
  }
}

template <Dtype kDtype>
TQC_AVX512 void narrow(__m512 v, std::byte* row, std::size_t first, __mmask16 lanes) {
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

// Rows and columns of sixteen registers change their parts.
TQC_AVX512 void transpose(__m512 (&r)[16]) {
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
  // pairs[4q + j] now has, in each quad k of lanes, column 4k + j of rows 4q to 4q + 3.
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

void center_rows(VectorRows x, std::size_t n, std::size_t head_dim, const Center&,
                 std::size_t first_token, float* out);
void restore_rows(const TransformedRows&, const Center&, std::size_t first_token,
                  MutableVectorRows out);

}  // namespace tqcache::codec::avx512

#endif  // TQCACHE_X86
