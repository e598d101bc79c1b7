#pragma once
// tools/cli/foreign_input.h: Cache files of other programs, recognized by their content.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "cli/console.h"
#include "cli/flags.h"
#include "cli/model_facts.h"
#include "tqcache/error.h"
#include "tqcache/file.h"
#include "tqcache/interop.h"

namespace tqcache::cli {

using interop::FileKind;
using interop::name_of;  // "mlx-lm prompt cache"

// The kind of a file of another program; nullopt: unknown, or a .tqkv file of any version.
// Errors: those of interop::detect_kind().
Result<std::optional<FileKind>> foreign_kind(const ByteSource& file);

// What such files leave out, as flags.
struct ForeignFlags {
  std::string model;
  std::string ids;                // file with the token ids
  std::int64_t row = 0;           // of a batch
  std::string rotation = "auto";  // of quantized llama.cpp caches
  std::string turbo_layout;       // of the TurboQuant fork's rows
  std::string artifacts;          // of TurboMLX
  std::int64_t n_probe = 16;      // tokens to compute again; 0: none
  // Set by the program: codes that could be kept are decoded.
  bool decode_keys = false;
  bool decode_values = false;
};
void add_foreign_flags(FlagSet& app, ForeignFlags& flags);
// Those of them that do not need a model's weights.
void add_reading_flags(FlagSet& app, ForeignFlags& flags);

struct ForeignInput {
  std::string name;  // for messages
  FileKind kind = FileKind::kMlxLm;
  std::uint64_t file_bytes = 0;
  interop::OpenedCache opened;  // with notes of what was found out
};

// Reads what the file says; with a model its identity, and with a model and the tokens, the probe:
// some tokens are computed again and compared. `first_tokens` cuts the cache.
//
// Errors: those of the importers; kMismatch when the probe fails.
Result<ForeignInput> open_foreign(const Console& console, const std::string& name,
                                  std::shared_ptr<const ByteSource> file, FileKind kind,
                                  const ForeignFlags& flags, const ModelFacts& model,
                                  std::optional<std::int64_t> first_tokens, unsigned n_threads);

}  // namespace tqcache::cli
