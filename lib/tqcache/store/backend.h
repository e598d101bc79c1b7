#pragma once
// store/backend.h: where a library of prompts keeps its bytes: a folder, Redis, S3, or memory.
//
// A backend holds write-once blobs under short keys. Readers see a complete block or a miss, never
// a part; what a key holds never changes, it can only go. An engine may drop what it holds whenever
// it likes (Redis at its memory limit, S3 by a lifecycle rule), so a miss is always normal. A
// backend does not check what it brings back: blobs say themselves whether they are whole.
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
// What Redis takes at most, as it comes (proto-max-bulk-len).
inline constexpr std::uint64_t kMaxValueBytes = std::uint64_t{512} << 20;

// A key is 1 to 200 bytes of [a-z0-9/_.-]: words with single '/' between them, none of which is
// empty or begins with '.'. So it can stand in a path, a URL and a pattern as it is.
// Errors: kInvalidArgument.
Result<void> check_key(std::string_view key);

struct BackendOptions {
  std::chrono::milliseconds connect_timeout{2000};
  std::chrono::milliseconds idle_timeout{10000};   // with no byte coming or going
  std::uint64_t max_value_bytes = kMaxValueBytes;  // larger values are refused, put or got
  bool create = true;                              // make the folder of `dir:`, if there is none
};

struct Blob {
  std::string key;
  ByteView value;
};

enum class PutOutcome { kStored, kExisted };

struct Entry {
  std::string key;
  std::uint64_t bytes = 0;  // as the engine counts: Redis tells what it takes in its memory
  // Since it was last used, by the engine's own clock, in whole seconds; nullopt when it does not
  // say.
  std::optional<std::chrono::seconds> idle;
};

// What get() brings for keys[i]; nullopt is a miss. The view is good until the call returns. An
// error ends the get() and is its result.
using ValueSink = std::function<Result<void>(std::size_t i, std::optional<ByteView> value)>;
using EntrySink = std::function<Result<void>(const Entry& entry)>;

// Errors, of every call:
//   kIo               the engine cannot be reached, does not answer in time, or broke off twice
//   kBusy             it is there and cannot now: loading, failing over, locked, asked too often
//   kInvalidArgument  it refuses: wrong password, no permission; or a key is none
//   kTooLarge         a value above the limit, or the engine is full
//   kNotFound         the bucket, or the folder, does not exist
//   kUnsupported      it lacks a command that is needed
//   kCorrupt          what it answers is not its protocol
// A full disk, and no permission for a file, are kIo: the system's word.
//
// A connection that breaks is made anew once, and what was asked is asked again. A put that was
// done the first time then says kExisted, and a removal that there was nothing.
//
// Threads: any number may call at once. Other processes may use the same store at the same time.
// Ignore SIGPIPE to be told of broken connections as kIo.
class Backend {
 public:
  virtual ~Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  // Where it is, fit to be shown: without the password.
  const std::string& name() const { return name_; }

  // Stores the value, whole or not at all; a key that is there keeps what it has. When this
  // returns, the engine has acknowledged it, which for a folder means that it is on disk.
  // Errors: as above.
  Result<PutOutcome> put(const std::string& key, ByteView value);
  // Several, with fewer waits; outcomes in their order. After an error some may be stored.
  Result<std::vector<PutOutcome>> put(std::span<const Blob> blobs);

  // Errors: as above.
  Result<std::optional<Bytes>> get(const std::string& key);
  // Several, in order, each told to `sink` once; at most 8 values are in memory at a time.
  Result<void> get(std::span<const std::string> keys, const ValueSink& sink);

  // Whether each is there at this moment.
  Result<bool> exists(const std::string& key);
  Result<std::vector<bool>> exists(std::span<const std::string> keys);

  // Whether there was something to remove.
  Result<bool> remove(const std::string& key);
  // Only if the value is still this one: for a block that was found to be bad, which another may
  // have replaced meanwhile. In S3 comparing and removing are two steps, elsewhere one.
  Result<bool> remove_if_same(const std::string& key, ByteView value);

  // All keys that begin with `prefix`, which may be empty, in ascending order. What comes or goes
  // meanwhile may be there or not. `sink` may call the backend; its error ends the listing.
  Result<void> list(const std::string& prefix, const EntrySink& sink);

  // These were used just now. Keys that are not there are passed over. In Redis get() does that,
  // too.
  Result<void> touch(std::span<const std::string> keys);
  // Whether that costs little. Otherwise only what stands for much is worth it.
  virtual bool touches_cheaply() const { return true; }

 protected:
  Backend(std::string name, const BackendOptions& options)
      : name_(std::move(name)), options_(options) {}
  const BackendOptions& options() const { return options_; }

 private:
  // The same, with keys and sizes that have been checked.
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
// Only `dir:` is looked at by now; the others connect when they are first used.
// Errors: kInvalidArgument for what is no such URL; kUnsupported for a scheme that is not built in;
//         of `dir:` as Backend's.
Result<std::unique_ptr<Backend>> open_backend(std::string_view url, const BackendOptions& options);

// The schemes that are built in: "dir", "memory", "redis", "s3".
std::vector<std::string_view> schemes();

// how a library of prompts tells what went wrong and did not stop it.

// Told of each thing that was missing or damaged though it should have been there. May be empty.
using OnTrouble = std::function<void(const std::string& message)>;

}  // namespace tqcache::store
