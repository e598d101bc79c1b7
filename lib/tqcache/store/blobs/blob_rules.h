#pragma once
// store/blobs/blob_rules.h: what the content of a blob has to fulfil, and what of it stands in a
// manifest.
//
// The writer holds its own content against the same rules, so that nothing is put that would not
// be read.
//
// Spec: docs/reference/store.md, "Blobs".

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "tqcache/base/result.h"
#include "tqcache/store/blobs/blob.h"
#include "tqcache/store/blobs/blob_header.h"

namespace tqcache::store {

inline constexpr std::size_t kMaxNameBytes = 512;                          // of a record
inline constexpr std::size_t kMaxDataKeys = 1 << 16;                       // of a state
inline constexpr int kMaxParts = 2 * static_cast<int>(cache::kMaxLayers);  // of a block

inline BlobKind kind_of(const Content& content) { return static_cast<BlobKind>(content.index()); }

// Whether the key is one under which blobs of this kind stand.
bool is_key_of(BlobKind kind, std::string_view key);

// What a prefix and hexadecimal digits say: "d/" and 64 of them.
bool is_data_key(std::string_view key);

// Limits, and fields that have to agree with one another and with the key.
// Errors: kCorrupt, kTooLarge, kUnsupported (a name that this reader does not know).
Result<void> check_content(std::string_view key, const Content& content);

// Layers of parameters without the shapes of their arrays.
std::vector<cache::LayerDesc> without_array_shapes(std::vector<cache::LayerDesc> layers);

}  // namespace tqcache::store
