#pragma once
// store/blobs/blob_io.h: transfer of blobs from and to a backend: memory, readers, candidate slots,
// write batcher.
//
// Only for the sources of store.

#include <array>
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

#include "tqcache/bytes.h"
#include "tqcache/error.h"
#include "tqcache/hash.h"
#include "tqcache/store.h"
#include "tqcache/store/blobs/blob.h"
#include "tqcache/store/blobs/blob_keys.h"

namespace tqcache::store {

// Memory for many values. The first access to new memory causes a page fault per page; with pages
// of 4 KiB that takes longer than reading the values from a file. So large values share regions for
// which huge pages are requested, and a region in which no value lives any more is used again.
//
// Threads: any number may use one at once.
class BlobMemory {
 public:
  BlobMemory() : state_(std::make_unique<State>()) {}

  // Memory for one value, aligned to 64 bytes. Keeps its whole region alive.
  struct Room {
    std::shared_ptr<std::byte> owner;
    std::span<std::byte> bytes;
    SharedBytes shared() const { return {owner, bytes}; }
  };
  Room take(std::size_t size);

  SharedBytes copy(ByteView value);

 private:
  struct Region;
  struct State {
    std::mutex mutex;
    std::vector<std::shared_ptr<Region>> regions;
    std::shared_ptr<Region> filling;  // one of them
    std::size_t used = 0;             // of it
  };
  // A region without values.
  static std::shared_ptr<Region> find_free(State& state);
  std::unique_ptr<State> state_;
};

struct ReadBlob {
  ByteView bytes;           // valid until the call returns, as are the sections of `content`
  Result<Content> content;  // or the reason why it is invalid
};

// Receives the blob of keys[i]; nullopt is a miss. An error ends the reading and becomes its
// result.
using BlobSink = std::function<Result<void>(std::size_t i, std::optional<ReadBlob> blob)>;

// Reads and decodes blobs in order. Errors: those of the backend.
Result<void> read_blobs(Backend& backend, std::span<const std::string> keys, const BlobSink& sink);

// The content of a blob of kind T; messages name the key.
// Errors: those of decode_blob(); kCorrupt if it has another kind.
template <class T>
Result<T> content_of(const std::string& key, ReadBlob blob) {
  if (!blob.content) return in_context(key, std::move(blob.content).error());
  T* const content = std::get_if<T>(&*blob.content);
  if (content == nullptr) return corrupt(key + ": holds something else");
  return std::move(*content);
}

// Receives the content of keys[i], one at a time but in any order. An error means that the content
// is not the expected one. kInterrupted ends the reading.
using ContentSink =
    std::function<Result<void>(std::size_t i, Content content, std::uint64_t blob_bytes)>;

// Compares the content of keys[i], on several threads at once, before a ContentSink receives it.
// An error means that the blob is bad.
using ContentCheck = std::function<Result<void>(std::size_t i, const Content& content)>;

// The result for one key.
enum class Found { kMissing, kBad, kGood };

// Whether bad blobs are removed: only by those who put others in their place.
enum class BadBlobs { kKeep, kRemove };

// For the reading calls of a library.
inline BadBlobs bad_blobs(const LibraryOptions& options) {
  return options.remove_damaged ? BadBlobs::kRemove : BadBlobs::kKeep;
}

// Reads blobs in parallel. Bad blobs are reported as warnings.
//
// Threads: one at a time.
class BlobReader {
 public:
  // `backend` must outlive it.
  BlobReader(Backend& backend, BadBlobs bad_blobs, OnWarning on_warning, unsigned n_threads = 1)
      : backend_(&backend),
        bad_blobs_(bad_blobs),
        on_warning_(std::move(on_warning)),
        n_threads_(n_threads) {}

  // Reads all blobs, many at a time. A blob that is damaged, or that `take` refuses, is reported.
  // kRemove removes it if it has not changed meanwhile; a failure is reported as well. A blob of a
  // later version stays.
  // Errors: those of the backend's get(); kInterrupted.
  Result<std::vector<Found>> read(std::span<const std::string> keys, const ContentSink& take,
                                  const ContentCheck& check = {});

  // One blob; nullopt also if it is bad.
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
    constexpr std::array kNames = {"parameters", "a block",       "a snapshot",          "values",
                                   "a name",     "a note of use", "what follows a block"};
    static_assert(kNames.size() == std::variant_size_v<Content>);
    return mismatch(std::string("expected a blob of ") +
                    kNames[Content(std::in_place_type<Kind>).index()] + ", found " +
                    kNames[content.index()]);
  }

  std::uint64_t bytes() const { return bytes_; }  // of all blobs that were read

  void warn(const std::string& message) const {
    if (on_warning_) on_warning_(message);
  }

 private:
  struct Bad {
    std::string key;
    std::optional<SharedBytes> value;  // nullopt: not kept, because there were too many
    Error error;
  };
  struct Reading;
  Result<void> read_some(std::span<const std::string> keys, std::size_t first, Reading& reading);
  Result<void> settle(const std::vector<Bad>& bad);

