#pragma once
// tqcache/store.h: a store of prompts: a library that finds a prompt by its longest prefix, and the
// backends that keep its bytes.
//
//   TQC_TRY_ASSIGN(const auto backend, tqcache::store::open_backend("dir:prompts", {}));
//   tqcache::store::Library library(*backend, {});
//   TQC_TRY(library.put(*reader, "book"));
//   TQC_TRY_ASSIGN(auto prefix, library.find(identity, tokens));
//
// A backend holds write-once blobs under short keys: a folder, Redis, S3, or memory. Readers see a
// complete value or a miss, never a part. The value of a key never changes; it can only be removed
// (and the record of a prompt replaced by another).
// A backend may drop values at any time (Redis at its memory limit, S3 by a lifecycle rule), so a
// miss is not an error. A backend does not check the values that it returns: blobs carry their own
// checksums.
//
// Missing or damaged blobs make a prefix shorter and are reported to `on_warning`. Reading removes
// nothing. Damaged blobs are removed by puts that need their place, and by check() with `repair`,
// unless another process has replaced them meanwhile.
//
// Spec: docs/reference/store.md.

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tqcache/access.h"
#include "tqcache/bytes.h"
#include "tqcache/cache.h"
#include "tqcache/error.h"
#include "tqcache/file.h"
#include "tqcache/hash.h"
#include "tqcache/progress.h"
#include "tqcache/quantize.h"
#include "tqcache/reader.h"
#include "tqcache/tqkv.h"

namespace tqcache::store {

// --- Backends

inline constexpr std::size_t kMaxKeyBytes = 200;
// The default limit of Redis (proto-max-bulk-len).
inline constexpr std::uint64_t kMaxValueBytes = std::uint64_t{512} << 20;
// No blob of a real prompt is larger: a description has at most 128 MiB, and a section is one K or
// V of one token block. An answer of a hostile server is in memory up to three times.
inline constexpr std::uint64_t kUsualMaxValueBytes = std::uint64_t{144} << 20;

// A key is 1 to 200 bytes of [a-z0-9/_.-]: segments separated by single '/', none empty or
// beginning with '.'. It can be used unchanged in a path, a URL and a pattern.
// Errors: kInvalidArgument.
Result<void> check_key(std::string_view key);

// What servers ask for. credentials_of_environment() has what redis-cli and AWS's programs would
// use.
struct Credentials {
  std::string redis_password = {};  // where the URL has none
  std::string s3_access_key = {};
  std::string s3_secret_key = {};
  std::string s3_session_token = {};  // of temporary keys
  std::string s3_region = {};         // where the URL has none; empty: us-east-1
  // PEM files of the authorities that are trusted. Both empty: those of this system.
  std::string ca_file = {};
  std::string ca_folder = {};
};

// REDISCLI_AUTH; AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN and AWS_REGION; the
// first of AWS_CA_BUNDLE, CURL_CA_BUNDLE and SSL_CERT_FILE; SSL_CERT_DIR.
Credentials credentials_of_environment();

struct BackendOptions {
  std::chrono::milliseconds connect_timeout{2000};
  std::chrono::milliseconds idle_timeout{10000};  // without a byte in either direction
  // Of one request and its answer, over the network. The bytes have to come at `least_rate` on
  // average, after `idle_timeout`, and all of them within `time_limit`.
  std::uint64_t least_rate = 4096;  // bytes per second
  std::chrono::milliseconds time_limit{900'000};
  // Larger values are refused by put() and get(). At most kMaxValueBytes.
  std::uint64_t max_value_bytes = kUsualMaxValueBytes;
  // Larger listings are refused: a server could list forever.
  std::uint64_t max_listed_keys = std::uint64_t{1} << 21;
  std::uint64_t max_list_pages = 100'000;
  // Asked several times a second while a server is waited for; true ends the call with
  // kInterrupted. May be empty. Must be safe to call from any thread.
  std::function<bool()> interrupted = {};
  bool create = true;  // create the folder of `dir:` if it does not exist
  // Values are encrypted with the first of these keys before the store gets them; values that are
  // not encrypted are then refused. The names of values are secret only together with
  // secret_salt(). Without keys nothing is encrypted.
  KeyRing keys = {};
  Credentials credentials = {};
};

struct Blob {
  std::string key;
  ByteView value;
};

enum class PutOutcome { kStored, kExisted };

struct Entry {
  std::string key;
  std::uint64_t bytes = 0;  // as the backend counts: Redis reports the memory that it uses
  // Time since the last use, by the backend's own clock, in whole seconds; nullopt if unknown.
  std::optional<std::chrono::seconds> idle;
};

// Receives the value of keys[i]; nullopt is a miss. The view is valid until the call returns. An
// error ends the get() and becomes its result.
using ValueSink = std::function<Result<void>(std::size_t i, std::optional<ByteView> value)>;
using EntrySink = std::function<Result<void>(const Entry& entry)>;

// Errors of every call:
//   kIo               the backend cannot be reached, does not answer in time or too slowly, or
//                     broke off twice
//   kBusy             it cannot answer now: loading, failing over, locked, too many requests
//   kInvalidArgument  it refuses: wrong password, no permission; or a key is invalid
//   kTooLarge         a value above the limit, or the backend is full
//   kNotFound         the bucket or the folder does not exist
//   kUnsupported      it lacks a command that is needed
//   kCorrupt          its answer does not follow the protocol
//   kInterrupted      BackendOptions::interrupted said so
// A full disk and a missing permission for a file are kIo, with the message of the system.
//
// A broken connection is opened again once, and the request is repeated. A put that was done the
// first time then returns kExisted, and a removal returns false.
//
// Threads: any number may call at once. Other processes may use the same store at the same time;
// one that was forked opens it again (kInvalidArgument).
// Ignore SIGPIPE to get broken connections as kIo.
class Backend {
 public:
  virtual ~Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  // The place of the store for messages, without the password.
  const std::string& name() const { return name_; }

