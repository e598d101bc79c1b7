#pragma once
// store/blobs/key_parts.h: what a key of a store says by itself. Safe for untrusted input.
//
// Spec: docs/reference/store.md, "Keys".

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "tqcache/base/hash.h"
#include "tqcache/store/blobs/blob_header.h"

namespace tqcache::store {

inline constexpr std::array kAllKinds = {BlobKind::kParameters, BlobKind::kBlock,
                                         BlobKind::kState,      BlobKind::kData,
                                         BlobKind::kRecord,     BlobKind::kUsage};

// "parameters", "block", "state", "data", "record", "usage"
std::string_view name_of(BlobKind kind);

// Views of the key.
struct KeyParts {
  BlobKind kind = BlobKind::kBlock;
  std::string_view hash;   // hexadecimal; of a record that of its name
  std::int64_t index = 0;  // of a block
  int number = 0;          // of a block its part; of parameters and states their slot
  std::string_view name;   // of a block all but its part: "b/000012/HEX"; otherwise the key
};

// Nothing: a key that keys.h does not make.
std::optional<KeyParts> parse_key(std::string_view key);

// What the keys of a block's parts begin with: "b/000012/HEX".
std::string block_name(const Sha256& hash, std::int64_t index);
std::string part_key(std::string_view block_name, int part);

}  // namespace tqcache::store
