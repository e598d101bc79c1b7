#pragma once
// interop/llama/llama_state.h: state files of llama.cpp: sessions (llama_state_save_file) and
// sequences (llama_state_seq_save_file, the server's slots). Safe for untrusted input.
//
// Spec:   docs/reference/interop.md, "llama.cpp".
// Source: ggml-org/llama.cpp src/llama-context.cpp, llama-kv-cache.cpp, llama-memory-recurrent.cpp.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "tqcache/error.h"
#include "tqcache/file.h"
#include "tqcache/interop.h"
#include "tqcache/interop/foreign_cache.h"
#include "tqcache/interop/llama/llama_geometry.h"
#include "tqcache/progress.h"
#include "tqcache/reader.h"

namespace tqcache::interop {

// The first bytes of a file. nullopt: not a llama.cpp state file.
// Errors: kTruncated, kIo.
struct LlamaEnvelope {
  LlamaFile kind = LlamaFile::kSession;
  std::uint32_t version = 0;
  std::uint64_t n_u32 = 0;  // length of the token list, as stored
};
Result<std::optional<LlamaEnvelope>> read_llama_envelope(const ByteSource& file);

struct LlamaImport {
  // For files that do not state it: those before session version 11 and sequence version 4.
  LlamaRotation rotation = LlamaRotation::kOff;
  // The layout of rows with types 41 to 47: "turbo2", "turbo3", "turbo4" or "turbo4-66" of forks
  // (docs/reference/interop.md), or several separated by commas: then each row has the layout that
  // matches its size. Empty: such types are refused.
  std::string turbo_layout = {};
};

// A cache, and what the import learned about its file.
struct LlamaImported {
  ForeignCache cache;
  // Some rows have a quantized ggml type, so the rotation matters. (Rows of the fork's types have
  // their own rotation.)
  bool may_be_rotated = false;
  // The file states whether its rows are rotated; LlamaImport::rotation was ignored.
  bool rotation_is_stated = false;
  // The file has one token more than cells: the one that llama.cpp would process next.
  std::optional<std::int32_t> next_token;
};

// Tries every known layout of this version and takes the one that ends exactly at the end of the
// file. If none fits, returns the error of the layout that matched furthest.
//
// Memory: cells and tokens; while values are read, at most 128 MiB of transposed ones between
//         calls.
// Errors: kTruncated, kIo, kCorrupt (no layout fits; more than one does), kTooLarge; kUnsupported
//         (versions, ik_llama.cpp's files, row types, rotations, media tokens, missing positions,
//         several sequences, incomplete windows),
//         kMismatch (shapes or an architecture that differ from the model's); kInvalidArgument
//         (unknown turbo_layout).
Result<LlamaImported> import_llama_state(std::shared_ptr<const ByteSource> file,
                                         const LlamaGeometry& model,
                                         const LlamaImport& options = {});

}  // namespace tqcache::interop