  Backend* backend_;
  BadBlobs bad_blobs_;
  OnWarning on_warning_;
  unsigned n_threads_;
  BlobMemory memory_;
  std::uint64_t bytes_ = 0;
};

// The record under that key; nullopt if it is missing, bad, or of another name.
// Errors: those of the backend.
Result<std::optional<PromptRecord>> read_record(BlobReader& reader, const std::string& key,
                                                std::string_view name);

// --- Candidate slots: the possible keys of the parameters of a first token block, and of the
// snapshots and blocks after a block

// The contents of these keys; nullopt for missing and bad ones. Errors: those of the backend.
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

// Whether there may be more slots behind these: see kStateSlots.
template <class Kind>
bool are_half_taken(const std::vector<std::optional<Kind>>& slots) {
  const auto n = std::ranges::count_if(slots, [](const auto& slot) { return slot.has_value(); });
  return 2 * n >= std::ssize(slots);
}

struct CandidateSlot {
  std::string key;
  bool is_new = false;
  std::uint64_t bytes = 0;  // of the blob with `content` under that key
};

// The slot whose content `is_wanted` accepts, or else the first empty slot, which then gets
// `content`; nullopt if all slots hold other content.
// Errors: those of the backend and of encode_blob().
template <class Kind>
Result<std::optional<CandidateSlot>> find_or_take_slot(
    Backend& backend, BlobReader& reader, const std::vector<std::string>& keys,
    const std::function<bool(const Kind&)>& is_wanted, const Content& content) {
  TQC_TRY_ASSIGN(const auto slots, read_slots<Kind>(reader, keys));
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (!slots[i] || !is_wanted(*slots[i])) continue;
    TQC_TRY_ASSIGN(const Bytes blob, encode_blob(keys[i], content));
    return std::optional(CandidateSlot{keys[i], false, blob.size()});
  }
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (slots[i]) continue;
    TQC_TRY_ASSIGN(const Bytes blob, encode_blob(keys[i], content));
    TQC_TRY_ASSIGN(const PutOutcome outcome, backend.put(keys[i], blob));
    if (outcome == PutOutcome::kStored)
      return std::optional(CandidateSlot{keys[i], true, blob.size()});
    // Another process took the slot meanwhile, perhaps with the same content.
    TQC_TRY_ASSIGN(const auto other, reader.read_one<Kind>(keys[i]));
    if (other && is_wanted(*other))
      return std::optional(CandidateSlot{keys[i], false, blob.size()});
  }
  return std::optional<CandidateSlot>();
}

// The write batcher puts blobs when this many bytes wait, or half as many while the backend is
// idle. During a put it collects at most this many more.
inline constexpr std::uint64_t kBatchBytes = std::uint64_t{32} << 20;

// Puts blobs, many at a time, in an order on which readers can rely, with bounded memory.
//
// A blob that exists is read and compared. If it is another, it stays only if `accept_other` says
// so (it may come from another computation of the same tokens), and is replaced otherwise.
//
// Threads: one at a time.
class WriteBatcher {
 public:
  explicit WriteBatcher(Backend& backend) : backend_(&backend) {}

  // Whether a blob in the store may stay under its key. By default none may.
  using AcceptOther = std::function<bool(const std::string& key, ByteView value)>;
  void accept_others(AcceptOther accept) { accept_other_ = std::move(accept); }
  // Whether blobs with other bytes stayed.
  bool has_met_others() const { return has_met_others_; }

  // The blobs of one block. The first one is put after the backend has acknowledged the others:
  // if it exists, all exist.
  // Errors: those of the backend, also for blobs added earlier. After an error, add no more blobs.
  struct Value {
    std::string key;
    SharedBytes bytes;
  };
  Result<void> add_block(std::vector<Value> parts);

  // A blob that no other blob depends on.
  Result<void> add(Value value);

  // Returns when all blobs are acknowledged.
  Result<void> flush();

  std::int64_t new_blocks() const { return new_blocks_; }  // whose first blob did not exist before
  std::uint64_t bytes() const { return bytes_; }           // of all added blobs
  std::uint64_t new_bytes() const { return new_bytes_; }   // of those that did not exist before

 private:
  struct Waiting {
    Value value;
    bool is_first = false;
  };
  void push(std::vector<Waiting>& to, Value value, bool is_first);
  using Outcomes = Result<std::vector<PutOutcome>>;
  bool is_idle() const;
  Result<void> put_if_many();
  Result<void> start_put();
  Result<void> end_put();
  Result<PutOutcome> settle_existing(const Value& value);

  Backend* backend_;
  AcceptOther accept_other_;
  bool has_met_others_ = false;
  std::vector<Waiting> ready_;  // for the next put
  std::vector<Waiting> after_;  // for the put after that
  // Being put by another thread, which accesses only their bytes.
  std::vector<Waiting> going_;
  std::future<Outcomes> put_;
  std::uint64_t waiting_bytes_ = 0;
  std::int64_t new_blocks_ = 0;
  std::uint64_t bytes_ = 0, new_bytes_ = 0;
};

}  // namespace tqcache::store
