#pragma once
// tools/cli/store_flags.h: which store, and whose prompts in it: for the verbs of `tqcache store`.

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "cli/outcome.h"
#include "tqcache/store/backend.h"
#include "tqcache/store/library/library.h"

namespace tqcache::cli {

struct StoreFlags {
  std::string url;  // empty: TQCACHE_STORE
  std::string salt_file;
};
void add_store_flag(CLI::App& app, StoreFlags& flags);
void add_salt_flag(CLI::App& app, StoreFlags& flags);

// Whether a folder that is no store yet is made one.
enum class StoreUse { kLook, kPut };

struct OpenStore {
  std::unique_ptr<store::Backend> backend;
  std::string salt;

  const std::string& name() const { return backend->name(); }
  // Tells of warnings as warnings.
  store::Library library(unsigned n_threads = 0) const;
  // "tqcache: STORE: message"
  template <class T>
  Outcome<T> in(Result<T> result) const {
    return in_file(name(), std::move(result));
  }
  Outcome<Done> in(Result<void> result) const { return in_file(name(), std::move(result)); }
};

// Errors: kInvalidArgument (no store is named, a URL that is none), kUnsupported (an engine that is
//         not built in), those of the salt and of opening.
Outcome<OpenStore> open_store(const StoreFlags& flags, StoreUse use);
// By a URL of the command line; `salt_file` as in StoreFlags.
Outcome<OpenStore> open_store(const std::string& url, const std::string& salt_file, StoreUse use);

// "90s", "15m", "12h", "30d", "4w". Errors: kInvalidArgument.
Result<std::chrono::seconds> parse_duration(const std::string& text);
void add_duration_flag(CLI::App& app, const std::string& flag,
                       std::optional<std::chrono::seconds>& duration, const std::string& what);

// "2000000000", "500MB", "20GiB": K, M, G, T of 1000 with B, of 1024 with iB or alone.
// Errors: kInvalidArgument.
Result<std::uint64_t> parse_bytes(const std::string& text);
void add_bytes_flag(CLI::App& app, const std::string& flag, std::optional<std::uint64_t>& bytes,
                    const std::string& what);

// "12 s", "5 min", "3 h", "17 days"
std::string duration_text(std::chrono::seconds duration);

// "2026-11-22 17:40", UTC; "unknown" for what is no time of our calendar.
std::string time_text(std::int64_t seconds_since_1970);

}  // namespace tqcache::cli
