#pragma once
// interop/open_any.h: opens a cache in a file of any kind, detected by its content. Safe for
// untrusted input.
//
//   auto opened = interop::open_any("prompt.safetensors");
//   if (opened) format::convert_file(*opened->cache, "prompt.tqkv", options, {});
//
// Files of other programs leave things out: which model they belong to, sometimes the token ids,
// and llama.cpp's the shapes of the layers. The hints supply them.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tqcache/base/file.h"
#include "tqcache/base/result.h"
#include "tqcache/cache/reader.h"
#include "tqcache/interop/foreign_cache.h"
#include "tqcache/interop/llama/llama_state.h"

namespace tqcache::interop {

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
  std::string turbo_layout = {};               // LlamaImport::turbo_layout

  // Quantized rows may be Hadamard-rotated, and files of older versions do not say so. Called for
  // such a file with the cache read both ways; only called when the two differ.
  using DecideRotation = std::function<Result<LlamaRotation>(const ForeignCache& rotated,
                                                             const ForeignCache& not_rotated)>;
  DecideRotation decide_rotation = {};
  // nullopt: ask decide_rotation, which is then required.
  std::optional<LlamaRotation> rotation = {};

  // --- TurboMLX (TurboMlxImport)

  std::filesystem::path artifacts = {};
  bool keep_key_codes = true;
  bool keep_value_codes = true;
};

struct ImportedCache {
  ForeignCache cache;
  std::vector<std::string> notes;  // for people: what the file's content implies
};

// Reads what a file of another program says of its cache, and completes it with the hints.
//
// Requires: `kind` is what detect_kind() returned, neither kTqkv nor kTqkvVersion1.
// Errors:   those of the importers; kInvalidArgument (a hint is missing: which one; first_tokens
//           of a cache with recurrent state or sliding windows); kMismatch (tokens that differ from
//           the file's); kUnsupported (TurboMLX, in a library built without it).
Result<ImportedCache> import_any(std::shared_ptr<const ByteSource> file, FileKind kind,
                                 const OpenHints& hints = {});

struct OpenedCache {
  FileKind kind = FileKind::kTqkv;
  std::shared_ptr<const cache::CacheReader> cache;
  // Of files of other programs: as ForeignCache's and ImportedCache's.
  std::vector<std::pair<std::string, std::string>> metadata;
  std::vector<std::string> dropped_fields;
  std::vector<std::string> notes;
};

// Of a .tqkv file only the hint first_tokens is used.
//
// Memory: what the kind's importer says; keys and values stay in the file until they are read.
// Errors: those of opening the file, detect_kind() and import_any(); kUnsupported (no known kind;
//         version 1 of .tqkv: migrate it).
Result<OpenedCache> open_any(const std::filesystem::path& path, const OpenHints& hints = {});
Result<OpenedCache> open_any(std::shared_ptr<const ByteSource> file, const OpenHints& hints = {});

}  // namespace tqcache::interop
