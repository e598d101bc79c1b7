#pragma once
// store/blobs/read_blobs.h: blobs of a store, one after another, decoded.
//
// Only for the sources of store.

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>

#include "tqcache/base/result.h"
#include "tqcache/store/backend.h"
#include "tqcache/store/blobs/blob.h"

namespace tqcache::store {

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

}  // namespace tqcache::store
