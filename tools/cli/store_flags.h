#pragma once
// tools/cli/store_flags.h: Flags that choose a store, a tenant and a prompt in the store.

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

// The text of the file, without line ends behind it; without a file, TQCACHE_STORE_SALT, which may
// be missing or empty: that is the tenant of all who have no salt.
// Errors: those of reading; kInvalidArgument (a file without a salt), kTooLarge (4,096 bytes).
Result<std::string> tenant_salt(const std::string& file);

struct StoreFlags {
  std::string url;  // empty: TQCACHE_STORE
  std::string salt_file;
};
void add_store_flag(FlagSet& app, StoreFlags& flags);
void add_salt_flag(FlagSet& app, StoreFlags& flags);

// Whether a folder that is no store yet is made one.
enum class StoreUse { kLook, kPut };

struct OpenStore {
  std::unique_ptr<store::Backend> backend;
  std::string salt;

  const std::string& name() const { return backend->name(); }
  // Prints what goes wrong as warnings.
  store::Library library(unsigned n_threads = 0) const;
  // "tqcache: STORE: message"
  template <class T>
  Result<T> in(Result<T> result) const {
    return in_file(name(), std::move(result));
  }
  Result<void> in(Result<void> result) const { return in_file(name(), std::move(result)); }
};

// Errors: kInvalidArgument (no store is named, a URL that is none), kUnsupported (an engine that is
//         not built in), those of the salt and of opening.
Result<OpenStore> open_store(const StoreFlags& flags, StoreUse use);
// By a URL of the command line; `salt_file` as in StoreFlags.
Result<OpenStore> open_store(const std::string& url, const std::string& salt_file, StoreUse use);

// "90s", "15m", "12h", "30d", "4w". Errors: kInvalidArgument.
Result<std::chrono::seconds> parse_duration(const std::string& text);
void add_duration_flag(FlagSet& app, const std::string& flag,
                       std::optional<std::chrono::seconds>& duration, const std::string& what);

// "2000000000", "500MB", "20GiB": K, M, G, T of 1000 with B, of 1024 with iB or alone.
// Errors: kInvalidArgument.
Result<std::uint64_t> parse_bytes(const std::string& text);
void add_bytes_flag(FlagSet& app, const std::string& flag, std::optional<std::uint64_t>& bytes,
                    const std::string& what);

// "12 s", "5 min", "3 h", "17 days"
std::string duration_text(std::chrono::seconds duration);

// "2026-11-22 17:40", UTC; "unknown" for what is no time of our calendar.
std::string time_text(std::int64_t seconds_since_1970);

struct StoreSelection {
  std::string name;
  std::string model;
  PromptFlags prompt;

  bool by_name() const { return !name.empty(); }
};
void add_selection_flags(FlagSet& app, StoreSelection& selection);

// Errors: kInvalidArgument when it is not one of both.
Result<void> check_selection(const StoreSelection& selection);

struct FoundPrefix {
  std::int64_t n_wanted = 0;  // tokens of the prompt
  store::Prefix prefix;
};

// The longest beginning of the prompt that is there, up to all of it.
// Errors: those of the model, the prompt and the store; kNotFound when nothing is there.
Result<FoundPrefix> find_prefix(const OpenStore& store, store::Library& library,
                                const StoreSelection& selection);

// What is kept under the name. Errors: those of the store; kNotFound.
Result<store::PromptRecord> find_record(const OpenStore& store, store::Library& library,
                                        const std::string& name);

// Of a record: forms of its layers, for people and for JSON. Empty if its parameters are gone.
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
  std::string name;  // empty: no record is kept
};

// The store to be used, if any: that of --store, or of the variable TQCACHE_STORE. `obstacle` says
// why this command line cannot go with one, if it cannot: then --store is refused, and the variable
// passed over.
// Errors: kInvalidArgument; those of reading the file of the salt.
Result<std::optional<PromptStoreChoice>> choose_prompt_store(const PromptStoreFlags& flags,
                                                             std::string_view obstacle);

}  // namespace tqcache::cli
