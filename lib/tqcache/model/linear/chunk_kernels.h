#pragma once
// model/linear/chunk_kernels.h: products of several vectors with quantized weights in GGML blocks.
//
// For the chunks of a prompt, where each weight meets many vectors: sixteen rows of weights are
// unpacked to a panel of signed bytes once, and multiplied by all of them.
//
// The vectors are those of model/linear/block_kernels.h, in 16 bits, and so are the integer sums.
// The order is another: a product adds one term per run of weights that share a scale (16 or 32),
// from the first to the last,
//
//   (f32(the sum of (code - offset) * x's code) * scale
//    + f32(the sum of x's codes) * -minimum) * x's scale
//
// where the sums are exact, every other operation is rounded once, and the second line is left out
// in types without a minimum. The scalar functions define it; the others give the same bits.

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tqcache/bytes.h"
#include "tqcache/model/linear/block_kernels.h"
#include "tqcache/tensors/block_layouts.h"

namespace tqcache::model {

inline constexpr std::size_t kPanelRows = 16;
inline constexpr std::size_t kQuad = 4;                     // neighboring values of a row
inline constexpr std::size_t kGroupQuads = kGroup / kQuad;  // 8

// Rows of weights, unpacked. Rows that are absent are zero.
struct PanelView {
  const std::int8_t* codes = nullptr;  // [n_groups, 8 quads, 16 rows, 4], less their offset
  const float* scales = nullptr;       // [n_runs, 16 rows]
  const float* minima = nullptr;       // [n_runs, 16 rows]; nullptr in types without minimum
  std::size_t run = kGroup;            // values that share a scale: 16 or 32
  std::size_t n_groups = 0;
  std::size_t n_rows = kPanelRows;  // present: 1 to 16
};

// Vectors, quantized one by one. The sums of a group's codes are negated: over the first half, over
// the second half, and over both.
struct ChunkView {
  const std::int16_t* codes = nullptr;  // [n, row_codes], each row as in QuantizedView
  std::size_t row_codes = 0;
  const float* scales = nullptr;  // [n, row_groups]
  std::size_t row_groups = 0;
  const float* minus_sums = nullptr;  // [n, row_groups, 3]
  std::size_t n = 0;
};

struct ChunkKernels {
  // Unpacks rows to a panel, whose `minima` are used only if the type has one.
  // Shapes:   rows [n_rows, n_groups, 32] of the type, at any alignment; the others as in
  // PanelView. Requires: GGML blocks of 256 are complete.
  using Pack = void(const std::byte* rows, std::size_t n_rows, std::size_t n_groups,
                    std::int8_t* codes, float* scales, float* minima);
  std::array<Pack*, tensors::layouts::All::kSize> pack;  // as tensors::block_types()

  // Shapes: y [x.n, panel.n_rows], rows `stride` apart.
  void (*multiply)(const PanelView& panel, const ChunkView& x, float* y, std::size_t stride);
};

template <class Maker, class... Layout>
constexpr auto make_packs(tensors::layouts::List<Layout...>) {
  return std::array<ChunkKernels::Pack*, sizeof...(Layout)>{Maker::template pack<Layout>()...};
}

extern const ChunkKernels kScalarChunks;

// Those of the other instruction sets that this build has; Kernels::chunks selects.
extern const ChunkKernels kAvx2Chunks, kAvx2VnniChunks, kAvx512Chunks, kNeonChunks, kNeonDotChunks;

// Whether this ARM CPU has the instructions of kNeonDotChunks (FEAT_DotProd).
bool has_dot_products();

// How the weights of a type share scales. Shapes: as tensors::block_types().
struct RunShape {
  std::size_t run = kGroup;
  bool has_minimum = false;
};
const std::array<RunShape, tensors::layouts::All::kSize>& run_shapes();

// The vectors of a chunk, quantized.
class QuantizedChunk {
 public:
  // Makes room. Requires: n_cols is a multiple of 32.
  QuantizedChunk(std::size_t n, std::size_t n_cols);

  // Quantizes vector i. Shapes: x [n_cols]. Threads: different vectors at the same time.
  void set(std::size_t i, const float* x, const AllBlockKernels& kernels);

  ChunkView view() const;

 private:
  std::size_t n_;
  std::size_t n_groups_;
  std::size_t n_steps_;
  std::vector<std::int16_t, AlignedAllocator<std::int16_t>> codes_;
  AlignedFloats scales_;
  AlignedFloats minus_sums_;
};

}  // namespace tqcache::model
