#pragma once
// What the tests of a library of prompts share: stores, prompts as files, and what comes back.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "support/cache_builder.h"
#include "support/temp_dir.h"
#include "tqcache/file.h"
#include "tqcache/reader.h"
#include "tqcache/store.h"
#include "tqcache/tqkv.h"

namespace tqcache::test {

inline constexpr cache::HeadShape kHeads{1, 32};  // small, so that tests are quick

inline std::unique_ptr<store::Backend> open_store(const std::string& url = "memory:") {
  return must(store::open_backend(url, {.credentials = store::credentials_of_environment()}));
}

inline Bytes file_of(const cache::Cache& cache,
                     format::Compression compression = format::Compression::kNone) {
  format::WriteOptions options;
  options.compression = compression;
  return must(format::write_cache_bytes(cache, options));
}

inline Sha256 name_of(const Bytes& file) {
  return must(format::read_cache_info(*memory_source(file))).content_name;
}

inline store::PutReport put(store::Library& library, const Bytes& file, std::string_view name,
                            const store::PutOptions& options = {}) {
  return must(library.put_file(*memory_source(file), name, {}, options));
}

inline cache::Cache load(const store::StoredPrompt& prompt) {
  return must(cache::load(prompt, {.n_threads = 2}));
}

inline store::PromptRecord record_of(store::Library& library, std::string_view name) {
  return must(library.record(name)).value();
}

// The file that a fetch writes; nullopt if nothing is left.
inline std::optional<Bytes> fetched_file(store::Library& library, store::Prefix& prefix) {
  const TempDir folder;
  AtomicFile file = must(AtomicFile::create(folder / "x.tqkv", Overwrite::kRefuse));
  if (!must(library.fetch_to(file, prefix))) return std::nullopt;
  must(file.commit());
  return read_all(folder / "x.tqkv");
}

inline Bytes fetched_file(store::Library& library, std::string_view name) {
  const TempDir folder;
  AtomicFile file = must(AtomicFile::create(folder / "x.tqkv", Overwrite::kRefuse));
  must(library.fetch_to(file, record_of(library, name)));
  must(file.commit());
  return read_all(folder / "x.tqkv");
}

inline cache::Cache load(const Bytes& file) {
  return must(format::read_cache(*memory_source(file), {.n_threads = 2}));
}

// Has one blob in memory at a time while a fetch writes a file.
inline store::LibraryOptions one_blob_at_a_time(unsigned n_threads = 2) {
  store::LibraryOptions options;
  options.n_threads = n_threads;
  options.window_bytes = 1;
  return options;
}

// The tokens of `cache` and `n` more.
inline std::vector<std::int32_t> and_more(const cache::Cache& cache, std::size_t n = 1) {
  std::vector<std::int32_t> tokens = cache.tokens;
  tokens.resize(tokens.size() + n, 7);
  return tokens;
}

inline std::vector<std::string> all_keys(store::Backend& backend, const std::string& prefix = "") {
  std::vector<std::string> keys;
  must(backend.list(prefix, [&](const store::Entry& entry) -> Result<void> {
    keys.push_back(entry.key);
    return {};
  }));
  return keys;
}

// A library that notes what it tells.
struct ToldLibrary {
  explicit ToldLibrary(store::Backend& backend, std::string salt = {})
      : library(backend,
                {.salt = std::move(salt),
                 .n_threads = 2,
                 .on_warning = [this](const std::string& message) { told.push_back(message); }}) {}
  ToldLibrary(const ToldLibrary&) = delete;

  store::Library* operator->() { return &library; }

  std::vector<std::string> told;
  store::Library library;
};

}  // namespace tqcache::test
