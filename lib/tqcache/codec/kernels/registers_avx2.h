#pragma once
// codec/kernels/registers_avx2.h: AVX2 registers for the kernels: Lanes, eight floats.
//
// A source file of kernels includes the header of one instruction set, then the loops written for
// all of them (lane_rotation.h, *_lanes.h).

#include "tqcache/codec/kernels/lanes.h"

#ifdef TQCACHE_X86

#include <immintrin.h>

// For functions of this instruction set; and for those that are always inlined into them.
#define TQC_LANES_FUNCTION __attribute__((target("avx2,fma,f16c")))
#define TQC_LANES TQC_LANES_FUNCTION __attribute__((always_inline)) inline
#define TQC_SET avx2

namespace tqcache::codec {
namespace {

using Lanes = __m256;
typedef std::int32_t Ints __attribute__((vector_size(sizeof(Lanes))));
typedef std::uint32_t LaneBits __attribute__((vector_size(sizeof(Lanes))));

constexpr std::size_t kWidth = 8;       // floats per register: half the lanes of a line
constexpr std::size_t kPassStages = 3;  // of a Hadamard transform, in half of the registers

// All ones in the first n of eight lanes, in all of them if n is 8 or more.
TQC_LANES __m256i first_lanes(std::size_t n) {
  const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n < kWidth ? static_cast<int>(n) : 8), lanes);
}

// The first lanes of a register: their number; kWidth or more means all.
using Part = std::size_t;
constexpr Part kWhole = kWidth;
TQC_LANES Part part_of(std::size_t n) { return n; }

TQC_LANES Lanes spread(float value) { return _mm256_set1_ps(value); }
TQC_LANES Lanes load(const float* p) { return _mm256_loadu_ps(p); }
TQC_LANES Lanes load(const float* p, Part part) {
  return part >= kWidth ? _mm256_loadu_ps(p) : _mm256_maskload_ps(p, first_lanes(part));
}
TQC_LANES void store(float* p, Lanes v) { _mm256_storeu_ps(p, v); }
TQC_LANES void put(float* to, Lanes v, Part part) {
  if (part >= kWidth) return _mm256_storeu_ps(to, v);
  _mm256_maskstore_ps(to, first_lanes(part), v);
}

// a * b + c, rounded once. Do not use it for bytes that must be the same on every CPU.
TQC_LANES Lanes fused(Lanes a, Lanes b, Lanes c) { return _mm256_fmadd_ps(a, b, c); }
TQC_LANES Lanes larger(Lanes a, Lanes b) { return _mm256_max_ps(a, b); }
TQC_LANES Lanes magnitude(Lanes v) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), v); }
TQC_LANES Lanes square_root(Lanes v) { return _mm256_sqrt_ps(v); }

TQC_LANES float sum_of(Lanes v) {
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  four = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}
TQC_LANES float largest_of(Lanes v) {
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  four = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}

// Lane i of the result is the sum of the lanes of sums[i].
TQC_LANES Lanes add_lanes(const Lanes (&sums)[8]) {
  const __m256 low =
      _mm256_hadd_ps(_mm256_hadd_ps(sums[0], sums[1]), _mm256_hadd_ps(sums[2], sums[3]));
  const __m256 high =
      _mm256_hadd_ps(_mm256_hadd_ps(sums[4], sums[5]), _mm256_hadd_ps(sums[6], sums[7]));
  return _mm256_add_ps(_mm256_permute2f128_ps(low, high, 0x20),
                       _mm256_permute2f128_ps(low, high, 0x31));
}

// Eight values, all of them within the row.
template <Dtype kDtype>
TQC_LANES __m256 widen(const std::byte* row, std::size_t first) {
  if constexpr (kDtype == Dtype::kF32) {
    return _mm256_loadu_ps(reinterpret_cast<const float*>(row) + first);
  }
  const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(row + 2 * first));
  if constexpr (kDtype == Dtype::kF16) return _mm256_cvtph_ps(halves);
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}

// The same if n (0 to 7) values are left; the others are zero.
template <Dtype kDtype>
TQC_LANES __m256 widen_tail(const std::byte* row, std::size_t first, std::size_t n) {
  constexpr std::size_t kSize = kDtype == Dtype::kF32 ? 4 : 2;
  alignas(32) std::byte padded[kWidth * 4] = {};
  for (std::size_t i = 0; i < n * kSize; ++i) padded[i] = row[first * kSize + i];
  return widen<kDtype>(padded, 0);
}

// Eight values, or the n that are left.
template <Dtype kDtype>
TQC_LANES __m256 widen(const std::byte* row, std::size_t first, std::size_t n) {
  return n >= kWidth ? widen<kDtype>(row, first) : widen_tail<kDtype>(row, first, n);
}

// To bf16, ties to even; a NaN keeps its upper bits and is made quiet.
TQC_LANES __m128i to_bf16(__m256 v) {
  const __m256i bits = _mm256_castps_si256(v);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
  const __m256i upper = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
  const __m256i packed = _mm256_packus_epi32(upper, upper);
  return _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08));
}

template <Dtype kDtype>
TQC_LANES void narrow(__m256 v, std::byte* row, std::size_t first, std::size_t n) {
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

// Transposes a matrix of eight registers.
TQC_LANES void transpose(__m256 (&r)[8]) {
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

}  // namespace
}  // namespace tqcache::codec

#endif  // TQCACHE_X86
