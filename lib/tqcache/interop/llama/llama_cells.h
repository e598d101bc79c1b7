#pragma once
// interop/llama/llama_cells.h: the cells of a section of a llama.cpp state file: positions and
// sequences. Safe for untrusted input.

#include <cstdint>
#include <vector>

#include "tqcache/error.h"
#include "tqcache/interop/file_cursor.h"
#include "tqcache/interop/llama/llama_state.h"

namespace tqcache::interop {

struct LlamaCells {
  std::vector<std::int32_t> positions;  // in file order
  bool has_several_sequences = false;
  // Rows and columns, if some are not those of text (M-RoPE); otherwise empty.
  std::vector<std::int32_t> rows = {}, columns = {};
};

struct LlamaCellLayout {
  LlamaFile kind;
  std::uint64_t ext_bytes;  // between the number of sequences and their ids
};

// Reads the number of cells and the cells.
// Errors: kTruncated, kIo, kCorrupt, kTooLarge.
Result<LlamaCells> read_llama_cells(FileCursor& cursor, const LlamaCellLayout& layout);

// The cell of each position in [first, first + n): cells[i] has position first + i. Cells of
// earlier positions are left out. An empty result means that cell i has position first + i and that
// there are no other cells.
//
// With coordinates of images, all cells in the order of their positions, rows and columns; then
// `first` has to be 0.
//
// Errors: kUnsupported (several sequences; a missing or repeated position; images with first > 0),
//         kCorrupt (positions after the last one).
Result<std::vector<std::uint32_t>> order_llama_cells(const LlamaCells& cells, std::int64_t first,
                                                     std::int64_t n);

}  // namespace tqcache::interop