  // Stores the value completely or not at all. An existing key keeps its value. When this returns,
  // the backend has acknowledged the value; a folder has it on disk.
  // Errors: as above.
  Result<PutOutcome> put(const std::string& key, ByteView value);
  // Several, with fewer round trips; outcomes in their order. After an error some may be stored.
  Result<std::vector<PutOutcome>> put(std::span<const Blob> blobs);

  // Stores the value in place of the one that the key may have, in one step: readers see the old
  // value or the new one. Of several at once, the last one stays. For records only: the value of
  // every other key never changes.
  Result<void> replace(const std::string& key, ByteView value);

  // Errors: as above.
  Result<std::optional<Bytes>> get(const std::string& key);
  // Several, in order, each passed to `sink` once; at most 8 values are in memory at a time.
  Result<void> get(std::span<const std::string> keys, const ValueSink& sink);

  // Whether each key exists at this moment.
  Result<bool> exists(const std::string& key);
  Result<std::vector<bool>> exists(std::span<const std::string> keys);

  // Returns whether the key existed.
  Result<bool> remove(const std::string& key);
  // Removes the key only if it still has this value, because another process may have replaced a
  // damaged blob meanwhile. Compares and removes in one step, except in S3.
  Result<bool> remove_if_same(const std::string& key, ByteView value);

  // All keys that begin with `prefix`, which may be empty, in ascending order. Keys that are put or
  // removed meanwhile may be listed or not. `sink` may call the backend; its error ends the
  // listing. Errors: also kTooLarge, after more keys or pages than the options allow.
  Result<void> list(const std::string& prefix, const EntrySink& sink);

