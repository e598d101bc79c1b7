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

#include "tqcache/base/file.h"
#include "tqcache/base/progress.h"
#include "tqcache/base/result.h"
#include "tqcache/cache/reader.h"
#include "tqcache/interop/foreign_cache.h"
#include "tqcache/interop/llama/llama_geometry.h"

namespace tqcache::interop {

enum class LlamaFile : std::uint8_t { kSession, kSequence };

// The first bytes of a file. nullopt: not a state file of llama.cpp.
// Errors: kTruncated, kIo.
struct LlamaEnvelope {
  LlamaFile kind = LlamaFile::kSession;
  std::uint32_t version = 0;
  std::uint64_t n_u32 = 0;  // of the token list, as stored
};
Result<std::optional<LlamaEnvelope>> read_llama_envelope(const ByteSource& file);

enum class LlamaRotation : std::uint8_t {
  kOff,
  kOn,  // quantized keys and values were Hadamard-rotated before they were stored
};

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

struct LlamaExport {
  LlamaFile kind = LlamaFile::kSession;
  std::uint32_t version = 9;   // sessions 9, 10, 11; sequences 2, 3, 4
  std::string k_type = "f16";  // a row type by ggml's name: f32, f16, bf16, q8_0, q4_0, ...
  std::string v_type = "f16";
  // Of quantized rows whose head_dim is a multiple of 64; others never are.
  LlamaRotation rotation = LlamaRotation::kOn;
  bool flash_attention = true;  // false: values transposed
  bool server_tokens = false;   // the token list as llama-server wraps it
  std::optional<std::int32_t> next_token = {};
  Overwrite overwrite = Overwrite::kRefuse;
};

// Writes the same file as llama.cpp for the same content and options. Whole or not at all.
//
// Memory:   one side of one layer.
// Progress: bytes of sections.
// Errors:   those of the source; kInvalidArgument (a version, a type, a next_token below 0, tokens
//           that are hidden, a head_dim that the type does not divide, quantized values without
//           flash attention, server_tokens in a session); kUnsupported (layers other than full
//           attention); kMismatch (not of this model's shape or architecture); those of AtomicFile;
//           kInterrupted.
Result<void> export_llama_state(const cache::CacheReader& cache, const LlamaGeometry& model,
                                const std::filesystem::path& path, const LlamaExport& options,
                                const Progress& progress = {});

}  // namespace tqcache::interop
