#pragma once
// tools/cli/store_flags.h: flags that choose a store, a tenant and a prompt in the store.

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "cli/console.h"
#include "cli/flags.h"
#include "cli/prompt.h"
#include "tqcache/error.h"
#include "tqcache/store.h"

namespace tqcache::cli {

// The text of the file, without line ends at its end; without a file, TQCACHE_STORE_SALT. If that
// is missing or empty, the result is empty: the tenant without a salt.
// Errors: those of reading; kInvalidArgument (a file without a salt), kTooLarge (4,096 bytes).
Result<std::string> tenant_salt(const std::string& file);

struct StoreFlags {
  std::string url;  // empty: TQCACHE_STORE
  std::string salt_file;
};
void add_store_flag(FlagSet& app, StoreFlags& flags);
void add_salt_flag(FlagSet& app, StoreFlags& flags);

// Whether to create the store if the folder is not a store yet.
enum class StoreUse { kLook, kPut };

struct OpenStore {
  std::unique_ptr<store::Backend> backend;
  std::string salt;
  MemoryBudget memory = {};  // for prompts that are loaded

  const std::string& name() const { return backend->name(); }
  // Prints problems as warnings.
  store::Library library(unsigned n_threads = 0) const;
  // store::check_store_key().
  Result<void> check_key() const;
  // "tqcache: STORE: message"
  template <class T>
  Result<T> in(Result<T> result) const {
    return in_file(name(), std::move(result));
  }
  Result<void> in(Result<void> result) const { return in_file(name(), std::move(result)); }
};

// Errors: kInvalidArgument (no store is named, an invalid URL), kUnsupported (a backend that is not
//         built in), those of the salt and of opening; kNoKey for kPut into a store of another key
//         (not looked for in Redis).
Result<OpenStore> open_store(const Console& console, const StoreFlags& flags, StoreUse use);
// For a URL of the command line; `salt_file` as in StoreFlags.
Result<OpenStore> open_store(const Console& console, const std::string& url,
                             const std::string& salt_file, StoreUse use);

// "90s", "15m", "12h", "30d", "4w". Errors: kInvalidArgument.
Result<std::chrono::seconds> parse_duration(const std::string& text);
void add_duration_flag(FlagSet& app, const std::string& flag,
                       std::optional<std::chrono::seconds>& duration, const std::string& what);

// "2000000000", "500MB", "20GiB": the units K, M, G, T are powers of 1000 with B, and of 1024 with
// iB or alone.
// Errors: kInvalidArgument.
Result<std::uint64_t> parse_bytes(const std::string& text);
Flag* add_bytes_flag(FlagSet& app, const std::string& flag, std::optional<std::uint64_t>& bytes,
                     const std::string& what);

// "12 s", "5 min", "3 h", "17 days"
std::string duration_text(std::chrono::seconds duration);

// "2026-11-22 17:40", UTC; "unknown" for a time outside our calendar.
std::string time_text(std::int64_t seconds_since_1970);

struct StoreSelection {
  std::string name;
  std::string model;
  PromptFlags prompt;

  bool by_name() const { return !name.empty(); }
};
void add_selection_flags(FlagSet& app, StoreSelection& selection);

// Errors: kInvalidArgument unless exactly one of both is given.
Result<void> check_selection(const StoreSelection& selection);

struct FoundPrefix {
  std::int64_t n_wanted = 0;  // tokens of the prompt
  store::Prefix prefix;
};

// The longest stored prefix of the prompt, up to the whole prompt.
// Errors: those of the model, the prompt and the store; kNotFound if there is no prefix; those of
//         OpenStore::check_key().
Result<FoundPrefix> find_prefix(const Console& console, const OpenStore& store,
                                store::Library& library, const StoreSelection& selection);

// The prompt with this name. Errors: those of the store; kNotFound; those of
// OpenStore::check_key().
Result<store::PromptRecord> find_record(const OpenStore& store, store::Library& library,
                                        const std::string& name);

// The layers of a record with their quantization settings, for display and JSON. Empty if its
// parameters are gone.
Result<std::vector<cache::LayerDesc>> layers_of(const OpenStore& store,
                                                const store::PromptRecord& record);

Json record_json(const store::PromptRecord& record);
Json prefix_json(const FoundPrefix& found);

struct PromptStoreFlags {
  std::string url;
  bool no_store = false;
  bool read_only = false;
  std::string salt_file;
  std::string name;
};

// --store-name is only for verbs that generate after the prompt.
enum class StoreNames { kWithName, kWithoutName };
void add_prompt_store_flags(FlagSet& app, PromptStoreFlags& flags, StoreNames names);

struct PromptStoreChoice {
  std::string url;
  std::string salt;
  bool read_only = false;
  std::string name;  // empty: no record is stored
};

// The store to use, if any: that of --store, or of the variable TQCACHE_STORE. `obstacle` says why
// this command line cannot use a store; empty if it can. With an obstacle, --store is rejected, and
// the variable is ignored.
// Errors: kInvalidArgument; those of reading the salt file.
Result<std::optional<PromptStoreChoice>> choose_prompt_store(const PromptStoreFlags& flags,
                                                             std::string_view obstacle);

}  // namespace tqcache::cli
