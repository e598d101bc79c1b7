#pragma once
// tools/cli/foreign_input.h: cache files of other programs, recognized by their content.

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

// Flags for what such files leave out.
struct ForeignFlags {
  std::string model;
  std::string ids;                // file with the token ids
  std::int64_t row = 0;           // in a batch
  std::string rotation = "auto";  // of quantized llama.cpp caches
  std::string turbo_layout;       // of the rows of the TurboQuant fork
  std::string artifacts;          // of TurboMLX
  std::int64_t n_probe = 16;      // tokens to recompute; 0: no probe
  // Set by the program: decode quantized keys or values even if they could be kept.
  bool decode_keys = false;
  bool decode_values = false;
};
void add_foreign_flags(FlagSet& app, ForeignFlags& flags);
// The flags that do not need a model's weights.
void add_reading_flags(FlagSet& app, ForeignFlags& flags);

struct ForeignInput {
  std::string name;  // for messages
  FileKind kind = FileKind::kMlxLm;
  std::uint64_t file_bytes = 0;
  interop::OpenedCache opened;  // with notes on the findings
};

// Reads the file; with a model also the model's identity; with a model and the tokens, runs the
// probe: some tokens are recomputed and compared. `first_tokens` truncates the cache.
//
// Errors: those of the importers; kMismatch if the probe fails.
Result<ForeignInput> open_foreign(const Console& console, const std::string& name,
                                  std::shared_ptr<const ByteSource> file, FileKind kind,
                                  const ForeignFlags& flags, const ModelFacts& model,
                                  std::optional<std::int64_t> first_tokens, unsigned n_threads);

}  // namespace tqcache::cli
