#pragma once
// store/blobs/blob_io.h: memory for many values that stay for long.
//
// Only for the sources of store.
//
// Memory that is new to a process is given to it page by page when it is first touched, and for a
// hundred megabytes in pages of 4 KiB that takes longer than reading them from a file. So large
// values stand side by side in pieces for which the system is asked to take large pages.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "tqcache/base/bytes.h"
#include "tqcache/base/hash.h"
#include "tqcache/base/result.h"
#include "tqcache/base/shared_bytes.h"
#include "tqcache/store/backend.h"
#include "tqcache/store/blobs/blob.h"
#include "tqcache/store/blobs/keys.h"

namespace tqcache::store {

// Threads: any number may use one at once.
class BlobMemory {
 public:
  BlobMemory() : state_(std::make_unique<State>()) {}

  // Room for a value, which begins at a multiple of 64. It stays for as long as anybody has it, and
  // with it the piece that it stands in.
  struct Room {
    std::shared_ptr<std::byte> owner;
    std::span<std::byte> bytes;
    SharedBytes shared() const { return {owner, bytes}; }
  };
  Room take(std::size_t size);

  SharedBytes copy(ByteView value);

 private:
  struct State {
    std::mutex mutex;
    std::shared_ptr<std::byte> piece;
    std::size_t used = 0;
  };
  std::unique_ptr<State> state_;
};

// blobs of a store, one after another, decoded.

struct ReadBlob {
  ByteView bytes;           // good until the call returns, and so are the sections of `content`
  Result<Content> content;  // or why it is none
};

// What stands under keys[i]; nothing is a miss. An error ends the reading and is its result.
using BlobSink = std::function<Result<void>(std::size_t i, std::optional<ReadBlob> blob)>;

// Errors: those of the backend.
Result<void> read_blobs(Backend& backend, std::span<const std::string> keys, const BlobSink& sink);

// The content, which is to be of one kind; the message of an error names the key.
// Errors: those of decode_blob(); kCorrupt when it is of another kind.
template <class T>
Result<T> content_of(const std::string& key, ReadBlob blob) {
  if (!blob.content) return in_context(key, std::move(blob.content).error());
  T* const content = std::get_if<T>(&*blob.content);
  if (content == nullptr) return Error{ErrorCode::kCorrupt, key + ": holds something else"};
  return std::move(*content);
}

// blobs brought from a store, and judged: what is bad is told and removed.

// Told of the content of keys[i], one at a time but in any order; an error says that it is not what
// belongs there. kInterrupted ends the reading.
using ContentSink =
    std::function<Result<void>(std::size_t i, Content content, std::uint64_t blob_bytes)>;

// What became of a key.
enum class Found { kMissing, kBad, kGood };

class BlobReader {
 public:
  // `backend` must outlive it.
  BlobReader(Backend& backend, OnTrouble on_trouble, unsigned n_threads = 1)
      : backend_(&backend), on_trouble_(std::move(on_trouble)), n_threads_(n_threads) {}

  // Brings all of them, many at a time. One that is damaged, or that `take` finds to be another
  // than it should be, is told, and removed if it still is the same; one of a later version only
  // told.
  // Errors: those of the backend; kInterrupted.
  Result<std::vector<Found>> read(std::span<const std::string> keys, const ContentSink& take);

  // One of them; nullopt also when it is bad.
  template <class Kind>
  Result<std::optional<Kind>> read_one(const std::string& key) {
    std::optional<Kind> found;
    TQC_TRY(
        read(std::span(&key, 1), [&](std::size_t, Content content, std::uint64_t) -> Result<void> {
          TQC_TRY_ASSIGN(found, take_kind<Kind>(std::move(content)));
          return {};
        }));
    return found;
  }

  template <class Kind>
  static Result<Kind> take_kind(Content content) {
    if (auto* kind = std::get_if<Kind>(&content)) return std::move(*kind);
    return Error{ErrorCode::kMismatch, "a blob of another kind"};
  }

  std::uint64_t bytes() const { return bytes_; }  // of all that were brought

  void tell(const std::string& message) const {
    if (on_trouble_) on_trouble_(message);
  }

 private:
  struct Bad {
    std::string key;
    SharedBytes value;
    Error error;
  };
  struct Reading;
  Result<void> read_some(std::span<const std::string> keys, std::size_t first, Reading& reading);
  Result<void> drop(const std::vector<Bad>& bad);

