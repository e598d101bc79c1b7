// The long loops of eigenvectors with AVX2.

#include "tqcache/codec/rows_avx2.h"

#ifdef TQCACHE_X86

#define TQC_LANES TQC_AVX2
#define TQC_LANES_FUNCTION TQC_AVX2_FUNCTION

namespace tqcache::codec {
namespace {

constexpr unsigned kDoubles = 4;

}  // namespace
}  // namespace tqcache::codec

#include "tqcache/codec/eigen_lanes.h"

const tqcache::codec::EigenLoops tqcache::codec::kEigenLoopsAvx2 = kLoops;

#endif  // TQCACHE_X86
