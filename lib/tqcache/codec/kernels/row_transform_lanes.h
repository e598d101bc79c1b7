// codec/kernels/row_transform_lanes.h: the loops of row_transform.h over vectors of floats.
// Included by the files of the CPUs, which say before how many floats a vector has (kWidth), how
// large a tile of sums fits their registers (kTileRows, kTileVectors), and what functions are
// compiled for (TQC_LANES).

#include <cstring>

#include "tqcache/codec/kernels/row_transform_tiles.h"
#include "tqcache/codec/kernels/unroll.h"

namespace tqcache::codec {
namespace {

typedef float RowLanes __attribute__((vector_size(kWidth * sizeof(float))));

// One vector at a time: arrays that are copied whole do not stay in registers.
TQC_LANES RowLanes load_lanes(const float* from) {
  RowLanes v;
  std::memcpy(&v, from, sizeof(v));
  return v;
}

// n_rows rows from `row` on, of which the components from `first` on in n_vectors vectors.
template <std::size_t n_rows, std::size_t n_vectors>
TQC_LANES void multiply_tile(const RowTransformTask& task, std::size_t row, std::size_t first) {
  RowLanes sums[n_rows][n_vectors] = {};
  const float* in = task.in + row * task.row_stride;
  const float* matrix = task.matrix + first;
  for (std::size_t j = 0; j < task.depth; ++j) {
    RowLanes factors[n_vectors];
    TQC_UNROLL for (std::size_t v = 0; v < n_vectors; ++v) {
      factors[v] = load_lanes(matrix + v * kWidth);
    }
    TQC_UNROLL for (std::size_t r = 0; r < n_rows; ++r) {
      const float x = in[r * task.row_stride];
      TQC_UNROLL for (std::size_t v = 0; v < n_vectors; ++v) sums[r][v] += factors[v] * x;
    }
    in += task.depth_stride;
    matrix += task.dim;
  }
  TQC_UNROLL for (std::size_t r = 0; r < n_rows; ++r) {
    float* const out = task.out + (row + r) * task.dim + first;
    TQC_UNROLL for (std::size_t v = 0; v < n_vectors; ++v) {
      std::memcpy(out + v * kWidth, &sums[r][v], sizeof(RowLanes));
    }
  }
}

// All rows, so that a strip of the matrix stays in the nearest memory.
template <std::size_t n_vectors>
TQC_LANES void multiply_strip(const RowTransformTask& task, std::size_t first) {
  std::size_t row = task.is_lower ? first : 0;
  for (; row + kTileRows <= task.n; row += kTileRows) {
    multiply_tile<kTileRows, n_vectors>(task, row, first);
  }
  for (; row < task.n; ++row) multiply_tile<1, n_vectors>(task, row, first);
}

TQC_LANES std::size_t multiply_whole(const RowTransformTask& task) {
  constexpr std::size_t kStrip = kTileVectors * kWidth;
  std::size_t first = 0;
  for (; first + kStrip <= task.dim; first += kStrip) multiply_strip<kTileVectors>(task, first);
  for (; first + kWidth <= task.dim; first += kWidth) multiply_strip<1>(task, first);
  return first;
}

}  // namespace
}  // namespace tqcache::codec
