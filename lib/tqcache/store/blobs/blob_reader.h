#pragma once
// store/blobs/blob_reader.h: blobs brought from a store, and judged: what is bad is told and removed.
//
// Only for the sources of store.

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tqcache/base/result.h"
#include "tqcache/store/backend.h"
#include "tqcache/store/blobs/blob.h"
#include "tqcache/store/blobs/blob_memory.h"
#include "tqcache/store/trouble.h"

namespace tqcache::store {

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

}  // namespace tqcache::store
