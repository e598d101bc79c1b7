#pragma once
// tqcache/interop.h: cache files of other programs: llama.cpp, mlx-lm, transformers, NumPy and
// TurboMLX.
//
//   TQC_TRY_ASSIGN(auto opened, tqcache::interop::open_any("prompt.safetensors"));
//   TQC_TRY(tqcache::interop::export_npz(*opened.cache, "prompt.npz",
//   tqcache::Overwrite::kRefuse));
//
// open_any() detects the kind of a file by its content and reads it block by block; each exporter
// accepts any reader. Safe for untrusted input.
//
// Files of other programs omit metadata: the model they belong to, sometimes the token ids, and in
// llama.cpp the shapes of the layers. The hints supply it.
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
#include "tqcache/tqkv.h"

namespace tqcache::interop {

// --- llama.cpp: layer shapes, which its state files do not contain

enum class LlamaLayerKind : std::uint8_t { kAttention, kSlidingWindow, kRecurrent };

struct LlamaLayer {
  LlamaLayerKind kind = LlamaLayerKind::kAttention;
  std::int64_t n_kv_heads = 0;
  std::int64_t k_head_dim = 0;
  std::int64_t v_head_dim = 0;
  std::uint64_t r_values = 0;  // of the two rows of a recurrent layer
  std::uint64_t s_values = 0;
  bool is_latent = false;  // MLA: a row of keys is K (the latent), then V (the rotated part)
};

struct LlamaGeometry {
  std::string architecture;
  std::vector<LlamaLayer> layers;
  std::int64_t window = 0;        // tokens; 0: no layer has one
  std::int64_t n_rot = 0;         // components of a key that RoPE rotates
  bool interleaved_keys = false;  // llama.cpp interleaves the pairs: (0, 1), (2, 3), ...
  bool has_positions_2d = false;  // M-RoPE: cells carry extra coordinates
};

// Reads the layer shapes from a GGUF file. Errors: also those of opening and reading it.
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
  // For quantized rows whose head_dim is a multiple of 64; others are never rotated.
  LlamaRotation rotation = LlamaRotation::kOn;
  bool flash_attention = true;  // false: values are transposed
  bool server_tokens = false;   // token list in llama-server's variant
  // Streams of the context that will read the file: 1, or the number of sequences of a context
  // whose cache is not unified (llama-server -np N). 1 to 1024.
  std::uint32_t n_streams = 1;
  std::optional<std::int32_t> next_token = {};
  Overwrite overwrite = Overwrite::kRefuse;
  // For a file that llama.cpp reads at once: not flushed to disk (AtomicFile::skip_flush()).
  bool is_temporary = false;
};

// Writes the same file as llama.cpp for the same content and options. The file is either complete
// or not created.
//
// Memory:   K or V of one layer.
// Progress: bytes of sections.
// Errors:   those of the source; kInvalidArgument (a version, a type, n_streams, a next_token below
//           0, hidden tokens, a head_dim that the type does not divide, quantized values without
//           flash attention, server_tokens in a session); kUnsupported (windows that keep their
//           first tokens, state that is not of a gated delta net); kMismatch (not of this model's
//           shape or architecture); those of AtomicFile; kInterrupted.
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

// The kind of a file; nullopt when it is unknown.
//
// Errors: kUnsupported for files that are recognized but never read, with what to do instead
//         (pickles of PyTorch, other safetensors files); kTruncated, kCorrupt, kIo.
Result<std::optional<FileKind>> detect_kind(const ByteSource& file);

// The error message for a Python pickle: its name, and what to do instead of reading it.
// nullopt: the file is not a pickle, or cannot be read.
std::optional<std::string> name_of_pickle(const ByteSource& file);

struct OpenHints {
  // Of the model; source_format, llama_streams and source_layout are those of the file.
  std::optional<cache::Identity> identity = {};
  std::optional<std::vector<std::int32_t>> tokens = {};  // for files without token ids
  std::optional<std::int64_t> first_tokens = {};         // keep only this many tokens
  std::int64_t row = 0;                                  // row of the batch (mlx-lm)
  format::Access access = {};

  // --- llama.cpp

