// Products of small matrices with NEON.

#include "tqcache/codec/kernels/rows_neon.h"

#ifdef TQCACHE_NEON

#define TQC_LANES __attribute__((always_inline)) inline

namespace tqcache::codec {
namespace {

using neon::kWidth;
constexpr std::size_t kTileRows = 4;
constexpr std::size_t kTileVectors = 4;

}  // namespace
}  // namespace tqcache::codec

#include "tqcache/codec/kernels/row_transform_lanes.h"

std::size_t tqcache::codec::multiply_rows_neon(const RowTransformTask& task) {
  return multiply_whole(task);
}

#endif  // TQCACHE_NEON
