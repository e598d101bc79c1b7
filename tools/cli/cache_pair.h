#pragma once
// tools/cli/cache_pair.h: two caches of the same prompt, for the verbs that compare them.

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>

#include "cli/console.h"
#include "cli/outcome.h"
#include "tqcache/cache/diff.h"

namespace tqcache::cli {

struct CachePairFlags {
  std::string a;  // the reference
  std::string b;
  std::optional<std::int64_t> first_tokens;
  unsigned n_threads = 0;
};

void add_cache_pair_flags(CLI::App& app, CachePairFlags& flags);

struct CachePair {
  cache::Cache a;
  cache::Cache b;
  cache::CacheDifference diff;
};

// Errors: kInvalidArgument when both are standard input; those of reading, and of cache::diff.
Outcome<CachePair> load_cache_pair(const Console& console, const CachePairFlags& flags);

}  // namespace tqcache::cli
