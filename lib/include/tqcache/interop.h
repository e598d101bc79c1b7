#pragma once
// tqcache/interop.h: cache files of other programs: llama.cpp, mlx-lm, transformers, NumPy and
// TurboMLX.
//
//   TQC_TRY_ASSIGN(auto opened, tqcache::interop::open_any("prompt.safetensors"));
//   TQC_TRY(tqcache::interop::export_npz(*opened.cache, "prompt.npz",
//   tqcache::Overwrite::kRefuse));
//
// open_any() detects the kind of a file by its content and reads it block by block; each exporter
// takes any reader. Safe for untrusted input.
//
// Files of other programs leave things out: which model they belong to, sometimes the token ids,
// and llama.cpp's the shapes of the layers. The hints supply them.
//
// Spec: docs/reference/interop.md.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tqcache/error.h"
#include "tqcache/file.h"
#include "tqcache/progress.h"
#include "tqcache/reader.h"

namespace tqcache::interop {

// --- llama.cpp: layer shapes, which its state files do not contain

enum class LlamaLayerKind : std::uint8_t { kAttention, kSlidingWindow, kRecurrent };

struct LlamaLayer {
  LlamaLayerKind kind = LlamaLayerKind::kAttention;
  std::int64_t n_kv_heads = 0;
  std::int64_t k_head_dim = 0;
  std::int64_t v_head_dim = 0;
  std::uint64_t r_values = 0;  // of a recurrent layer's two rows
  std::uint64_t s_values = 0;
};

struct LlamaGeometry {
  std::string architecture;
  std::vector<LlamaLayer> layers;
  std::int64_t window = 0;        // tokens; 0: no layer has one
  std::int64_t n_rot = 0;         // components of a key that RoPE rotates
  bool interleaved_keys = false;  // llama.cpp keeps pairs side by side: (0, 1), (2, 3), ...
  bool has_positions_2d = false;  // M-RoPE: cells carry more than a position
};

// The same from a GGUF file. Errors: also those of opening and reading it.
Result<LlamaGeometry> read_llama_geometry(const std::filesystem::path& gguf);

enum class LlamaFile : std::uint8_t { kSession, kSequence };

enum class LlamaRotation : std::uint8_t {
  kOff,
  kOn,  // quantized keys and values were Hadamard-rotated before they were stored
};

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

// Writes the same file as llama.cpp for the same content and options. The file is complete, or not
// there.
//
// Memory:   K or V of one layer.
// Progress: bytes of sections.
// Errors:   those of the source; kInvalidArgument (a version, a type, a next_token below 0, tokens
//           that are hidden, a head_dim that the type does not divide, quantized values without
//           flash attention, server_tokens in a session); kUnsupported (layers other than full
//           attention); kMismatch (not of this model's shape or architecture); those of AtomicFile;
//           kInterrupted.
Result<void> export_llama_state(const cache::CacheReader& cache, const LlamaGeometry& model,
                                const std::filesystem::path& path, const LlamaExport& options,
                                const Progress& progress = {});

// --- Opening

enum class FileKind : std::uint8_t {
  kTqkv,
  kTqkvVersion1,  // read by the migrations (`tqcache migrate`), not by the library
  kMlxLm,
  kLlama,
  kHf,
  kNpz,
  kTurboMlx,
};

// "mlx-lm prompt cache"
std::string_view name_of(FileKind kind);

// The kind of a file; nullopt when it is none of these.
//
// Errors: kUnsupported for files that are recognized and never read, with what to do instead
//         (pickles of PyTorch, other safetensors files); kTruncated, kCorrupt, kIo.
Result<std::optional<FileKind>> detect_kind(const ByteSource& file);

// What a pickle of Python is called, and what to do instead of reading it: the message of an error.
// nullopt: the file is no pickle, or cannot be read.
std::optional<std::string> name_of_pickle(const ByteSource& file);

struct OpenHints {
  std::optional<cache::Identity> identity = {};          // of the model; source_format is ignored
  std::optional<std::vector<std::int32_t>> tokens = {};  // of a file without token ids
  std::optional<std::int64_t> first_tokens = {};         // keep only so many
  std::int64_t row = 0;                                  // of a batch (mlx-lm)

  // --- llama.cpp

