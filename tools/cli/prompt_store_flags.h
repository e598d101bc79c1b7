#pragma once
// tools/cli/prompt_store_flags.h: the flags and variables that name a store which a session begins
// from.

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "tqcache/base/result.h"

namespace tqcache::cli {

struct PromptStoreFlags {
  std::string url;
  bool no_store = false;
  bool read_only = false;
  std::string salt_file;
  std::string name;
};

// `--store-name` only where a session goes on after its prompt.
enum class StoreNames { kWithName, kWithoutName };
void add_prompt_store_flags(CLI::App& app, PromptStoreFlags& flags, StoreNames names);

struct PromptStoreChoice {
  std::string url;
  std::string salt;
  bool read_only = false;
  std::string name;  // empty: no record is kept
};

// The store to be used, if any: that of --store, or of the variable TQCACHE_STORE. `obstacle` says
// why this command line cannot go with one, if it cannot: then --store is refused, and the variable
// passed over.
// Errors: kInvalidArgument; those of reading the file of the salt.
Result<std::optional<PromptStoreChoice>> choose_prompt_store(const PromptStoreFlags& flags,
                                                             std::string_view obstacle);

}  // namespace tqcache::cli
