#pragma once
// interop/llama/llama_parse.h: the layouts of llama.cpp state files, and the offsets of tokens,
// cells and rows in them. Values are not read. Safe for untrusted input.
//
// Several layouts share a version number, so they can only be distinguished by trying each.
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

#include "tqcache/bytes.h"
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
inline constexpr std::uint32_t kCheckpointsMagic = 0x504b4353;  // "SCKP"
inline constexpr std::uint32_t kCheckpointsVersion = 1;
inline constexpr std::uint32_t kPartialStateMagic = 0xaf143cd8;  // begins a checkpoint's state

// The arrays of a checkpoint's opaque layer: what only llama-server understands.
inline constexpr std::string_view kOpaqueSequence = "llama.sequence";
inline constexpr std::string_view kOpaqueDraft = "llama.draft";
inline constexpr std::string_view kOpaqueSpeculative = "llama.speculative";

// An image, a sound or a video in llama-server's list.
struct LlamaMedia {
  std::int64_t first = 0;  // index of its first token in the list
  Bytes chunk;             // what mtmd_input_chunk_save() wrote of it, without pixels
};

struct LlamaTokens {
  std::vector<std::int32_t> ids;       // -1 for tokens of media
  std::vector<LlamaMedia> media = {};  // ascending
  bool is_wrapped = false;             // llama-server's variant of the list
  std::uint64_t end = 0;               // end of the list in the file: the state begins here
};

// Requires: `envelope` is the result of read_llama_envelope() for the file.
// Errors:   kTruncated, kIo, kCorrupt, kTooLarge, kUnsupported (a version).
Result<LlamaTokens> read_llama_tokens(const ByteSource& file, const LlamaEnvelope& envelope);

// The part of a session between the name of the architecture and the cells.
enum class LlamaOutputs : std::uint8_t {
  kNone,
  kOutputs,        // logits and embeddings of the last batch
  kRngAndOutputs,  // the state of the sampler, then the outputs
};

struct LlamaProfile {
  LlamaOutputs outputs = LlamaOutputs::kNone;
  bool has_streams = true;        // cells are grouped in streams; the number of streams comes first
  std::uint64_t cell_ext = 0;     // bytes in a cell between the number of sequences and their ids
  bool has_rotations = false;     // the sizes of rotated runs precede the rows
  bool windows_are_apart = true;  // sliding-window layers have their own section of cells
  std::string words = {};         // "outputs, cells in streams"
  bool operator==(const LlamaProfile&) const = default;
};

// The layouts that a file of this model may have, the latest first. Layouts that are identical for
// this model are listed once. Empty: the version is not known.
std::vector<LlamaProfile> llama_profiles(LlamaFile kind, std::uint32_t version,
                                         const LlamaGeometry& model);

// Exactly one of the two is set.
struct LlamaRowFormat {
  const LlamaRowType* plain = nullptr;
  const LlamaTurbo* turbo = nullptr;

  std::string_view name() const { return plain != nullptr ? plain->name : turbo->name; }
  bool operator==(const LlamaRowFormat&) const = default;
};

// Components of a head in a row of keys.
constexpr std::int64_t key_row_dim(const LlamaLayer& layer) {
  return layer.k_head_dim + (layer.is_latent ? layer.v_head_dim : 0);
}

// Bytes of a row of head vectors; nullopt: the GGML blocks do not divide it.
std::optional<std::uint64_t> row_bytes_of(const LlamaRowFormat& format, std::int64_t n_heads,
                                          std::int64_t head_dim);

// K or V of one layer: one row per cell, consecutive. Transposed: one row per component, with the
// values of all cells.
struct LlamaRows {
  LlamaRowFormat format;
  bool is_transposed = false;
  std::uint64_t offset = 0;
  // Length of the rotated runs of components; 0: not rotated; nullopt: the file does not say.
  std::optional<std::int64_t> rotation = {};
};

struct LlamaAttentionSection {
  std::vector<std::size_t> layers;  // layer indices in the model
  LlamaCells cells;
  std::vector<LlamaRows> k, v;  // one for each of `layers`; empty without cells
};

struct LlamaRecurrentSection {
  std::vector<std::size_t> layers;
  LlamaCells cells;
  std::vector<std::uint64_t> r, s;  // offsets of the rows of each layer
};

// Bytes of the file.
struct LlamaBytes {
  std::uint64_t offset = 0, size = 0;
};

// An earlier state of the windows or the recurrent state, which llama-server writes behind a
// sequence so that it can go back to it.
struct LlamaCheckpoint {
  std::int64_t n_tokens = 0;
  std::int32_t first_position = 0, last_position = 0;  // of llama.cpp's memory at that time
  LlamaBytes sequence;                                 // its i32 id
  std::optional<LlamaAttentionSection> windows;
  std::optional<LlamaRecurrentSection> recurrent;
  LlamaBytes draft, speculative;  // states of a draft model, and of speculative decoding; or empty
};

struct LlamaBody {
  LlamaProfile profile;
  std::uint32_t n_streams = 1;                   // of the context
  std::vector<LlamaAttentionSection> attention;  // full attention, then windows, where present
  std::optional<LlamaRecurrentSection> recurrent;
  std::vector<LlamaCheckpoint> checkpoints;
  bool has_idle_checkpoints = false;  // of a model without windows and recurrent state
};

// The inputs of a parse.
struct LlamaParse {
  const ByteSource& file;
  std::uint64_t begin;  // where the state begins: after the tokens
  LlamaFile kind;
  const LlamaGeometry& model;
  const LlamaImport& options;
};

// How far a file matched a layout. A wrong layout can match for some bytes, but hardly for a whole
// row of cells and the numbers after them.
struct LlamaReached {
  std::uint64_t n_parts = 0;   // rows of cells, and descriptions of their layers
  std::uint64_t position = 0;  // in the file
  auto operator<=>(const LlamaReached&) const = default;
};

// Errors: kTruncated, kIo, kCorrupt, kTooLarge, kUnsupported (row types, rotations), kMismatch (a
//         file of another model).
Result<LlamaBody> parse_llama_body(const LlamaParse& parse, const LlamaProfile& profile,
                                   LlamaReached& reached);

// Returns whether ik_llama.cpp wrote the state; its files have the same magics.
// Errors: kIo.
Result<bool> is_ik_llama_body(const ByteSource& file, std::uint64_t begin, LlamaFile kind);

// Checks that files of this version can be read.
// Errors: kUnsupported.
Result<void> check_llama_version(LlamaFile kind, std::uint32_t version);

// Requires: check_llama_version() succeeded.
// Errors: kUnsupported (versions, files of ik_llama.cpp); kCorrupt (more than one layout fits);
//         otherwise those of the layout that matched the file furthest.
Result<LlamaBody> find_llama_body(const LlamaParse& parse, std::uint32_t version);

}  // namespace tqcache::interop
