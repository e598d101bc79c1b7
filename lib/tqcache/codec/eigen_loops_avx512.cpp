// The long loops of eigenvectors with AVX-512.

#include "tqcache/codec/rows_avx512.h"

#ifdef TQCACHE_X86

#define TQC_LANES TQC_AVX512
#define TQC_LANES_FUNCTION TQC_AVX512_FUNCTION

namespace tqcache::codec {
namespace {

constexpr unsigned kDoubles = 8;

}  // namespace
}  // namespace tqcache::codec

#include "tqcache/codec/eigen_lanes.h"

const tqcache::codec::EigenLoops tqcache::codec::kEigenLoopsAvx512 = kLoops;

#endif  // TQCACHE_X86