  std::optional<LlamaGeometry> geometry = {};  // required: read_llama_geometry()
  // How rows of the types 41 to 44 are to be read: "turbo2", "turbo3" or "turbo4" of the TurboQuant
  // fork, or several with commas between them: each row as the one whose size it has. Empty: such
  // types are refused.
  std::string turbo_layout = {};

  // Quantized rows may be Hadamard-rotated, and files of older versions do not say so. Called for
  // such a file with the cache read both ways; only called when the two differ.
  using DecideRotation = std::function<Result<LlamaRotation>(
      const cache::CacheReader& rotated, const cache::CacheReader& not_rotated)>;
  DecideRotation decide_rotation = {};
  // nullopt: ask decide_rotation, which is then required.
  std::optional<LlamaRotation> rotation = {};

  // --- TurboMLX

  // Folder with the artifacts that TurboMLX keeps (codebooks/, rotations/, qjl/*.npz). What is not
  // there is computed again. Empty: everything is.
  std::filesystem::path artifacts = {};
  // Keep codes where our codec has them; false: decode them all.
  bool keep_key_codes = true;
  bool keep_value_codes = true;
};

struct OpenedCache {
  FileKind kind = FileKind::kTqkv;
  std::shared_ptr<const cache::CacheReader> cache;
  // Of files of other programs, for display: what the file says of itself ("mlx-lm", "0.32.0 or
  // later"); what it has that a cache of ours does not keep, one sentence each; and what its
  // content implies.
  std::vector<std::pair<std::string, std::string>> metadata;
  std::vector<std::string> dropped_fields;
  std::vector<std::string> notes;
};

// Of a .tqkv file only the hint first_tokens is used.
//
// Memory: what the kind's importer says; keys and values stay in the file until they are read.
// Errors: those of opening the file, detect_kind(), and reading it; kInvalidArgument (a hint is
//         missing: which one); kMismatch (tokens that differ from the file's); kUnsupported (no
//         known kind; version 1 of .tqkv: migrate it).
Result<OpenedCache> open_any(const std::filesystem::path& path, const OpenHints& hints = {});
Result<OpenedCache> open_any(std::shared_ptr<const ByteSource> file, const OpenHints& hints = {});

// --- Exporting

struct MlxLmExport {
  // Files of 0.32.0 and later have another layout. Earlier versions do not read it, and later ones
  // read no other.
  int version_major = 0, version_minor = 32;
  int kv_bits = 0;               // QuantizedKVCache of 2, 4 or 8 bits; 0: KVCache
  std::int64_t group_size = 64;  // 32, 64 or 128 components that share a scale and a bias
  std::string model;             // metadata "model"; empty: the cache's model name
  std::string tokenizer_config = "{}";
  Overwrite overwrite = Overwrite::kRefuse;
};

// Writes all of a cache as mlx-lm would. Quantized K and V are decoded to the dtype of their tail.
// The file is complete, or not there.
//
// Memory:   K or V of one layer.
// Progress: bytes of sections.
// Errors:   those of the source; kInvalidArgument (an empty cache, bits or groups that MLX does not
//           have, a group_size that does not divide head_dim); those of AtomicFile; kInterrupted.
Result<void> export_mlx_lm(const cache::CacheReader& cache, const std::filesystem::path& path,
                           const MlxLmExport& options, const Progress& progress = {});

// Writes the safetensors schema of tools/tqcache_hf.py. Quantized K and V are decoded to the dtype
// of their tail. The file is complete, or not there.
//
// Memory:   K or V of one layer.
// Progress: bytes of sections.
// Errors:   those of the source; kUnsupported (a window that keeps first tokens, arrays that
//           are not states as transformers names them); those of AtomicFile; kInterrupted.
Result<void> export_hf(const cache::CacheReader& cache, const std::filesystem::path& path,
                       Overwrite overwrite, const Progress& progress = {});

// Writes arrays of NumPy. Quantized K and V are decoded to the dtype of their tail; bf16, which
// NumPy does not have, becomes f32. The file is complete, or not there.
//
// Memory and progress: as export_hf(). Errors: as there, but kUnsupported is for arrays whose names
// do not fit, or that are there twice.
Result<void> export_npz(const cache::CacheReader& cache, const std::filesystem::path& path,
                        Overwrite overwrite, const Progress& progress = {});

}  // namespace tqcache::interop
