#pragma once
// tools/cli/export_target.h: export of a cache as a .tqkv file or in the format of another program.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/flags.h"
#include "cli/model_facts.h"
#include "tqcache/error.h"
#include "tqcache/file.h"
#include "tqcache/progress.h"
#include "tqcache/reader.h"

namespace tqcache::cli {

enum class Target { kTqkv, kMlxLm, kLlamaSession, kLlamaSequence, kHf, kNpz };

struct ExportFlags {
  std::string to;  // empty: by the extension of the output
  std::string mlx_lm_version = "0.32";
  int kv_bits = 0;
  int kv_group_size = 64;
  std::optional<std::uint32_t> llama_version;  // absent: the newest version
  std::string llama_k_type = "f16";
  std::string llama_v_type = "f16";
  std::string llama_flash_attention = "on";
  bool llama_server_tokens = false;
  std::optional<std::uint32_t> llama_streams;  // absent: as many as the cache came from
};
void add_export_flags(FlagSet& app, ExportFlags& flags);

// Errors: kInvalidArgument if several programs use the extension.
Result<Target> target_of(const ExportFlags& flags, const std::string& output);

// "mlx-lm prompt cache"
std::string_view name_of(Target target);

// What a user has to know of this cache in such a file, one sentence each: the fields that are
// dropped are added to `dropped`, and to `notes` what llama-server can do with the file of a cache
// that cannot go back.
void describe_export(Target target, const ExportFlags& flags, const cache::CacheReader& cache,
                     std::vector<std::string>& dropped, std::vector<std::string>& notes);

// Writes the whole file or no file. `rotation`: the flag --llama-rotation; `target` is not kTqkv.
//
// Errors: those of the exporters; kInvalidArgument if a model is needed and absent.
Result<void> write_target(Target target, const cache::CacheReader& cache, const std::string& output,
                          const ExportFlags& flags, const std::string& rotation,
                          const ModelFacts& model, Overwrite overwrite, const Progress& progress);

}  // namespace tqcache::cli
