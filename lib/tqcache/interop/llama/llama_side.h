#pragma once
// interop/llama/llama_side.h: head vectors of some tokens out of a state file of llama.cpp, as this
// project has them: by head, in half-split order, not rotated.
//
// Memory: one token block a reading thread; of transposed values a few token blocks more, within a
// budget that all sides of a file share.

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

struct LlamaSide {
  std::shared_ptr<const ByteSource> file;
  std::shared_ptr<LlamaBuffers> buffers;  // shared by the sides of a file
  LlamaRows rows;
  std::uint64_t n_cells = 0;  // of the section
  // Which cell is which token's (order_llama_cells); null or empty: token i's is cell i.
  std::shared_ptr<const std::vector<std::uint32_t>> cells = nullptr;
  cache::HeadShape shape = {};
  std::int64_t rotation = 0;           // run of components that was rotated; 0: none was
  std::int64_t n_rot = 0;              // components to bring to half-split order; 0: none
  std::uint64_t transposed_bytes = 0;  // of memory that may be kept between calls
};

// The dtype of the values once read: f32 if they were quantized.
Dtype dense_dtype(const LlamaRowFormat& format);

// Requires: the rows of all cells lie within the file; `cells` are below n_cells.
ReadRows read_llama_side(LlamaSide side);

}  // namespace tqcache::interop
