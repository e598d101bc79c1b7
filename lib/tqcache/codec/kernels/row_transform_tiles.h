#pragma once
// codec/kernels/row_transform_tiles.h: products of small matrices, once for each kind of CPU: who
// includes this says how wide a vector is (row_transform_lanes.h) and what its functions are
// compiled for.

#include <cstddef>

#include "tqcache/codec/kernels/kernel_tables.h"

namespace tqcache::codec {

// out[r][i] = sum over j of in(r, j) * matrix[j][i], where in(r, j) stands at r * row_stride + j *
// depth_stride.
struct RowTransformTask {
  const float* in = nullptr;
  std::size_t row_stride = 0;
  std::size_t depth_stride = 0;
  const float* matrix = nullptr;  // [depth, dim]
  float* out = nullptr;           // [n, dim]
  std::size_t n = 0;
  std::size_t depth = 0;
  std::size_t dim = 0;
  bool is_lower = false;  // what is above the diagonal is not wanted
};

// The components of all rows from `first` on, one after another.
void multiply_rest(const RowTransformTask& task, std::size_t first);

// They do as many components as whole vectors have, and return their number.
#ifdef TQCACHE_X86
std::size_t multiply_rows_avx2(const RowTransformTask& task);
std::size_t multiply_rows_avx512(const RowTransformTask& task);
#endif
#ifdef TQCACHE_NEON
std::size_t multiply_rows_neon(const RowTransformTask& task);
#endif

}  // namespace tqcache::codec
