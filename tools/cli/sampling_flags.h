#pragma once
// tools/cli/sampling_flags.h: the flags that say how generate and chat choose tokens, and where they
// end.

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "tqcache/base/result.h"
#include "tqcache/model/sampler.h"

namespace tqcache::cli {

struct SamplingFlags {
  model::SamplerOptions options;
  std::vector<std::string> stops;  // texts at which generation ends
};

void add_sampling_flags(CLI::App& app, SamplingFlags& flags);

// Errors: kInvalidArgument, naming the flag.
Result<void> check_sampling(const SamplingFlags& flags);

}  // namespace tqcache::cli
