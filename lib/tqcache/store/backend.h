#pragma once
// store/backend.h: the storage of a prompt library: a folder, Redis, S3, or memory.
//
// A backend holds write-once blobs under short keys. Readers see a complete value or a miss, never
// a part. The value of a key never changes; it can only be removed. A backend may drop values at
// any time (Redis at its memory limit, S3 by a lifecycle rule), so a miss is not an error. A
// backend does not check the values that it returns: blobs carry their own checksums.
//
// Spec: docs/reference/store.md.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tqcache/base/bytes.h"
#include "tqcache/base/result.h"

namespace tqcache::store {

inline constexpr std::size_t kMaxKeyBytes = 200;
// The default limit of Redis (proto-max-bulk-len).
inline constexpr std::uint64_t kMaxValueBytes = std::uint64_t{512} << 20;

// A key is 1 to 200 bytes of [a-z0-9/_.-]: words with single '/' between them, none of which is
// empty or begins with '.'. It can be used unchanged in a path, a URL and a pattern.
// Errors: kInvalidArgument.
Result<void> check_key(std::string_view key);

struct BackendOptions {
  std::chrono::milliseconds connect_timeout{2000};
  std::chrono::milliseconds idle_timeout{10000};   // without a byte in either direction
  std::uint64_t max_value_bytes = kMaxValueBytes;  // larger values are refused by put() and get()
  bool create = true;  // create the folder of `dir:` if it does not exist
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

// Errors, of every call:
//   kIo               the backend cannot be reached, does not answer in time, or broke off twice
//   kBusy             it cannot answer now: loading, failing over, locked, too many requests
//   kInvalidArgument  it refuses: wrong password, no permission; or a key is invalid
//   kTooLarge         a value above the limit, or the backend is full
//   kNotFound         the bucket or the folder does not exist
//   kUnsupported      it lacks a command that is needed
//   kCorrupt          its answer does not follow the protocol
// A full disk and a missing permission for a file are kIo, with the message of the system.
//
// A broken connection is opened again once, and the request is repeated. A put that was done the
// first time then returns kExisted, and a removal returns false.
//
// Threads: any number may call at once. Other processes may use the same store at the same time.
// Ignore SIGPIPE to get broken connections as kIo.
class Backend {
 public:
  virtual ~Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  // The place of the store for messages, without the password.
  const std::string& name() const { return name_; }

  // Stores the value completely or not at all. An existing key keeps its value. When this returns,
  // the backend has acknowledged the value, which for a folder means that it is on disk.
  // Errors: as above.
  Result<PutOutcome> put(const std::string& key, ByteView value);
  // Several, with fewer round trips; outcomes in their order. After an error some may be stored.
  Result<std::vector<PutOutcome>> put(std::span<const Blob> blobs);

  // Errors: as above.
  Result<std::optional<Bytes>> get(const std::string& key);
  // Several, in order, each passed to `sink` once; at most 8 values are in memory at a time.
  Result<void> get(std::span<const std::string> keys, const ValueSink& sink);

  // Whether each key exists at this moment.
  Result<bool> exists(const std::string& key);
  Result<std::vector<bool>> exists(std::span<const std::string> keys);

  // Returns whether the key existed.
  Result<bool> remove(const std::string& key);
  // Removes the key only if it still has this value: for a bad blob, which another process may have
  // replaced meanwhile. In S3 comparing and removing are two steps, elsewhere one.
  Result<bool> remove_if_same(const std::string& key, ByteView value);

  // All keys that begin with `prefix`, which may be empty, in ascending order. Keys that are put or
  // removed meanwhile may be listed or not. `sink` may call the backend; its error ends the
  // listing.
  Result<void> list(const std::string& prefix, const EntrySink& sink);

  // Marks the keys as used just now; missing keys are ignored. In Redis get() does so, too.
  Result<void> touch(std::span<const std::string> keys);
  // Whether touch() is cheap. Otherwise only the most important keys should be touched.
  virtual bool touches_cheaply() const { return true; }

 protected:
  Backend(std::string name, const BackendOptions& options)
      : name_(std::move(name)), options_(options) {}
  const BackendOptions& options() const { return options_; }

 private:
  // The same with checked keys and sizes.
  virtual Result<std::vector<PutOutcome>> do_put(std::span<const Blob> blobs) = 0;
  virtual Result<void> do_get(std::span<const std::string> keys, const ValueSink& sink) = 0;
  virtual Result<std::vector<bool>> do_exists(std::span<const std::string> keys) = 0;
  virtual Result<bool> do_remove(const std::string& key, std::optional<ByteView> only) = 0;
  virtual Result<void> do_list(const std::string& prefix, const EntrySink& sink) = 0;
  virtual Result<void> do_touch(std::span<const std::string> keys) = 0;

  std::string name_;
  BackendOptions options_;
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

// The schemes that are built in: "dir", "memory", "redis", "s3".
std::vector<std::string_view> schemes();

// Receives a message for each blob that was unexpectedly missing or damaged. May be empty.
using OnWarning = std::function<void(const std::string& message)>;

}  // namespace tqcache::store
