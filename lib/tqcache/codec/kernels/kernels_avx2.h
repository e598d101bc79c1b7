#pragma once
// codec/kernels/kernels_avx2.h: what the files of the AVX2 kernels share.

#include "tqcache/codec/kernels/kernel_tables.h"
#include "tqcache/codec/kernels/unroll.h"

#ifdef TQCACHE_X86

#include <immintrin.h>

#define TQC_AVX2_FUNCTION __attribute__((target("avx2,fma,f16c")))
#define TQC_AVX2 TQC_AVX2_FUNCTION __attribute__((always_inline)) inline

namespace tqcache::codec::avx2 {

// Floats of a register, and so half of a line's lanes.
inline constexpr std::size_t kWidth = 8;

// All ones in the first n of eight lanes, in all of them if n is 8 or more. Static: no other file
// may get code of this CPU's from here.
TQC_AVX2_FUNCTION static inline __m256i first_lanes(std::size_t n) {
  const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n < kWidth ? static_cast<int>(n) : 8), lanes);
}

void score_exact(const PackedBlock&, const CodeTables&, const QueryRows&, OutputRows);
void score_fast(const PackedBlock&, const CodeTables&, const QueryRows&, OutputRows);
void accumulate_exact(const PackedBlock&, const CodeTables&, const WeightRows&, OutputRows);
void accumulate_fast(const PackedBlock&, const CodeTables&, const WeightRows&, OutputRows);
void score_dense(const DenseBlock&, const QueryRows&, OutputRows);
void accumulate_dense(const DenseBlock&, const WeightRows&, OutputRows);
void add_sinusoids_exact(const SinusoidTable&, const Sinusoids&, OutputRows);
void add_sinusoids_fast(const SinusoidTable&, const Sinusoids&, OutputRows);
std::uint32_t encode_lines(const RotationTables&, VectorRows, std::size_t n, std::uint8_t* lines,
                           std::uint16_t* scales);
void decode_lines(const RotationTables&, const std::uint8_t* lines, const std::uint16_t* scales,
                  std::size_t n, MutableVectorRows);
void transpose_lines(const std::uint8_t* in, std::uint8_t* out);

}  // namespace tqcache::codec::avx2

#endif  // TQCACHE_X86
