#pragma once
// tools/cli/common_flags.h: flags that several verbs share.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/flags.h"
#include "tqcache/decoder.h"
#include "tqcache/sampler.h"
#include "tqcache/tqkv.h"

namespace tqcache::cli {

// An invalid command line.
inline Error usage_error(std::string message) { return invalid(std::move(message)); }

void add_model_flag(FlagSet& flags, std::string& path, bool required);
// --max-memory, which goes into Console::access.
void add_memory_flag(FlagSet& flags);
// --threads and --max-memory.
void add_resource_flags(FlagSet& flags, unsigned& n_threads);
void add_scorer_flag(FlagSet& flags, model::Scorer& scorer);
void add_activations_flag(FlagSet& flags, model::ActivationBits& bits);
void add_map_flag(FlagSet& flags, bool& map);
void add_verify_digest_flag(FlagSet& flags, bool& verify_digests);
void add_first_tokens_flag(FlagSet& flags, std::optional<std::int64_t>& first_tokens);
void add_no_tokens_flag(FlagSet& flags, bool& no_tokens);
void add_force_flag(FlagSet& flags, bool& force);

struct CompressionFlags {
  std::string method;  // "zstd", "planes", "none"
  bool is_given = false;
  int level = 1;  // of zstd
};
void add_compression_flags(FlagSet& flags, CompressionFlags& compression,
                           const std::string& method);

// Errors: kInvalidArgument.
Result<format::WriteOptions> write_options(const CompressionFlags& flags, unsigned n_threads,
                                           bool force);

// How generate and chat choose tokens and when they stop.
struct SamplingFlags {
  model::SamplerOptions options;
  std::vector<std::string> stops;  // texts before which generation stops
};
void add_sampling_flags(FlagSet& flags, SamplingFlags& sampling);

// Errors: kInvalidArgument, naming the flag.
Result<void> check_sampling(const SamplingFlags& flags);

// The keys of clients of tqcache serve in a file, one on a line. None without a file. Warns if
// others can use the file. Errors: those of reading; kInvalidArgument (no key).
Result<std::vector<std::string>> read_api_keys(const std::string& file);

}  // namespace tqcache::cli
