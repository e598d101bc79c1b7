#pragma once
// store/library.h: prompts in a store: put, found by their longest prefix, and fetched.
//
// Nothing here relies on the store: what is missing or damaged makes a prefix shorter and is told
// to `on_trouble`. A block that is bad is removed if it is still the same.
//
// Spec: docs/store.md, "Putting" and "Finding".

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tqcache/base/file.h"
#include "tqcache/base/progress.h"
#include "tqcache/base/result.h"
#include "tqcache/cache/cache.h"
#include "tqcache/format/section_source.h"
#include "tqcache/store/backend.h"
#include "tqcache/store/blob.h"
#include "tqcache/store/keys.h"

namespace tqcache::store {

struct LibraryOptions {
  std::string salt = {};
  unsigned n_threads = 0;
  // Told of each thing that was missing or damaged though it should have been there.
  std::function<void(const std::string& message)> on_trouble = {};
};

struct PutReport {
  std::int64_t n_tokens = 0;
  std::int64_t blocks = 0, new_blocks = 0;
  std::uint64_t bytes = 0, new_bytes = 0;  // of blobs
  std::string key;                         // of the record, if there is a name
};

// A prefix that the store is said to have.
struct Prefix {
  std::int64_t n_tokens = 0;
  std::string parameters_key;
  Parameters parameters;
  std::vector<Sha256> chain;   // of the blocks of the prefix
  std::optional<State> state;  // if the prefix ends with a stored state, which holds the rest
  std::string state_key;
};

// Everything of a stored prompt, in memory as it was stored.
class StoredPrompt : public format::SectionSource {
 public:
  const format::Manifest& manifest() const override { return manifest_; }
  Result<void> read(std::size_t section, AlignedBytes& raw) const override;
  // Its stored bytes, whose checksum manifest() has.
  const SharedBytes& stored(std::size_t section) const { return stored_[section]; }
  std::uint64_t blob_bytes() const { return blob_bytes_; }  // that were read

 private:
  friend class Library;
  format::Manifest manifest_;
  std::vector<SharedBytes> stored_;
  std::uint64_t blob_bytes_ = 0;
};

struct FindOptions {
  std::int64_t max_tokens = 0;  // no longer prefix than this; 0: one less than the prompt has
  // Only chains of this form: layers without means, outliers, maps and array shapes have to be the
  // same (same_form()).
  const std::vector<format::LayerInfo>* form = nullptr;
};

bool same_form(const std::vector<format::LayerInfo>& a, const std::vector<format::LayerInfo>& b);

// Threads: several may find and fetch at once; one puts at a time through one Library.
class Library {
 public:
  // `backend` must outlive it.
  Library(Backend& backend, LibraryOptions options);

  // Puts what `source` has; blocks that are there stay. The record, if there is a name, is written
  // last, and blocks that went meanwhile are put again before.
  // Errors: those of the backend and the source; kUnsupported (hidden tokens, unknown origin);
  //         kInvalidArgument (an empty name, or one of more than 512 bytes); kTooLarge when all
  //         slots are taken.
  Result<PutReport> put_file(const ByteSource& file, std::string_view name,
                             const Progress& progress = {});
  Result<PutReport> put_cache(const cache::Cache& cache, std::string_view name,
                              const Progress& progress = {});

  // The longest prefix of `tokens` that is there, of any form, or of the one wanted; of several of
  // one length, the one with most bytes a token. n_tokens 0: there is none.
  // Errors: those of the backend.
  Result<Prefix> find(const cache::Identity& identity, std::span<const std::int32_t> tokens,
                      const FindOptions& options = {});

  // Brings it. What is missing makes it shorter: prefix.n_tokens tells what there was in the end;
  // of caches with state that cannot be cut nothing is left then, and the result is empty.
  Result<std::unique_ptr<StoredPrompt>> fetch(Prefix& prefix, const Progress& progress = {});

  // The record of that name, or none.
  Result<std::optional<Record>> record(std::string_view name);
  // All of it, or an error that names what is missing (kNotFound, kCorrupt).
  Result<std::unique_ptr<StoredPrompt>> fetch(const Record& record, const Progress& progress = {});

  Result<void> note_usage(const Usage& usage);
  // The record alone; what it needed goes with the next gc.
  Result<bool> remove(std::string_view name);
  // Records of this tenant, in the order of their names.
  Result<std::vector<Record>> records();

 private:
  Backend& backend_;
  LibraryOptions options_;
};

// Writes it as a .tqkv file, with sections as they are stored. Content and content name are those
// of the prompt that was put. Errors: kCorrupt when the content name is not the one that was put;
// those of AtomicFile.
Result<void> write_stored(const StoredPrompt& prompt, AtomicFile& file);

}  // namespace tqcache::store
