#pragma once
// interop/llama/llama_tensor.h: readers of head vectors in llama.cpp state files, in the layout of
// this project: by head, in half-split order, not rotated.
//
// Memory: one token block per reading thread; for transposed values a few more token blocks, within
//         a budget shared by all K and V tensors of a file.

#include <cstdint>
#include <memory>
#include <vector>

#include "tqcache/base/pool.h"
#include "tqcache/bytes.h"
#include "tqcache/description.h"
#include "tqcache/file.h"
#include "tqcache/interop/foreign_cache.h"
#include "tqcache/interop/llama/llama_parse.h"

namespace tqcache::interop {

using LlamaBuffers = Pool<AlignedBytes>;

struct LlamaTensor {
  std::shared_ptr<const ByteSource> file;
  std::shared_ptr<LlamaBuffers> buffers;  // shared by K and V of all layers of a file
  LlamaRows rows;
  std::uint64_t n_cells = 0;  // number of cells in the section
  // The cell of each token (order_llama_cells); null or empty: token i is in cell i.
  std::shared_ptr<const std::vector<std::uint32_t>> cells = nullptr;
  cache::HeadShape shape = {};
  std::int64_t rotation = 0;           // length of the rotated runs of components; 0: not rotated
  std::int64_t n_rot = 0;              // components to reorder to half-split; 0: no reordering
  std::uint64_t transposed_bytes = 0;  // limit on the memory kept between calls
};

// The dtype of the values returned: f32 if they were quantized.
Dtype dense_dtype(const LlamaRowFormat& format);

// Requires: the rows of all cells lie within the file; all `cells` are below n_cells.
ReadRows read_llama_tensor(LlamaTensor tensor);

}  // namespace tqcache::interop
