// codec/row_map_lanes.h: the loops of row_map.h over vectors of kWidth floats. Included by the
// files of the CPUs, which define TQC_LANES (what functions are compiled for) and kWidth before.

#include <cstring>

#include "tqcache/codec/row_map_tiles.h"

namespace tqcache::codec {
namespace {

typedef float RowLanes __attribute__((vector_size(kWidth * sizeof(float))));

constexpr std::size_t kTileRows = 4;  // that share the loads of the matrix
constexpr std::size_t kTileVectors = 2;

// kTileRows rows, or fewer, of which the components from `first` on in n_vectors vectors.
template <std::size_t n_rows, std::size_t n_vectors>
TQC_LANES void multiply_tile(const RowMapTask& task, std::size_t row, std::size_t first) {
  RowLanes sums[n_rows][n_vectors] = {};
  const float* const in = task.in + row * task.dim;
  for (std::size_t j = 0; j < task.dim; ++j) {
    RowLanes factors[n_vectors];
    std::memcpy(factors, task.matrix + j * task.dim + first, sizeof(factors));
    for (std::size_t r = 0; r < n_rows; ++r) {
      const float x = in[r * task.dim + j];
      for (std::size_t v = 0; v < n_vectors; ++v) sums[r][v] += factors[v] * x;
    }
  }
  for (std::size_t r = 0; r < n_rows; ++r) {
    std::memcpy(task.out + (row + r) * task.dim + first, sums[r], sizeof(sums[r]));
  }
}

template <std::size_t n_rows>
TQC_LANES std::size_t multiply_all(const RowMapTask& task, std::size_t row) {
  std::size_t first = 0;
  for (; first + kTileVectors * kWidth <= task.dim; first += kTileVectors * kWidth) {
    multiply_tile<n_rows, kTileVectors>(task, row, first);
  }
  for (; first + kWidth <= task.dim; first += kWidth) multiply_tile<n_rows, 1>(task, row, first);
  return first;
}

TQC_LANES std::size_t multiply_whole(const RowMapTask& task) {
  std::size_t done = 0;
  std::size_t row = 0;
  for (; row + kTileRows <= task.n; row += kTileRows) done = multiply_all<kTileRows>(task, row);
  for (; row < task.n; ++row) done = multiply_all<1>(task, row);
  return done;
}

}  // namespace
}  // namespace tqcache::codec
