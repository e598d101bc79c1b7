#pragma once
// interop/llama/llama_parse.h: where everything stands in a state file of llama.cpp, taken to be of one
// of the layouts. Values are not read. Safe for untrusted input.
//
// Spec:   docs/reference/interop.md, "llama.cpp".
// Source: ggml-org/llama.cpp src/llama-context.cpp, llama-kv-cache.cpp, llama-memory-recurrent.cpp.

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tqcache/base/file.h"
#include "tqcache/base/result.h"
#include "tqcache/interop/llama/llama_cells.h"
#include "tqcache/interop/llama/llama_geometry.h"
#include "tqcache/interop/llama/llama_profile.h"
#include "tqcache/interop/llama/llama_rows.h"
#include "tqcache/interop/llama/llama_state.h"
#include "tqcache/interop/llama/llama_turbo.h"

namespace tqcache::interop {

// One of the two is given.
struct LlamaRowFormat {
  const LlamaRowType* plain = nullptr;
  const LlamaTurbo* turbo = nullptr;

  std::string_view name() const { return plain != nullptr ? plain->name : turbo->name; }
  bool operator==(const LlamaRowFormat&) const = default;
};

// Bytes of a row of head vectors; nothing: blocks do not divide it.
std::optional<std::uint64_t> row_bytes_of(const LlamaRowFormat& format, std::int64_t n_heads,
                                          std::int64_t head_dim);

// One side of one layer: a row for each cell, one after another. Transposed: for each component a
// row of the values of all cells.
struct LlamaRows {
  LlamaRowFormat format;
  bool is_transposed = false;
  std::uint64_t offset = 0;
  // Run of components that was rotated, 0 if none was; nothing: the file does not say.
  std::optional<std::int64_t> rotation = {};
};

struct LlamaAttentionSection {
  std::vector<std::size_t> layers;  // of the model
  LlamaCells cells;
  std::vector<LlamaRows> k, v;  // of each of them; empty without cells
};

struct LlamaRecurrentSection {
  std::vector<std::size_t> layers;
  LlamaCells cells;
  std::vector<std::uint64_t> r, s;  // offsets of each layer's rows
};

struct LlamaBody {
  LlamaProfile profile;
  std::vector<LlamaAttentionSection> attention;  // full attention, then windows, as there are
  std::optional<LlamaRecurrentSection> recurrent;
  bool has_checkpoints = false;  // behind the state, as some forks put them
};

// Everything that a layout is held against.
struct LlamaParse {
  const ByteSource& file;
  std::uint64_t begin;  // of the state: behind the tokens
  LlamaFile kind;
  const LlamaGeometry& model;
  const LlamaImport& options;
};

// How far a file was like a layout. A wrong one can be kept to for some bytes, but hardly for a
// whole row of cells and the numbers behind them.
struct LlamaReached {
  std::uint64_t n_parts = 0;   // rows of cells, and what describes their layers
  std::uint64_t position = 0;  // in the file
  auto operator<=>(const LlamaReached&) const = default;
};

// Errors: kTruncated, kIo, kCorrupt, kTooLarge, kUnsupported (row types, rotations), kMismatch (a
//         file of another model).
Result<LlamaBody> parse_llama_body(const LlamaParse& parse, const LlamaProfile& profile,
                                   LlamaReached& reached);

// Whether the state is one that ik_llama.cpp wrote, whose files have the same magics.
// Errors: kIo.
Result<bool> is_ik_llama_body(const ByteSource& file, std::uint64_t begin, LlamaFile kind);

}  // namespace tqcache::interop
