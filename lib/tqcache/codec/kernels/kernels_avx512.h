#pragma once
// codec/kernels/kernels_avx512.h: what the files of the AVX-512 kernels share.

#include "tqcache/codec/kernels/kernel_tables.h"
#include "tqcache/codec/kernels/unroll.h"

#ifdef TQCACHE_X86

#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 warns of the undefined registers that its own header makes on purpose (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#include <immintrin.h>

#define TQC_AVX512_FUNCTION                                                 \
  __attribute__((                                                           \
      target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi," \
             "avx512vnni")))
#define TQC_AVX512 TQC_AVX512_FUNCTION __attribute__((always_inline)) inline

namespace tqcache::codec::avx512 {

// 0 to 63.
inline constexpr std::uint8_t kIota[64] = {
    0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21,
    22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43,
    44, 45, 46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63};

// The first n lanes of sixteen, all of them if n is 16 or more. Static: no other file may get
// code of this CPU's from here.
TQC_AVX512_FUNCTION static inline __mmask16 first_lanes(std::size_t n) {
  return static_cast<__mmask16>(n >= 16 ? 0xffffu : (1u << n) - 1u);
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

}  // namespace tqcache::codec::avx512

#endif  // TQCACHE_X86
