#pragma once
// store/values/values.h: a namespace of checked values in a store, for other programs that keep
// blocks of their own.
//
//   TQC_TRY_ASSIGN(const auto values, Values::open("dir:blocks", "vllm", {}));
//   TQC_TRY(values->put("layer 3, block 17", meta, parts));
//   TQC_TRY_ASSIGN(const auto found, values->get("layer 3, block 17", meta));
//
// Anything wrong is a miss: no value, other metadata, another key, a flipped bit. Damage and other
// metadata are reported once per key. Values are write-once; put() replaces a value that is damaged
// or has other metadata.
//
// Spec: docs/reference/store.md, "Values of other programs".

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tqcache/access.h"
#include "tqcache/bytes.h"
#include "tqcache/error.h"
#include "tqcache/store.h"
#include "tqcache/store/values/checked_value.h"

namespace tqcache::store {

struct ValuesOptions {
  KeyRing keys = {};  // encrypts the values
  Credentials credentials = {};
  MemoryBudget memory = {};
  ValueCoding coding = ValueCoding::kRaw;
  unsigned n_threads = 0;
  OnWarning on_warning = {};  // may be called from several threads, one at a time
};

// Threads: any number may call at once. Other processes may use the same store.
class Values {
 public:
  // Errors: those of open_backend(); kInvalidArgument for a namespace that is not 1 to 64 bytes of
  //         [a-z0-9_.-], or begins with '.'.
  static Result<std::unique_ptr<Values>> open(std::string_view url, std::string_view name_space,
                                              ValuesOptions options);

  // Stores the parts, joined. Returns whether it stored them now: false if the key has a whole
  // value with the same metadata, which stays.
  // Errors: those of encode_value() and of the backend.
  Result<bool> put(std::string_view key, ByteView meta, std::span<const ByteView> data);

  // Called with the number of bytes of a whole value; returns the memory for them, or nullopt to
  // make it a miss.
  using Room = std::function<std::optional<std::vector<std::span<std::byte>>>(std::uint64_t)>;
  // Returns whether a value was read into the room.
  // Errors: those of the backend.
  Result<bool> get(std::string_view key, ByteView meta, const Room& room);

  // Errors: those of the backend.
  Result<std::vector<bool>> exists(std::span<const std::string> keys);
  Result<bool> remove(std::string_view key);

  struct Total {
    std::uint64_t values = 0;
    std::uint64_t bytes = 0;  // as the backend counts
  };
  Result<Total> total();
  // Removes the least recently used values until at most `max_bytes` remain. Returns what it
  // removed.
  Result<Total> trim(std::uint64_t max_bytes);

 private:
  Values(std::unique_ptr<Backend> backend, std::string prefix, std::string salt,
         ValuesOptions options);
  std::string stored_key(std::string_view key) const;
  Result<CheckedValue> checked(std::string_view key, ByteView meta, ByteView envelope) const;
  void warn_once(std::string_view key, const std::string& message);

  std::unique_ptr<Backend> backend_;
  std::string prefix_;  // "v/NAMESPACE/"
  std::string salt_;
  ValuesOptions options_;
  std::mutex warned_mutex_;
  std::set<std::string> warned_;
};

}  // namespace tqcache::store
