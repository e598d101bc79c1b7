#pragma once
// codec/kernels/lanes.h: common parts of the kernels: the instruction sets of this build, their
// functions, and helpers for loops over registers.

#include <cstddef>
#include <cstdint>
#include <limits>

#include "tqcache/bytes.h"
#include "tqcache/codec/kernels/kernels.h"

#if !defined(TQCACHE_SCALAR) && defined(__x86_64__)
#define TQCACHE_X86 1
#elif !defined(TQCACHE_SCALAR) && defined(__aarch64__)
#define TQCACHE_NEON 1
#endif

// TQC_UNROLL goes before a loop with a small, fixed number of rounds: arrays of registers stay in
// registers only if every index is a constant.
#if defined(__clang__)
#define TQC_UNROLL _Pragma("unroll")
#else
#define TQC_UNROLL _Pragma("GCC unroll 32")
#endif

// The functions of one instruction set, from which kernels.cpp makes its table.
#define TQC_DECLARE_KERNELS(set)                                                                   \
  namespace tqcache::codec::set {                                                                  \
  void score_exact(const PackedBlock&, const CodeTables&, const QueryRows&, OutputRows);           \
  void score_fast(const PackedBlock&, const CodeTables&, const QueryRows&, OutputRows);            \
  void accumulate_exact(const PackedBlock&, const CodeTables&, const WeightRows&, OutputRows);     \
  void accumulate_fast(const PackedBlock&, const CodeTables&, const WeightRows&, OutputRows);      \
  void score_dense(const DenseBlock&, const QueryRows&, OutputRows);                               \
  void accumulate_dense(const DenseBlock&, const WeightRows&, OutputRows);                         \
  void add_sinusoids_exact(const SinusoidTable&, const Sinusoids&, OutputRows);                    \
  void add_sinusoids_fast(const SinusoidTable&, const Sinusoids&, OutputRows);                     \
  void center_rows(VectorRows, std::size_t n, std::size_t head_dim, const Center&,                 \
                   std::size_t first_token, float* out);                                           \
  void restore_rows(const TransformedRows&, const Center&, std::size_t first_token,                \
                    MutableVectorRows);                                                            \
  std::uint32_t encode_lines(const RotationTables&, VectorRows, std::size_t n,                     \
                             std::uint8_t* lines, std::uint16_t* scales);                          \
  void decode_lines(const RotationTables&, const std::uint8_t* lines, const std::uint16_t* scales, \
                    std::size_t n, MutableVectorRows);                                             \
  void transpose_lines(const std::uint8_t* in, std::uint8_t* out);                                 \
  std::size_t multiply_rows(const RowTransformTask&);                                              \
  extern const TrellisKernels kTrellisKernels;                                                     \
  extern const DoubleLoops kDoubleLoops;                                                           \
  }

TQC_DECLARE_KERNELS(scalar)
#ifdef TQCACHE_X86
TQC_DECLARE_KERNELS(avx2)    // for CPUs with AVX2, FMA and F16C
TQC_DECLARE_KERNELS(avx512)  // and also AVX-512 F, BW, DQ, VL, VBMI and VNNI
#endif
#ifdef TQCACHE_NEON
TQC_DECLARE_KERNELS(neon)
#endif

namespace tqcache::codec {

// Calls `call` with a number format known at run time as its template argument:
//   by_dtype(rows.dtype, [&]<Dtype kDtype>() { return widen_rows<kDtype>(rows); });
template <class Call>
auto by_dtype(Dtype dtype, const Call& call) {
  if (dtype == Dtype::kF32) return call.template operator()<Dtype::kF32>();
  if (dtype == Dtype::kF16) return call.template operator()<Dtype::kF16>();
  return call.template operator()<Dtype::kBF16>();
}

// Products with int16 factors are added in 32 bits, so the other operand is at most this in
// magnitude.
inline constexpr int kMostTimesInt16 = 8191;

// A step for factors of this largest magnitude and this sum of magnitudes, such that no factor
// exceeds 16 bits and the sum of their products does not exceed 32 bits. NaN unless the sum is
// finite.
inline float int16_step(float largest, float sum) {
  // Below 2^31 / kMostTimesInt16 for a thousand factors, with half a step each for rounding.
  constexpr float kMostSteps = 261000.0f;
  constexpr float kMost = std::numeric_limits<float>::max();
  constexpr float kLeast = std::numeric_limits<float>::min();
  if (!(sum <= kMost)) return __builtin_nanf("");
  const float of_factor = largest / 32767.0f, of_sum = sum / kMostSteps;
  const float step = of_factor > of_sum ? of_factor : of_sum;
  return step > kLeast ? step : kLeast;
}

}  // namespace tqcache::codec