  // Marks the keys as used just now; missing keys are ignored. In Redis get() does so, too.
  Result<void> touch(std::span<const std::string> keys);
  // Whether touch() is cheap. Otherwise only the most important keys should be touched.
  virtual bool touches_cheaply() const { return true; }
  // Whether list() looks only at keys with the prefix. Redis looks at every key of the database.
  virtual bool lists_cheaply() const { return true; }

  // What killed writers left behind, which is no blob: temporary files of a folder.
  struct Leftovers {
    std::uint64_t files = 0;
    std::uint64_t bytes = 0;
  };
  // Counts leftovers that are at least `min_age` old and in use by nobody; `remove` removes them.
  virtual Result<Leftovers> leftovers(std::chrono::seconds min_age, bool remove);

 protected:
  Backend(std::string name, const BackendOptions& options);
  const BackendOptions& options() const { return options_; }

 private:
  Result<void> check_process() const;
  Result<void> check_keys(std::span<const std::string> keys) const;

  // The implementations of the calls above, with checked keys and sizes.
  virtual Result<std::vector<PutOutcome>> do_put(std::span<const Blob> blobs) = 0;
  virtual Result<void> do_get(std::span<const std::string> keys, const ValueSink& sink) = 0;
  virtual Result<std::vector<bool>> do_exists(std::span<const std::string> keys) = 0;
  virtual Result<bool> do_remove(const std::string& key, std::optional<ByteView> only) = 0;
  virtual Result<void> do_list(const std::string& prefix, const EntrySink& sink) = 0;
  virtual Result<void> do_touch(std::span<const std::string> keys) = 0;
  // By default two steps, do_remove() and do_put().
  virtual Result<void> do_replace(const Blob& blob);

