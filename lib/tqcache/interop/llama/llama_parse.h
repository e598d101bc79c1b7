#pragma once
// interop/llama/llama_parse.h: the layouts of llama.cpp state files, and the places of tokens,
// cells and rows in one. Values are not read. Safe for untrusted input.
//
// Several layouts share a version number, so only an attempt tells them apart.
//
// Spec:   docs/reference/interop.md, "llama.cpp".
// Source: ggml-org/llama.cpp src/llama-context.cpp, llama-kv-cache.cpp, llama-memory-recurrent.cpp;
//         pull requests 9294, 13194, 13706, 14363, 18862, 20132, 27762, 28498. Files of
//         ik_llama.cpp: ikawrakow/ik_llama.cpp src/llama.cpp, write_kv_cache().

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tqcache/error.h"
#include "tqcache/file.h"
#include "tqcache/interop/llama/llama_cells.h"
#include "tqcache/interop/llama/llama_geometry.h"
#include "tqcache/interop/llama/llama_rows.h"
#include "tqcache/interop/llama/llama_state.h"

namespace tqcache::interop {

inline constexpr std::uint32_t kSessionMagic = 0x6767736e;   // "ggsn"
inline constexpr std::uint32_t kSequenceMagic = 0x67677371;  // "ggsq"
inline constexpr std::uint64_t kEnvelopeBytes = 12;

struct LlamaTokens {
  std::vector<std::int32_t> ids;
  bool is_wrapped = false;  // as llama-server writes the list
  std::uint64_t end = 0;    // of the list in the file: where the state begins
};

// Requires: `envelope` is the result of read_llama_envelope() for the file.
// Errors:   kTruncated, kIo, kCorrupt, kTooLarge, kUnsupported (media).
Result<LlamaTokens> read_llama_tokens(const ByteSource& file, const LlamaEnvelope& envelope);

// The part of a session between the name of the architecture and the cells.
enum class LlamaOutputs : std::uint8_t {
  kNone,
  kOutputs,        // logits and embeddings of the last batch
  kRngAndOutputs,  // the state of the sampler before them
};

struct LlamaProfile {
  LlamaOutputs outputs = LlamaOutputs::kNone;
  bool has_streams = true;        // cells are in streams, whose number comes first
  std::uint64_t cell_ext = 0;     // bytes in a cell between its sequences' number and their ids
  bool has_rotations = false;     // the sizes of rotated runs precede the rows
  bool windows_are_apart = true;  // sliding-window layers have a section of cells of their own
  std::string words = {};         // "outputs, cells in streams"
  bool operator==(const LlamaProfile&) const = default;
};

// The layouts that a file of this model may have, the latest first; such as do not differ for it
// are there once. Empty: no such version is known.
std::vector<LlamaProfile> llama_profiles(LlamaFile kind, std::uint32_t version,
                                         const LlamaGeometry& model);

// One of the two is given.
struct LlamaRowFormat {
  const LlamaRowType* plain = nullptr;
  const LlamaTurbo* turbo = nullptr;

  std::string_view name() const { return plain != nullptr ? plain->name : turbo->name; }
  bool operator==(const LlamaRowFormat&) const = default;
};

// Bytes of a row of head vectors; nullopt: blocks do not divide it.
std::optional<std::uint64_t> row_bytes_of(const LlamaRowFormat& format, std::int64_t n_heads,
                                          std::int64_t head_dim);

// K or V of one layer: a row for each cell, one after another. Transposed: for each component a
// row of the values of all cells.
struct LlamaRows {
  LlamaRowFormat format;
  bool is_transposed = false;
  std::uint64_t offset = 0;
  // Run of components that was rotated; 0: not rotated; nullopt: the file does not say.
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
  bool has_checkpoints = false;  // after the state, as some forks write them
};

// The inputs of a parse.
struct LlamaParse {
  const ByteSource& file;
  std::uint64_t begin;  // of the state: after the tokens
  LlamaFile kind;
  const LlamaGeometry& model;
  const LlamaImport& options;
};

// How far a file agreed with a layout. A wrong layout can agree for some bytes, but hardly for a
// whole row of cells and the numbers after them.
struct LlamaReached {
  std::uint64_t n_parts = 0;   // rows of cells, and descriptions of their layers
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

// Whether there are files of such a version that may be read.
// Errors: kUnsupported.
Result<void> check_llama_version(LlamaFile kind, std::uint32_t version);

// Requires: check_llama_version().
// Errors: kUnsupported (versions, files of ik_llama.cpp); kCorrupt (more than one layout fits);
// else
//         those of the layout that the file was like for longest.
Result<LlamaBody> find_llama_body(const LlamaParse& parse, std::uint32_t version);

}  // namespace tqcache::interop
