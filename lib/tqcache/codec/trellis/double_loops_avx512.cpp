// Long loops of f64 with AVX-512.

#include "tqcache/codec/kernels/rows_avx512.h"

#ifdef TQCACHE_X86

#define TQC_LANES TQC_AVX512
#define TQC_LANES_FUNCTION TQC_AVX512_FUNCTION

namespace tqcache::codec {
namespace {

constexpr unsigned kDoubles = 8;

}  // namespace
}  // namespace tqcache::codec

#include "tqcache/codec/trellis/double_lanes.h"

const tqcache::codec::DoubleLoops tqcache::codec::kDoubleLoopsAvx512 = kLoops;

#endif  // TQCACHE_X86