  Backend* backend_;
  OnTrouble on_trouble_;
  unsigned n_threads_;
  BlobMemory memory_;
  std::uint64_t bytes_ = 0;
};

// what stands in the slots of a key: parameters of a first token block, states
// behind a block.

// The good ones of these keys, by their place. Errors: those of the backend.
template <class Kind>
Result<std::vector<std::optional<Kind>>> read_slots(BlobReader& reader,
                                                    const std::vector<std::string>& keys) {
  std::vector<std::optional<Kind>> slots(keys.size());
  TQC_TRY(reader.read(keys, [&](std::size_t i, Content content, std::uint64_t) -> Result<void> {
    TQC_TRY_ASSIGN(slots[i], BlobReader::take_kind<Kind>(std::move(content)));
    return {};
  }));
  return slots;
}

struct Slot {
  std::string key;
  bool is_new = false;
  std::uint64_t bytes = 0;  // of `content` there
};

// The slot that holds what `is_wanted` says, or the first empty one, which then gets `content`;
// none if all hold something else. Errors: those of the backend and of encode_blob().
template <class Kind>
Result<std::optional<Slot>> find_or_take(Backend& backend, BlobReader& reader,
                                         const std::vector<std::string>& keys,
                                         const std::function<bool(const Kind&)>& is_wanted,
                                         const Content& content) {
  TQC_TRY_ASSIGN(const auto slots, read_slots<Kind>(reader, keys));
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (!slots[i] || !is_wanted(*slots[i])) continue;
    TQC_TRY_ASSIGN(const Bytes blob, encode_blob(keys[i], content));
    return std::optional(Slot{keys[i], false, blob.size()});
  }
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (slots[i]) continue;
    TQC_TRY_ASSIGN(const Bytes blob, encode_blob(keys[i], content));
    TQC_TRY_ASSIGN(const PutOutcome outcome, backend.put(keys[i], blob));
    if (outcome == PutOutcome::kStored) return std::optional(Slot{keys[i], true, blob.size()});
    // Another took it meanwhile, perhaps with the same.
    TQC_TRY_ASSIGN(const auto other, reader.read_one<Kind>(keys[i]));
    if (other && is_wanted(*other)) return std::optional(Slot{keys[i], false, blob.size()});
  }
  return std::optional<Slot>();
}

// blobs on their way into a store, many at a time, in an order that readers can
// rely on, and no more of them in memory than a bound.

// Blobs are put when there are so many bytes of them, or half as many and the engine has nothing to
// do. While they are, so many more are gathered.
inline constexpr std::uint64_t kOutboxBytes = std::uint64_t{32} << 20;

// Threads: one at a time.
class Outbox {
 public:
  explicit Outbox(Backend& backend) : backend_(&backend) {}

  // The blobs of one block. The first one stands for all: it is put when the engine has
  // acknowledged the others.
  // Errors: those of the backend, for whatever was put since. Nothing may be added after one.
  struct Value {
    std::string key;
    SharedBytes bytes;
  };
  Result<void> add_block(std::vector<Value> parts);

  // One that nothing depends on.
  Result<void> add(Value value);

  // Returns when all are acknowledged.
  Result<void> flush();

  std::int64_t new_blocks() const { return new_blocks_; }  // whose first blob was not there before
  std::uint64_t bytes() const { return bytes_; }           // of all that were added
  std::uint64_t new_bytes() const { return new_bytes_; }   // of those that were not there before

 private:
  struct Waiting {
    Value value;
    bool is_first = false;
  };
  void push(std::vector<Waiting>& to, Value value, bool is_first);
  using Outcomes = Result<std::vector<PutOutcome>>;
  bool is_idle() const;
  Result<void> put_if_many();
  Result<void> begin_put();
  Result<void> end_put();

  Backend* backend_;
  std::vector<Waiting> ready_;  // to be put with the next ones
  std::vector<Waiting> after_;  // and these once `ready_` is there
  // On their way, by a thread of their own, which sees no more of this than their bytes.
  std::vector<Waiting> going_;
  std::future<Outcomes> put_;
  std::uint64_t waiting_bytes_ = 0;
  std::int64_t new_blocks_ = 0;
  std::uint64_t bytes_ = 0, new_bytes_ = 0;
};

}  // namespace tqcache::store
