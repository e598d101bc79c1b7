#pragma once
// store/library/library.h: prompts in a store: put, found by their longest prefix, and fetched.
//
// Nothing here relies on the store: what is missing or damaged makes a prefix shorter and is told
// to `on_trouble`. A block that is bad is removed if it is still the same.
//
// Spec: docs/reference/store.md, "Putting" and "Finding".

#include <cstdint>
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
#include "tqcache/format/sections/compression.h"
#include "tqcache/store/backend.h"
#include "tqcache/store/blobs/blob.h"
#include "tqcache/store/blobs/keys.h"

namespace tqcache::store {

struct LibraryOptions {
  std::string salt = {};
  unsigned n_threads = 0;
  OnTrouble on_trouble = {};
};

struct PutOptions {
  bool replace = false;      // a record of that name with other content goes
  std::int64_t created = 0;  // seconds since 1970: what the record says of its age
};

struct PutReport {
  std::int64_t n_tokens = 0;
  std::int64_t blocks = 0, new_blocks = 0;
  // Blocks of the same tokens that somebody else computed, with other values, and that stay. What
  // was put is then found with these. Looked at only if there is a name.
  std::int64_t other_blocks = 0;
  std::uint64_t bytes = 0, new_bytes = 0;  // of blobs
  std::string key;                         // of the record, if there is a name
  Sha256 content_name{};                   // of what the record stands for, if there is one
};

// A prefix that the store is said to have.
struct Prefix {
  std::int64_t n_tokens = 0;
  std::vector<std::int32_t> tokens;  // these
  std::string parameters_key;
  Parameters parameters;
  std::vector<Sha256> chain;   // of the blocks of the prefix
  std::optional<State> state;  // if the prefix ends with a stored state, which holds the rest
  std::string state_key;
};

// Everything of a stored prompt, in memory as it was stored, and checked: whatever is in it keeps
// to the rules of a file.
class StoredPrompt : public format::SectionSource {
 public:
  // Requires: check_contents(manifest) and check_sections(manifest), with `stored` in the places
  //           of the sections.
  StoredPrompt(format::Manifest manifest, std::vector<SharedBytes> stored,
               std::uint64_t blob_bytes);

  const format::Manifest& manifest() const override { return manifest_; }
  Result<void> read(std::size_t section, AlignedBytes& raw) const override;
  std::optional<SharedBytes> in_memory(std::size_t section) const override;
  // Its stored bytes, whose checksum manifest() has.
  const SharedBytes& stored(std::size_t section) const { return stored_[section]; }
  std::uint64_t blob_bytes() const { return blob_bytes_; }  // that were read

 private:
  format::Manifest manifest_;
  std::vector<SharedBytes> stored_;
  std::uint64_t blob_bytes_ = 0;
  format::Decompressor decompressor_;
};

struct FindOptions {
  std::int64_t max_tokens = 0;  // no longer prefix than this; 0: one less than the prompt has
  // Only chains of this form: layers without means, outliers, maps and array shapes have to be the
  // same (same_form()).
  const std::vector<cache::LayerDesc>* form = nullptr;
};

// What was computed in one form cannot go on in another.
bool same_form(const std::vector<cache::LayerDesc>& a, const std::vector<cache::LayerDesc>& b);

// Threads: several may find and fetch at once; one puts at a time through one Library.
class Library {
 public:
  // `backend` must outlive it.
  Library(Backend& backend, LibraryOptions options);

  // Puts a .tqkv file with its sections as they are stored there, or a cache; blocks that are there
  // stay. With an empty name there is no record, and others will find what was put by its tokens
  // alone. The record is written last, when all that it needs was seen to be there; what is there
  // already is read and compared before, and put again if it is damaged.
  //
  // Progress: blocks.
  // Errors:   those of the backend and the source; kUnsupported (hidden tokens, unknown origin);
  //           kInvalidArgument (no tokens; a name of more than 512 bytes, or one that stands for
  //           something else); kTooLarge when all slots are taken, or the engine drops blocks as
  //           they are put.
  Result<PutReport> put_file(const ByteSource& file, std::string_view name,
                             const Progress& progress = {}, const PutOptions& options = {});
  Result<PutReport> put_cache(const cache::Cache& cache, std::string_view name,
                              const Progress& progress = {}, const PutOptions& options = {});

  // The longest prefix of `tokens` that is there, of any form, or of the one wanted; of several of
  // one length, the one with most bytes a token. n_tokens 0: there is none.
  // Errors: those of the backend.
  Result<Prefix> find(const cache::Identity& identity, std::span<const std::int32_t> tokens,
                      const FindOptions& options = {});

  // Brings it. What is missing or damaged makes it shorter: `prefix` tells what there was in the
  // end; of caches with state that cannot be cut nothing is left then, and the result is empty.
  // Tells the engine that the blobs were used.
  // Progress: blobs. Errors: those of the backend; kInterrupted.
  Result<std::unique_ptr<StoredPrompt>> fetch(Prefix& prefix, const Progress& progress = {});

  // The record of that name, or none.
  Result<std::optional<Record>> record(std::string_view name);
  // All of it, or an error that names what is missing (kNotFound) or damaged (kCorrupt); kCorrupt
  // also when blocks went and others of the same tokens, with other values, took their place.
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

// the longest stored beginning of a prompt as a cache that a model goes on from.
//
// Spec: docs/reference/store.md, "Generating from a store".

struct Beginning {
  cache::Cache cache;
  Parameters parameters;         // of its chain
  std::int64_t n_blocks = 0;     // that stand in the store as blocks
  std::uint64_t read_bytes = 0;  // of blobs
};

// The longest beginning of `tokens` that leaves one for the model to read; nullopt when there is
// none. Of caches that can be cut it ends with a token block, even if the store has a few tokens
// more: then the model reads the rest in the same chunks as if it read all, and gives the same
// bits.
//
// Progress: blobs.
// Errors:   those of the backend; kCorrupt when what was brought is no cache of these tokens;
//           kTooLarge; kInterrupted. What is missing or damaged is none: it makes the beginning
//           shorter, and the library tells of it.
Result<std::optional<Beginning>> load_beginning(Library& library, const cache::Identity& identity,
                                                std::span<const std::int32_t> tokens,
                                                const FindOptions& options = {},
                                                unsigned n_threads = 0,
                                                const Progress& progress = {});

}  // namespace tqcache::store
