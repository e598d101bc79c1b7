#pragma once
// model/linear/products.h: products of f32 matrices, of the accuracy of f32 or a stated one.
//
// A factor is packed first, so that one which meets several others is packed once:
//
//   const MatrixProducts& products = best_products();
//   AlignedBytes left(products.size(n, k, 3)), right(products.size(n_rows, k, 3));
//   products.pack_left({x.data(), k}, n, k, 1.0f, 3, left.data());
//   products.pack_right({w.data(), k}, n_rows, k, 3, right.data());
//   products.multiply({left.data(), k, 3}, {right.data(), k, 3}, n, n_rows, k, y.data(), n_rows);
//
// Two kinds of processors do it in two ways. With AMX (model/linear/tiles.h) numbers are split into
// `n_parts` parts of bf16, and the order of additions is that of the processor: the same bits for
// any number of threads, and on every processor with AMX. Everywhere else a value is one chain of
// fused multiply-adds over its terms from the first to the last, whatever `n_parts` is: the same
// bits for any number of threads and on any CPU.
//
// No BLAS is used: docs/explain/design.md has the reasons, docs/benchmarks.md the speeds.

#include <cstddef>
#include <cstdint>

#include "tqcache/bytes.h"
#include "tqcache/codec/kernels/kernels.h"
#include "tqcache/model/linear/chunk_kernels.h"

namespace tqcache::model {

// A matrix in memory: row r starts at data + r * stride.
struct ConstRows {
  const float* data = nullptr;
  std::int64_t stride = 0;
};
struct Rows {
  float* data = nullptr;
  std::int64_t stride = 0;
};

// Rows of either factor that are multiplied at a time. A view may start at a multiple of it.
inline constexpr std::size_t kProductRows = 32;

// A packed factor, or a part of it.
struct PackedView {
  const std::byte* data = nullptr;
  std::size_t depth = 0;    // with which it was packed
  std::size_t n_parts = 0;  // likewise
};

struct MatrixProducts {
  const char* name;

  // Whether a left factor is multiplied where it lies: its rows, `depth` apart, need no
  // packing.
  bool takes_rows;

  // Bytes of a packed factor.
  std::size_t (*size)(std::size_t n_rows, std::size_t depth, std::size_t n_parts);

  // Packs factor * x, the left factor of a product. Shapes: x [n, depth]; to [size()].
  void (*pack_left)(ConstRows x, std::size_t n, std::size_t depth, float factor,
                    std::size_t n_parts, std::byte* to);

  // Packs the right factor, of which a product takes the transpose. Shapes: b [n, depth].
  void (*pack_right)(ConstRows b, std::size_t n, std::size_t depth, std::size_t n_parts,
                     std::byte* to);

  // Packs a right factor of which a product takes no transpose. Shapes: b [depth, n].
  void (*pack_columns)(ConstRows b, std::size_t n, std::size_t depth, std::size_t n_parts,
                       std::byte* to);

  // Packs quantized weights in two parts: sixteen rows of a right factor, the other sixteen
  // follow. nullptr where model/linear/chunk_kernels.h multiplies them as integers.
  void (*pack_panel)(const PanelView& panel, std::byte* to);

  // Bytes from the start of a packed factor to row `row` and value `at`, multiples of 32 both.
  std::size_t (*left_place)(std::size_t row, std::size_t at, std::size_t depth,
                            std::size_t n_parts);
  std::size_t (*right_place)(std::size_t row, std::size_t at, std::size_t depth,
                             std::size_t n_parts);

  // y = a b^T, over the first `depth` values of both.
  // Shapes:   a [m, a.depth], b [n, b.depth]; y [m, n], rows `stride` apart.
  // Requires: in AMX, the parts of a and b are a row of the table in tiles.h.
  void (*multiply)(const PackedView& a, const PackedView& b, std::size_t m, std::size_t n,
                   std::size_t depth, float* y, std::size_t stride);
};

inline PackedView left_from(const MatrixProducts& products, const PackedView& all, std::size_t row,
                            std::size_t at) {
  return {all.data + products.left_place(row, at, all.depth, all.n_parts), all.depth, all.n_parts};
}
inline PackedView right_from(const MatrixProducts& products, const PackedView& all, std::size_t row,
                             std::size_t at) {
  return {all.data + products.right_place(row, at, all.depth, all.n_parts), all.depth, all.n_parts};
}

// The products without AMX, with the kernels of an instruction set; nullptr if this CPU lacks it.
// The scalar chains take a function call per term where a CPU has no fused multiply-add.
const MatrixProducts* products_of(codec::Isa isa);

// Those in AMX where best_tiles() has them, otherwise those of codec::best_kernels().
const MatrixProducts& best_products();

// y = a b^T and y = a b, never in AMX: the same bits on any CPU. For matrices that meet once.
// Shapes:  a [m, k], b [n, k] or [k, n], y [m, n].
// Threads: safe to call concurrently.
void multiply_transposed(std::int64_t m, std::int64_t n, std::int64_t k, ConstRows a, ConstRows b,
                         Rows y);
void multiply_matrices(std::int64_t m, std::int64_t n, std::int64_t k, ConstRows a, ConstRows b,
                       Rows y);

}  // namespace tqcache::model