  std::string name_;
  BackendOptions options_;
  long process_;  // that opened it
};

// Opens a store by its URL (docs/reference/store.md):
//   dir:PATH
//   redis://[USER:PASSWORD@]HOST[:PORT][/DB][?prefix=P][&ttl=SECONDS]
//   redis+unix://[USER:PASSWORD@]/PATH[?db=N][&prefix=P][&ttl=SECONDS]
//   s3://BUCKET[/PREFIX][?endpoint=URL][&region=R][&conditional=off]
//   memory:
// Only `dir:` is accessed now; the others connect on first use.
// Errors: kInvalidArgument for an invalid URL; kUnsupported for a scheme that is not built in; for
//         `dir:` also those of Backend.
Result<std::unique_ptr<Backend>> open_backend(std::string_view url, const BackendOptions& options);

// The salt (LibraryOptions::salt) of a tenant in an encrypted store: a secret that is derived from
// the first key and from the tenant's own salt, so that without the key nobody can compute the
// names of values and ask whether they exist. Without keys it is the tenant's own.
std::string secret_salt(const KeyRing& keys, std::string_view salt);

// The schemes that are built in: "dir", "memory", "redis", "s3".
std::vector<std::string_view> schemes();

// Receives a message for each blob that was unexpectedly missing or damaged. May be empty.
using OnWarning = std::function<void(const std::string& message)>;

// --- Records

// The kinds of blobs: docs/reference/store.md, "Blobs".
enum class BlobKind : std::uint32_t { kParameters, kBlock, kState, kData, kRecord, kUsage, kNext };
inline constexpr std::uint32_t kBlobKinds = 7;

inline constexpr std::array kAllKinds = {BlobKind::kParameters, BlobKind::kBlock,  BlobKind::kState,
                                         BlobKind::kData,       BlobKind::kRecord, BlobKind::kUsage,
                                         BlobKind::kNext};

// "parameters", "block", "state", "data", "record", "usage", "next"
std::string_view name_of(BlobKind kind);

// Prompts without a complete token block have parameters, too.
struct Parameters {
  cache::Identity identity;
  std::vector<std::int32_t> tokens;  // the first token block: 256, or all tokens
  std::vector<cache::LayerDesc>
      layers;  // with means, outliers, transforms; without shapes of arrays
};

struct Snapshot {
  std::int64_t n_tokens = 0;                 // of the whole prompt
  std::vector<std::int32_t> tail;            // its last 1 to 256 tokens
  std::vector<cache::LayerDesc> layers;      // bare_layers() of the whole prompt
  std::vector<std::string> data_keys;        // in the order of their sections
  std::uint64_t data_bytes = 0;              // size of these blobs
  Sha256 content_name{};                     // content digest of the whole prompt
  std::vector<cache::MediaSpan> media = {};  // that begin in the tail
};

struct PromptRecord {
  std::string name;
  std::string model_name;
  std::string architecture;
  std::vector<std::int32_t> tokens;  // all, or empty: then the blocks and the tail hold them
  std::string parameters_key;
  std::vector<Sha256> chain;  // of its final blocks
  Snapshot snapshot;          // as in its own blob
  std::string state_key;      // its own blob; empty: no final block, or no free slot
  std::int64_t created = 0;   // seconds since 1970, by the clock of the writer
  std::uint64_t bytes = 0;    // size of all its blobs, also shared ones
  // kUnchecked: nothing was compared with what the model computes from these tokens.
  cache::Standing standing = cache::Standing::kNone;
};

struct UsageNote {
  std::int64_t created = 0;
  std::int64_t wanted_tokens = 0;  // of the prompt; 0: nothing was looked up, the bytes count alone
  std::int64_t found_tokens = 0;   // of these, found in the store
  std::uint64_t read_bytes = 0, stored_bytes = 0;
};

// The key of the record of a prompt: "n/HEX16/HEX", with a tenant's prefix "n/HEX16/".
std::string record_prefix(std::string_view salt);
std::string record_key(std::string_view salt, std::string_view name);

}  // namespace tqcache::store

namespace tqcache::format {
class Decompressor;
}

namespace tqcache::store {

// --- The library

struct LibraryOptions {
  std::string salt = {};
  unsigned n_threads = 0;
  MemoryBudget memory = {};  // for prompts that are fetched into memory
  OnWarning on_warning = {};
  // find(), fetch() and record() remove damaged blobs, too: for a reader that will put them again.
  bool remove_damaged = false;
  // fetch() compares all content with its SHA-256, so that a prompt is what its content digest
  // says. Without it only checksums are compared, which do not show forgery. put() always compares.
  bool verify_digests = true;
  // Of blobs that fetch_to() has in memory at a time, about.
  std::uint64_t window_bytes = std::uint64_t{64} << 20;
};

struct PutOptions {
  bool replace = false;        // replaces a prompt of that name with other content
  std::int64_t created = 0;    // seconds since 1970, stored in the record
  format::Access access = {};  // to the file, for put_file()
  // Quantizes the prompt, as cache::quantize() does. With Fit::kFirstBlock, if the store has a
  // prompt with the same first token block and settings, its codecs are used (quantize_like()): so
  // both share blocks even if another processor computed other last bits, and values that came from
  // the store are rounded with the codec that they were rounded with before.
  std::optional<cache::ConvertOptions> quantization = {};
};

struct PutReport {
  std::int64_t n_tokens = 0;
  std::int64_t blocks = 0, new_blocks = 0;
  // Existing blocks with the same tokens but other values, from another computation. The prompt
  // uses them as they are.
  std::int64_t other_blocks = 0;
  // Context checkpoints that were put as prompts of their own, without a name; and those that were
  // left out because they have at most 256 tokens, so that nothing could find them.
  std::int64_t checkpoints = 0, short_checkpoints = 0;
  std::uint64_t new_checkpoint_bytes = 0;  // of blobs, beside new_bytes
  std::uint64_t bytes = 0, new_bytes = 0;  // of blobs
  std::string key;                         // of the record of a named prompt
  Sha256 content_name{};                   // content digest of the named prompt
};

// A prefix that was found in a store.
struct Prefix {
  std::int64_t n_tokens = 0;
  // Of these, the first ones that are tokens of the prompt: all, except with
  // FindOptions::finds_parts. Then truncate what fetch() returns: cache::first_tokens().
  std::int64_t n_common = 0;
  // First tokens of the prompt that are those of stored blocks, also where nothing can go on from
  // them: layers that cannot be cut have no state there.
  std::int64_t n_known = 0;
  std::vector<std::int32_t> tokens;  // of the prefix
  std::string parameters_key;
  Parameters parameters;
  std::vector<Sha256> chain;         // of the blocks of the prefix
  std::optional<Snapshot> snapshot;  // if the prefix ends with a snapshot, which holds the rest
  std::string state_key;
};

// The blobs of a prefix, named as CollectOptions::order_by has them.
std::vector<std::string> blob_names(const Prefix& prefix);

// A fetched prompt: its sections in memory as they were stored. Satisfies the rules of a .tqkv
// file.
class StoredPrompt : public cache::CacheReader {
 public:
  // Requires: check_contents(manifest) and check_sections(manifest); stored[i] holds the bytes of
  //           section i.
  StoredPrompt(format::Manifest manifest, std::vector<SharedBytes> stored,
               std::uint64_t blob_bytes);

