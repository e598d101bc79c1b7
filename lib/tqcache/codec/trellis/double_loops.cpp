// Long loops of f64, for any CPU: vectors of two numbers, which nearly all have.

#include <string_view>

#define TQC_LANES inline
#define TQC_LANES_FUNCTION

namespace tqcache::codec {
namespace {

constexpr unsigned kDoubles = 2;

}  // namespace
}  // namespace tqcache::codec

#include "tqcache/codec/trellis/double_lanes.h"

const tqcache::codec::DoubleLoops& tqcache::codec::double_loops() {
#ifdef TQCACHE_X86
  const std::string_view name = best_kernels().name;
  if (name == "avx512") return kDoubleLoopsAvx512;
  if (name == "avx2") return kDoubleLoopsAvx2;
#endif
  return kLoops;
}
