// Products with quantized weights in AVX-512 with VNNI, which multiplies and adds in one.

#include "tqcache/model/block_kernels.h"

#if defined(__x86_64__) && !defined(TQCACHE_SCALAR)

#define TQC_AVX512_TARGET gnu::target("avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")

#include "tqcache/model/block_loops.h"
#include "tqcache/model/lanes_avx512.h"

namespace tqcache::model {
namespace {

// sums + the products of pairs of codes.
TQC_AVX512_INLINE __m512i multiply_codes(__m512i sums, __m512i codes, __m512i x) {
  return _mm512_dpwssd_epi32(sums, codes, x);
}

}  // namespace
}  // namespace tqcache::model

#include "tqcache/model/block_dots_avx512.h"

namespace tqcache::model {
namespace {

constexpr BlockKernels kBlocks = {quantize, make_dots<Avx512>(tensors::forms::All{})};

}  // namespace

const BlockKernels* avx512_vnni_blocks() {
  return avx512_blocks() != nullptr && __builtin_cpu_supports("avx512vnni") ? &kBlocks : nullptr;
}

}  // namespace tqcache::model

#else

namespace tqcache::model {

const BlockKernels* avx512_vnni_blocks() { return nullptr; }

}  // namespace tqcache::model

#endif
