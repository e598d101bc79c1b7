#pragma once
// store/library/library.h: prompts in a store: put, found by their longest prefix, and fetched.
//
// Missing or damaged blobs make a prefix shorter and are reported to `on_warning`. A bad block is
// removed if it still is the same.
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
#include "tqcache/cache/reader.h"
#include "tqcache/format/manifest.h"
#include "tqcache/format/sections/compression.h"
#include "tqcache/store/backend.h"
#include "tqcache/store/blobs/blob.h"
#include "tqcache/store/blobs/keys.h"

namespace tqcache::store {

struct LibraryOptions {
  std::string salt = {};
  unsigned n_threads = 0;
  OnWarning on_warning = {};
};

struct PutOptions {
  bool replace = false;      // replaces a prompt of that name with other content
  std::int64_t created = 0;  // seconds since 1970, stored in the record
};

struct PutReport {
  std::int64_t n_tokens = 0;
  std::int64_t blocks = 0, new_blocks = 0;
  // Existing blocks of the same tokens with other values, from another computation. They stay, and
  // the prompt uses them. Counted only for a named prompt.
  std::int64_t other_blocks = 0;
  std::uint64_t bytes = 0, new_bytes = 0;  // of blobs
  std::string key;                         // of the record of a named prompt
  Sha256 content_name{};                   // content digest of the named prompt
};

// A prefix that was found in a store.
struct Prefix {
  std::int64_t n_tokens = 0;
  std::vector<std::int32_t> tokens;  // these
  std::string parameters_key;
  Parameters parameters;
  std::vector<Sha256> chain;         // of the blocks of the prefix
  std::optional<Snapshot> snapshot;  // if the prefix ends with a snapshot, which holds the rest
  std::string state_key;
};

// A fetched prompt: its sections in memory as they were stored. It obeys the rules of a file.
class StoredPrompt : public cache::CacheReader {
 public:
  // Requires: check_contents(manifest) and check_sections(manifest), with `stored` in the places
  //           of the sections.
  StoredPrompt(format::Manifest manifest, std::vector<SharedBytes> stored,
               std::uint64_t blob_bytes);

  const format::Manifest& manifest() const { return manifest_; }
  const cache::CacheDesc& description() const override { return manifest_; }
  const std::vector<cache::BlockInfo>& blocks() const override { return blocks_; }
  Result<void> read(std::size_t section, AlignedBytes& raw) const override;
  Result<SharedBytes> share(std::size_t section) const override;
  // Its stored bytes, whose checksum manifest() has.
  const SharedBytes& stored(std::size_t section) const { return stored_[section]; }
  std::uint64_t blob_bytes() const { return blob_bytes_; }  // that were read

 private:
  format::Manifest manifest_;
  std::vector<cache::BlockInfo> blocks_;
  std::vector<SharedBytes> stored_;
  std::uint64_t blob_bytes_ = 0;
  format::Decompressor decompressor_;
};

struct FindOptions {
  std::int64_t max_tokens = 0;  // limit for the prefix; 0: one less than the prompt has
  // Find only chains with these quantization settings (same_settings()).
  const std::vector<cache::LayerDesc>* settings = nullptr;
};

// Whether layers agree in everything except means, outlier channels, transforms and array shapes. A
// cache cannot be continued with other settings.
bool same_settings(const std::vector<cache::LayerDesc>& a, const std::vector<cache::LayerDesc>& b);

// Threads: several may find and fetch at once; one puts at a time through one Library.
class Library {
 public:
  // `backend` must outlive it.
  Library(Backend& backend, LibraryOptions options);

  // Puts a prompt from any reader. The sections of a .tqkv file (format::SectionReader) are stored
  // as the file has them. Existing blocks are reused. With an empty name no record is written, and
  // the prompt is found by its tokens only. The record of a named prompt is written last, after
  // everything it needs was seen to exist; existing blocks are read before, and put again if they
  // are damaged.
  //
  // Progress: blocks.
  // Errors:   those of the backend and the source; kUnsupported (hidden tokens, unknown origin);
  //           kInvalidArgument (no tokens; a name of more than 512 bytes, or one that is in use
  //           for another prompt); kTooLarge if all slots are taken, or the backend drops blocks as
  //           they are put.
  Result<PutReport> put(const cache::CacheReader& prompt, std::string_view name,
                        const Progress& progress = {}, const PutOptions& options = {});
  Result<PutReport> put_file(const ByteSource& file, std::string_view name,
                             const Progress& progress = {}, const PutOptions& options = {});
  Result<PutReport> put_cache(const cache::Cache& cache, std::string_view name,
                              const Progress& progress = {}, const PutOptions& options = {});

  // The longest stored prefix of `tokens`; of several with one length, the one with the most bytes
  // per token. n_tokens 0: no prefix was found.
  // Errors: those of the backend.
  Result<Prefix> find(const cache::Identity& identity, std::span<const std::int32_t> tokens,
                      const FindOptions& options = {});

  // Fetches a prefix. Missing or damaged blobs make it shorter: `prefix` is updated. A cache that
  // cannot be cut then has no prefix, and the result is null. Touches the blobs.
  // Progress: blobs.
  // Errors: those of the backend; kInterrupted.
  Result<std::unique_ptr<StoredPrompt>> fetch(Prefix& prefix, const Progress& progress = {});

  // The record of that name; nullopt if there is none.
  Result<std::optional<PromptRecord>> record(std::string_view name);
  // The whole prompt, or an error that names the missing (kNotFound) or damaged (kCorrupt) blob;
  // kCorrupt also if blocks were replaced by others of the same tokens with other values.
  Result<std::unique_ptr<StoredPrompt>> fetch(const PromptRecord& record,
                                              const Progress& progress = {});

  Result<void> note_usage(const UsageNote& usage);
  // Removes the record. The next gc removes what only this prompt needed.
  Result<bool> remove(std::string_view name);
  // Records of this tenant, in the order of their names.
  Result<std::vector<PromptRecord>> records();

 private:
  Backend& backend_;
  LibraryOptions options_;
};

// Writes a .tqkv file with the sections as they are stored. Its content and content digest are
// those of the prompt that was put.
// Errors: kCorrupt if the content digest differs; those of AtomicFile.
Result<void> write_stored(const StoredPrompt& prompt, AtomicFile& file);

// A stored prefix as a cache that a model can continue.
struct LoadedPrefix {
  cache::Cache cache;
  Parameters parameters;         // of its chain
  std::int64_t n_blocks = 0;     // that the store has as blocks
  std::uint64_t read_bytes = 0;  // of blobs
};

// The longest stored prefix of `tokens` that leaves at least one token for the model; nullopt if
// there is none. The prefix of a cache that can be cut ends with a token block, even if the store
// has a few more tokens: then the model reads the rest in the same chunks as if it read all tokens,
// and computes the same bits.
// Spec: docs/reference/store.md, "Generating from a store".
//
// Progress: blobs.
// Errors:   those of the backend; kCorrupt if the stored cache has other tokens; kTooLarge;
//           kInterrupted. Missing or damaged blobs are no errors: they make the prefix shorter, and
//           the library reports them.
Result<std::optional<LoadedPrefix>> load_prefix(Library& library, const cache::Identity& identity,
                                                std::span<const std::int32_t> tokens,
                                                const FindOptions& options = {},
                                                unsigned n_threads = 0,
                                                const Progress& progress = {});

}  // namespace tqcache::store
