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

// The first bytes of a file. nullopt: not a state file of llama.cpp.
// Errors: kTruncated, kIo.
struct LlamaEnvelope {
  LlamaFile kind = LlamaFile::kSession;
  std::uint32_t version = 0;
  std::uint64_t n_u32 = 0;  // of the token list, as stored
};
Result<std::optional<LlamaEnvelope>> read_llama_envelope(const ByteSource& file);

struct LlamaImport {
  // Of files that do not say so themselves: those before session version 11 and sequence version 4.
  LlamaRotation rotation = LlamaRotation::kOff;
  // How rows of the types 41 to 44 are to be read: "turbo2", "turbo3" or "turbo4" of the TurboQuant
  // fork (docs/reference/interop.md), or several with commas between them: then each row as the one
  // whose size it has. Empty: such types are refused.
  std::string turbo_layout = {};
};

// A cache, and what the import found out about its file.
struct LlamaImported {
  ForeignCache cache;
  // Some rows are of a quantized type of ggml: only then the rotation matters. (Those of the fork's
  // types have one of their own.)
  bool may_be_rotated = false;
  // The file says itself whether its rows are rotated; LlamaImport::rotation did not count.
  bool rotation_is_stated = false;
  // The file holds one token more than its cells: the one that llama.cpp was to take next.
  std::optional<std::int32_t> next_token;
};

// Tries every layout that files of this version have had, and takes the one that ends exactly where
// the file does. If none does, the error is that of the one the file was like for longest.
//
// Memory: cells and tokens; when values are read, of transposed ones at most 128 MiB between calls.
// Errors: kTruncated, kIo, kCorrupt (no layout fits; more than one does), kTooLarge; kUnsupported
//         (versions, ik_llama.cpp's files, row types, rotations, media tokens, positions with gaps,
//         several sequences, windows that are not whole, models whose keys and values differ in
//         size), kMismatch (shapes or an architecture that are not the model's); kInvalidArgument
//         (no such turbo_layout).
Result<LlamaImported> import_llama_state(std::shared_ptr<const ByteSource> file,
                                         const LlamaGeometry& model,
                                         const LlamaImport& options = {});

}  // namespace tqcache::interop
