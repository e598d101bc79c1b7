// codec/kernels/row_transform_lanes.h: products of small matrices, with a tile of sums in
// registers. Included by encode_*.cpp, which define the size of a tile first (kTileRows,
// kTileVectors).

namespace tqcache::codec {
namespace {

// Computes n_rows rows from `row` on, and of these the n_vectors registers of components from
// `first` on.
template <std::size_t n_rows, std::size_t n_vectors>
TQC_LANES void multiply_tile(const RowTransformTask& task, std::size_t row, std::size_t first) {
  Lanes sums[n_rows][n_vectors] = {};
  const float* in = task.in + row * task.row_stride;
  const float* matrix = task.matrix + first;
  for (std::size_t j = 0; j < task.depth; ++j) {
    Lanes factors[n_vectors];
    TQC_UNROLL for (std::size_t v = 0; v < n_vectors; ++v) {
      factors[v] = load(matrix + v * kWidth, kWhole);
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
      put(out + v * kWidth, sums[r][v], kWhole);
    }
  }
}

// Computes all rows, so that a strip of the matrix stays in the L1 cache.
template <std::size_t n_vectors>
TQC_LANES void multiply_strip(const RowTransformTask& task, std::size_t first) {
  std::size_t row = task.is_lower ? first : 0;
  for (; row + kTileRows <= task.n; row += kTileRows) {
    multiply_tile<kTileRows, n_vectors>(task, row, first);
  }
  for (; row < task.n; ++row) multiply_tile<1, n_vectors>(task, row, first);
}

}  // namespace

TQC_LANES_FUNCTION std::size_t TQC_SET::multiply_rows(const RowTransformTask& task) {
  constexpr std::size_t kStrip = kTileVectors * kWidth;
  std::size_t first = 0;
  for (; first + kStrip <= task.dim; first += kStrip) multiply_strip<kTileVectors>(task, first);
  for (; first + kWidth <= task.dim; first += kWidth) multiply_strip<1>(task, first);
  return first;
}

}  // namespace tqcache::codec
