// Products with quantized weights in AVX-512 without VNNI.

#include "tqcache/model/block_kernels.h"

#if defined(__x86_64__) && !defined(TQCACHE_SCALAR)

#include "tqcache/model/block_loops.h"
#include "tqcache/model/lanes_avx512.h"

namespace tqcache::model {
namespace {

// sums + the products of pairs of codes.
TQC_AVX512_INLINE __m512i multiply_codes(__m512i sums, __m512i codes, __m512i x) {
  return _mm512_add_epi32(sums, _mm512_madd_epi16(codes, x));
}

}  // namespace
}  // namespace tqcache::model

#include "tqcache/model/block_dots_avx512.h"

namespace tqcache::model {
namespace {

constexpr BlockKernels kBlocks = {quantize, make_dots<Avx512>(tensors::forms::All{})};

}  // namespace

const BlockKernels* avx512_blocks() {
  const bool is_there = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  return is_there ? &kBlocks : nullptr;
}

}  // namespace tqcache::model

#else

namespace tqcache::model {

const BlockKernels* avx512_blocks() { return nullptr; }

}  // namespace tqcache::model

#endif
