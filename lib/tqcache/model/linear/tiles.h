#pragma once
// model/linear/tiles.h: products of f32 matrices in AMX, for processors that have it.
//
// AMX multiplies tiles of bf16 and adds up in f32. So a number is split into parts that are bf16
// and whose sum it is: the number rounded to 8 bits, what remains rounded likewise, and the rest. A
// product adds the products of the parts, without the smallest:
//
//   parts of a, of b   products   loses at most, relative to |a b|
//   3, 3               6          2^-23  as f32 weights, and decoded keys and values, need
//   3, 2               5          2^-23  if b has 16 bits or fewer: f16
//   3, 1               3          2^-23  if b has 8 bits or fewer: bf16
//   2, 2               3          2^-15  quantized weights, which decode steps multiply by x of
//                                        16 bits with an error of 2^-16 of the largest in a group
//
//   if (const TileKernels* tiles = best_tiles()) {
//     tiles->split_left({x.data(), k}, n, k, 1.0f, 3, left.data());
//     tiles->split_right({w.data(), k}, n_rows, k, 3, right.data());
//     tiles->multiply({left.data(), k, 3}, {right.data(), k, 3}, n, n_rows, k, y.data(), n_rows);
//   }
//
// The order of additions is that of the processor: the same bits for any number of threads, and on
// every processor with AMX, but not those of other instruction sets.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tqcache/bytes.h"
#include "tqcache/model/linear/blas.h"
#include "tqcache/model/linear/chunk_kernels.h"

namespace tqcache::model {

inline constexpr std::size_t kTileRows = 16;   // of the left factor; columns of the right one
inline constexpr std::size_t kTileDepth = 32;  // values of each
inline constexpr std::size_t kTileParts = kTileRows * kTileDepth;
inline constexpr std::size_t kTilesAtOnce = 2;  // a kernel multiplies two by two

using Parts = std::vector<std::uint16_t, AlignedAllocator<std::uint16_t>>;  // bf16

// Numbers of bf16 in a split factor: rows are filled up to whole pairs of tiles, depth to tiles.
constexpr std::size_t split_size(std::size_t n_rows, std::size_t depth, std::size_t n_parts) {
  constexpr std::size_t kRows = kTilesAtOnce * kTileRows;
  return (n_rows + kRows - 1) / kRows * kRows * ((depth + kTileDepth - 1) / kTileDepth) *
         kTileDepth * n_parts;
}

// A factor, from the first row of a pair of tiles and the first value of a tile on.
struct SplitView {
  const std::uint16_t* data = nullptr;
  std::size_t depth = 0;  // with which it was split
  std::size_t n_parts = 0;
};

// The view from row `row` and value `at` on, multiples of 32 both.
constexpr SplitView split_from(const SplitView& all, std::size_t row, std::size_t at) {
  return {all.data + split_size(row, all.depth, all.n_parts) + at * kTileRows * all.n_parts,
          all.depth, all.n_parts};
}

struct TileKernels {
  // Splits factor * x, the left factor of a product. Shapes: x [n, depth]; to [split_size].
  void (*split_left)(ConstRows x, std::size_t n, std::size_t depth, float factor,
                     std::size_t n_parts, std::uint16_t* to);

  // Splits the right factor, of which a product takes the transpose. Shapes: b [n, depth].
  void (*split_right)(ConstRows b, std::size_t n, std::size_t depth, std::size_t n_parts,
                      std::uint16_t* to);

  // Splits a right factor of which a product takes no transpose. Shapes: b [depth, n].
  void (*split_columns)(ConstRows b, std::size_t n, std::size_t depth, std::size_t n_parts,
                        std::uint16_t* to);

  // Splits the weights of a panel into two parts: sixteen rows of a right factor. The other rows of
  // a pair of tiles follow, `n_parts` being 2.
  void (*split_panel)(const PanelView& panel, std::uint16_t* to);

  // y = a b^T, over the first `depth` values of both.
  // Shapes:   a [m, a.depth], b [n, b.depth]; y [m, n], rows `stride` apart.
  // Requires: the parts of a and b are a row of the table above.
  void (*multiply)(const SplitView& a, const SplitView& b, std::size_t m, std::size_t n,
                   std::size_t depth, float* y, std::size_t stride);
};

// The kernels if this processor has AMX, the system lets this process use it, and the kernels are
// those for AVX-512 (best_kernels()); otherwise nullptr. TQCACHE_ISA=avx512 selects the kernels
// without AMX. Asks the system at the first call, for the whole process.
const TileKernels* best_tiles();

// The choice of best_tiles(). `wanted`: the value of TQCACHE_ISA, nullptr if unset.
bool takes_tiles(const InstructionSets& sets, codec::Isa isa, const char* wanted);

}  // namespace tqcache::model
