#pragma once
// codec/kernels/rows_avx2.h: rows of f32, f16 or bf16 in and out of registers of AVX2.

#include "tqcache/codec/kernels/kernels_avx2.h"

#ifdef TQCACHE_X86

namespace tqcache::codec::avx2 {

// Eight values, none of them beyond the end of the row.
template <Dtype kDtype>
TQC_AVX2 __m256 widen(const std::byte* row, std::size_t first) {
  if constexpr (kDtype == Dtype::kF32) {
    return _mm256_loadu_ps(reinterpret_cast<const float*>(row) + first);
  }
  const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(row + 2 * first));
  if constexpr (kDtype == Dtype::kF16) return _mm256_cvtph_ps(halves);
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}

// The same where n (0 to 7) values are left; the others are zero.
template <Dtype kDtype>
TQC_AVX2 __m256 widen_tail(const std::byte* row, std::size_t first, std::size_t n) {
  constexpr std::size_t kSize = kDtype == Dtype::kF32 ? 4 : 2;
  alignas(32) std::byte padded[kWidth * 4] = {};
  for (std::size_t i = 0; i < n * kSize; ++i) padded[i] = row[first * kSize + i];
  return widen<kDtype>(padded, 0);
}

// Eight values, or the n that are left.
template <Dtype kDtype>
TQC_AVX2 __m256 widen(const std::byte* row, std::size_t first, std::size_t n) {
  return n >= kWidth ? widen<kDtype>(row, first) : widen_tail<kDtype>(row, first, n);
}

// To bf16, ties to even; a NaN keeps its upper bits and is made quiet.
TQC_AVX2 __m128i to_bf16(__m256 v) {
  const __m256i bits = _mm256_castps_si256(v);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
  const __m256i words = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
  const __m256i packed = _mm256_packus_epi32(words, words);
  return _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08));
}

// The first n of eight values.
TQC_AVX2 void put(float* to, __m256 v, std::size_t n) {
  if (n >= kWidth) return _mm256_storeu_ps(to, v);
  _mm256_maskstore_ps(to, first_lanes(n), v);
}

template <Dtype kDtype>
TQC_AVX2 void narrow(__m256 v, std::byte* row, std::size_t first, std::size_t n) {
  if constexpr (kDtype == Dtype::kF32) {
    return put(reinterpret_cast<float*>(row) + first, v, n);
  }
  __m128i halves;
  if constexpr (kDtype == Dtype::kF16) {
    halves = _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  } else {
    halves = to_bf16(v);
  }
  if (n >= kWidth) return _mm_storeu_si128(reinterpret_cast<__m128i*>(row + 2 * first), halves);
  alignas(16) std::byte padded[2 * kWidth];
  _mm_store_si128(reinterpret_cast<__m128i*>(padded), halves);
  for (std::size_t i = 0; i < 2 * n; ++i) row[2 * first + i] = padded[i];
}

// Rows and columns of eight registers change their parts.
TQC_AVX2 void transpose(__m256 (&r)[8]) {
  __m256 words[8], pairs[8];
  TQC_UNROLL for (std::size_t i = 0; i < 8; i += 2) {
    words[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
    words[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
  }
  TQC_UNROLL for (std::size_t i = 0; i < 8; i += 4) {
    TQC_UNROLL for (std::size_t j = 0; j < 2; ++j) {
      pairs[i + 2 * j] = _mm256_shuffle_ps(words[i + j], words[i + j + 2], 0x44);
      pairs[i + 2 * j + 1] = _mm256_shuffle_ps(words[i + j], words[i + j + 2], 0xee);
    }
  }
  TQC_UNROLL for (std::size_t j = 0; j < 4; ++j) {
    r[j] = _mm256_permute2f128_ps(pairs[j], pairs[4 + j], 0x20);
    r[4 + j] = _mm256_permute2f128_ps(pairs[j], pairs[4 + j], 0x31);
  }
}

void center_rows(VectorRows x, std::size_t n, std::size_t head_dim, const Center&,
                 std::size_t first_token, float* out);
void restore_rows(const TransformedRows&, const Center&, std::size_t first_token,
                  MutableVectorRows out);

}  // namespace tqcache::codec::avx2

#endif  // TQCACHE_X86
