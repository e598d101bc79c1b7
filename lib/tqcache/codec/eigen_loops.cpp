// The long loops of eigenvectors, for any CPU: vectors of two numbers, which nearly all have.

#define TQC_LANES inline
#define TQC_LANES_FUNCTION

namespace tqcache::codec {
namespace {

constexpr unsigned kDoubles = 2;

}  // namespace
}  // namespace tqcache::codec

#include "tqcache/codec/eigen_lanes.h"

const tqcache::codec::EigenLoops tqcache::codec::kEigenLoops = kLoops;
