#pragma once
// codec/row_map_tiles.h: rows times a matrix, once for each kind of CPU: who includes this says
// how wide a vector is (row_map_lanes.h) and what its functions are compiled for.

#include <cstddef>

#include "tqcache/codec/kernel_tables.h"

namespace tqcache::codec {

struct RowMapTask {
  const float* in = nullptr;      // [n, dim]
  const float* matrix = nullptr;  // [dim, dim]
  float* out = nullptr;           // [n, dim]
  std::size_t n = 0;
  std::size_t dim = 0;
};

// The components of all rows from `first` on, one after another.
void multiply_rest(const RowMapTask& task, std::size_t first);

#ifdef TQCACHE_X86
// They do as many components as whole vectors have, and return their number.
std::size_t multiply_rows_avx2(const RowMapTask& task);
std::size_t multiply_rows_avx512(const RowMapTask& task);
#endif

}  // namespace tqcache::codec
