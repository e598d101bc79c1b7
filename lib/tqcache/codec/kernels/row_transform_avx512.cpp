// Products of small matrices with AVX-512.

#include "tqcache/codec/kernels/rows_avx512.h"

#ifdef TQCACHE_X86

#define TQC_LANES TQC_AVX512

namespace tqcache::codec {
namespace {

constexpr std::size_t kWidth = 16;
constexpr std::size_t kTileRows = 8;
constexpr std::size_t kTileVectors = 2;

}  // namespace
}  // namespace tqcache::codec

#include "tqcache/codec/kernels/row_transform_lanes.h"

TQC_AVX512_FUNCTION std::size_t tqcache::codec::multiply_rows_avx512(const RowTransformTask& task) {
  return multiply_whole(task);
}

#endif  // TQCACHE_X86
