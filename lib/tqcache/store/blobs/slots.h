#pragma once
// store/blobs/slots.h: what stands in the slots of a key: parameters of a first token block, states
// behind a block.
//
// Only for the sources of store.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tqcache/base/hash.h"
#include "tqcache/base/result.h"
#include "tqcache/store/backend.h"
#include "tqcache/store/blobs/blob.h"
#include "tqcache/store/blobs/blob_reader.h"
#include "tqcache/store/blobs/keys.h"

namespace tqcache::store {

std::vector<std::string> parameters_slots(const Sha256& first);
std::vector<std::string> state_slots(const Sha256& hash);

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

}  // namespace tqcache::store