  const format::Manifest& manifest() const { return manifest_; }
  const cache::CacheDesc& description() const override { return manifest_; }
  const std::vector<cache::BlockInfo>& blocks() const override { return blocks_; }
  Result<void> read(std::size_t section, AlignedBytes& raw) const override;
  Result<SharedBytes> share(std::size_t section) const override;
  Result<std::optional<cache::StoredBlock>> stored(std::size_t section,
                                                   const cache::Room& room) const override;
  std::uint64_t blob_bytes() const { return blob_bytes_; }  // that were read

 private:
  format::Manifest manifest_;
  std::vector<cache::BlockInfo> blocks_;
  std::vector<SharedBytes> stored_;
  std::uint64_t blob_bytes_ = 0;
  std::shared_ptr<const format::Decompressor> decompressor_;
};

// A prompt that was fetched to a file.
struct WrittenPrompt {
  format::Manifest manifest;     // but for places in the file and its encryption
  std::uint64_t blob_bytes = 0;  // that were read
};

struct FindOptions {
  std::int64_t max_tokens = 0;  // limit for the prefix; 0: one less than the prompt has
  // Of a cache that can be truncated, also find a token block or a snapshot of which only the first
  // tokens are those of the prompt: Prefix::n_common.
  bool finds_parts = false;
  // Find only chains with these quantization settings (same_settings()).
  const std::vector<cache::LayerDesc>* settings = nullptr;
  // For load_prefix(): called with the layers of what was found, before its blocks take memory. An
  // error ends the work. May be empty.
  std::function<Result<void>(const std::vector<cache::LayerDesc>& layers)> accept = {};
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
  // Context checkpoints of the reader become prompts without a name, so that find() finds the state
  // of each at its number of tokens. A prompt that is fetched has none.
  //
  // A cache whose model or tokens were stated and not checked (cache::Standing::kUnchecked) shares
  // no blocks with checked ones, and find() does not find it: it needs a name, by which it is got
  // with its standing. A cache behind a context shift is refused: it is not what the model computes
  // from its tokens.
  //
  // Progress: blocks.
  // Errors:   those of the backend and the source; kUnsupported (hidden tokens, unknown origin, a
  //           context shift, an unchecked cache without a name); kInvalidArgument (no tokens; a
  //           name of more than 512 bytes, or one that is in use for another prompt); kTooLarge if
  //           the backend drops blocks as they are put.
  Result<PutReport> put(const cache::CacheReader& prompt, std::string_view name,
                        const Progress& progress = {}, const PutOptions& options = {});
  // options.access opens the file.
  Result<PutReport> put_file(const ByteSource& file, std::string_view name,
                             const Progress& progress = {}, const PutOptions& options = {});
  Result<PutReport> put_cache(const cache::Cache& cache, std::string_view name,
                              const Progress& progress = {}, const PutOptions& options = {});

