// Long loops of f64 with AVX2.

#include "tqcache/codec/kernels/rows_avx2.h"

#ifdef TQCACHE_X86

#define TQC_LANES TQC_AVX2
#define TQC_LANES_FUNCTION TQC_AVX2_FUNCTION

namespace tqcache::codec {
namespace {

constexpr unsigned kDoubles = 4;

}  // namespace
}  // namespace tqcache::codec

#include "tqcache/codec/trellis/double_lanes.h"

const tqcache::codec::DoubleLoops tqcache::codec::kDoubleLoopsAvx2 = kLoops;

#endif  // TQCACHE_X86
