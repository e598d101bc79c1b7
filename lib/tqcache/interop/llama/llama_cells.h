#pragma once
// interop/llama/llama_cells.h: the cells of a section of a llama.cpp state file: the position and
// the sequences of each. Safe for untrusted input.

#include <cstdint>
#include <vector>

#include "tqcache/error.h"
#include "tqcache/interop/file_cursor.h"
#include "tqcache/interop/llama/llama_state.h"

namespace tqcache::interop {

struct LlamaCells {
  std::vector<std::int32_t> positions;  // in the order of the file
  bool has_several_sequences = false;
};

struct LlamaCellLayout {
  LlamaFile kind;
  std::uint64_t ext_bytes;  // between the number of sequences and their ids
};

// Number of cells, and the cells.
// Errors: kTruncated, kIo, kCorrupt, kTooLarge.
Result<LlamaCells> read_llama_cells(FileCursor& cursor, const LlamaCellLayout& layout);

// The cells of the positions [first, first + n): cells[i] has position first + i. Cells of earlier
// positions are left out. Empty: cell i has position first + i, and there are no
// other cells.
//
// Errors: kUnsupported (several sequences, a position that is missing or is there twice), kCorrupt
//         (positions behind the last one).
Result<std::vector<std::uint32_t>> order_llama_cells(const LlamaCells& cells, std::int64_t first,
                                                     std::int64_t n);

}  // namespace tqcache::interop
