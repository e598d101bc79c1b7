// Products of small matrices with AVX2.

#include "tqcache/codec/kernels/rows_avx2.h"

#ifdef TQCACHE_X86

#define TQC_LANES TQC_AVX2

namespace tqcache::codec {
namespace {

constexpr std::size_t kWidth = 8;
constexpr std::size_t kTileRows = 4;
constexpr std::size_t kTileVectors = 2;

}  // namespace
}  // namespace tqcache::codec

#include "tqcache/codec/kernels/row_transform_lanes.h"

TQC_AVX2_FUNCTION std::size_t tqcache::codec::multiply_rows_avx2(const RowTransformTask& task) {
  return multiply_whole(task);
}

#endif  // TQCACHE_X86