  // Finds the longest stored prefix of `tokens`; among equally long ones, the one with the most
  // bytes per token. n_tokens is 0 if no prefix was found.
  // Errors: those of the backend.
  Result<Prefix> find(const cache::Identity& identity, std::span<const std::int32_t> tokens,
                      const FindOptions& options = {});

  // Fetches a prefix. Missing or damaged blobs make it shorter: `prefix` is updated. If the cache
  // cannot be truncated, no prefix is left, and the result is null. Touches the blobs.
  // Progress: blobs.
  // Errors: those of the backend; kTooLarge (options.memory); kInterrupted.
  Result<std::unique_ptr<StoredPrompt>> fetch(Prefix& prefix, const Progress& progress = {});

  // The record of that name; nullopt if absent.
  Result<std::optional<PromptRecord>> record(std::string_view name);
  // The whole prompt, or an error that names the missing (kNotFound) or damaged (kCorrupt) blob;
  // kCorrupt also if blocks were replaced by others of the same tokens with other values.
  Result<std::unique_ptr<StoredPrompt>> fetch(const PromptRecord& record,
                                              const Progress& progress = {});

  // As fetch(), but the prompt goes to a .tqkv file, with its sections as they are stored, while
  // blobs arrive: memory holds options.window_bytes of them. Content and content digest are those
  // of the prompt that was put. The first of `keys` encrypts the file.
  //
  // The caller commits `file`; if nothing was found or after an error, it is to be dropped.
  //
  // Errors: also those of AtomicFile, whose write() then gives them again.
  Result<std::optional<WrittenPrompt>> fetch_to(AtomicFile& file, Prefix& prefix,
                                                const KeyRing& keys = {},
                                                const Progress& progress = {});
  Result<WrittenPrompt> fetch_to(AtomicFile& file, const PromptRecord& record,
                                 const KeyRing& keys = {}, const Progress& progress = {});

  Result<void> note_usage(const UsageNote& usage);
  // Removes the snapshot at the end of a prefix that was found, if no named prompt needs it: for
  // those who have put a longer prompt of which that one is the beginning. The token blocks stay.
  // Errors: those of the backend.
  Result<void> remove_snapshot(const Prefix& prefix);
  // Removes the record. The next gc removes what only this prompt needed.
  Result<bool> remove(std::string_view name);
  // Records of this tenant, in the order of their names.
  Result<std::vector<PromptRecord>> records();

  const MemoryBudget& memory() const { return options_.memory; }

 private:
  Result<std::shared_ptr<const cache::CacheReader>> quantized(
      std::shared_ptr<const cache::CacheReader> prompt, const cache::ConvertOptions& options);

  Backend& backend_;
  LibraryOptions options_;
};

// A stored prefix as a cache that a model can continue.
struct LoadedPrefix {
  cache::Cache cache;
  Parameters parameters;           // of its chain
  std::int64_t n_blocks = 0;       // that the store has as blocks
  std::uint64_t read_bytes = 0;    // of blobs
  std::vector<std::string> blobs;  // blob_names() of the prefix
};

// The longest stored prefix of `tokens` that leaves at least one token for the model; nullopt if
// absent. If the cache can be truncated, the prefix ends at a token block boundary, even if the
// store has a few more tokens. The model then reads the rest in the same chunks as without a store,
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

// What a session put while its cache grew (session.h, PromptStore).
struct BackgroundPutReport {
  std::int64_t new_blocks = 0;      // token blocks that the store did not have
  std::int64_t states = 0;          // snapshots that were put or existed
  std::uint64_t new_bytes = 0;      // of blobs
  std::int64_t left_blocks = 0;     // final blocks that were not put before the end
  std::optional<Error> error = {};  // the error that stopped it
};

}  // namespace tqcache::store