  std::optional<LlamaGeometry> geometry = {};  // required: read_llama_geometry()
  // The layout of rows with types 41 to 47: "turbo2", "turbo3", "turbo4" or "turbo4-66" of forks,
  // or several separated by commas: then each row has the layout that matches its size. Empty: such
  // types are refused.
  std::string turbo_layout = {};

  // Quantized rows may be Hadamard-rotated, and files of older versions do not say so. Called for
  // such a file with the cache read both ways, and only if the two results differ.
  using DecideRotation = std::function<Result<LlamaRotation>(
      const cache::CacheReader& rotated, const cache::CacheReader& not_rotated)>;
  DecideRotation decide_rotation = {};
  // nullopt: call decide_rotation, which is then required.
  std::optional<LlamaRotation> rotation = {};

  // --- TurboMLX

  // Folder with the artifacts that TurboMLX stores (codebooks/, rotations/, qjl/*.npz). Artifacts
  // missing there are computed. Empty: all are computed.
  std::filesystem::path artifacts = {};
  // Keep codes that our codec can represent; false: decode all codes.
  bool keep_key_codes = true;
  bool keep_value_codes = true;
};

struct OpenedCache {
  FileKind kind = FileKind::kTqkv;
  std::shared_ptr<const cache::CacheReader> cache;
  // For display, for files of other programs: what the file states about itself ("mlx-lm", "0.32.0
  // or later"); the fields that a .tqkv cache cannot keep, one sentence each; and what the content
  // of the file implies.
  std::vector<std::pair<std::string, std::string>> metadata;
  std::vector<std::string> dropped_fields;
  std::vector<std::string> notes;
};

// For a .tqkv file only the hints first_tokens and access are used.
//
// Memory: as the importer of the kind documents; keys and values stay in the file until they are
//         read.
// Errors: those of opening the file, detect_kind(), and reading it; kInvalidArgument (a hint is
//         missing, named in the message); kMismatch (tokens that differ from the file's);
//         kUnsupported (unknown kind; version 1 of .tqkv: migrate it).
Result<OpenedCache> open_any(const std::filesystem::path& path, const OpenHints& hints = {});
Result<OpenedCache> open_any(std::shared_ptr<const ByteSource> file, const OpenHints& hints = {});

// --- Exporting

struct MlxLmExport {
  // Files of 0.32.0 and later have another layout. Earlier versions do not read it, and later ones
  // read only it.
  int version_major = 0, version_minor = 32;
  int kv_bits = 0;               // QuantizedKVCache of 2, 4 or 8 bits; 0: KVCache
  std::int64_t group_size = 64;  // 32, 64 or 128 components that share a scale and a bias
  std::string model;             // metadata "model"; empty: the model name of the cache
  std::string tokenizer_config = "{}";
  Overwrite overwrite = Overwrite::kRefuse;
};

// Writes a whole cache as mlx-lm would. Quantized K and V are decoded to the dtype of their dense
// tail. The file is either complete or not created.
//
// Memory:   K or V of one layer.
// Progress: bytes of sections.
// Errors:   those of the source; kInvalidArgument (an empty cache, bits or groups that MLX does not
//           have, a group_size that does not divide head_dim); those of AtomicFile; kInterrupted.
Result<void> export_mlx_lm(const cache::CacheReader& cache, const std::filesystem::path& path,
                           const MlxLmExport& options, const Progress& progress = {});

// Writes the safetensors schema of tools/tqcache_hf.py. Quantized K and V are decoded to the dtype
// of their dense tail. The file is either complete or not created.
//
// Memory:   K or V of one layer.
// Progress: bytes of sections.
// Errors:   those of the source; kUnsupported (a window that keeps first tokens, arrays that are
//           not states as transformers names them); those of AtomicFile; kInterrupted.
Result<void> export_hf(const cache::CacheReader& cache, const std::filesystem::path& path,
                       Overwrite overwrite, const Progress& progress = {});

// Writes NumPy arrays. Quantized K and V are decoded to the dtype of their dense tail; bf16, which
// NumPy lacks, becomes f32. The file is either complete or not created.
//
// Memory and progress: as export_hf(). Errors: also as export_hf(), but kUnsupported is for array
//                      names that are not allowed or are repeated.
Result<void> export_npz(const cache::CacheReader& cache, const std::filesystem::path& path,
                        Overwrite overwrite, const Progress& progress = {});

}  // namespace tqcache::interop
