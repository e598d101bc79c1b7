#pragma once
// interop/mlx/mlx_lm_layout.h: the cache objects of a prompt cache of mlx-lm as a text, for those
// that the kinds of layers do not tell: lists of caches, ConcatenateKVCache, ChunkedKVCache.
//
//   "CacheList(ArraysCache,KVCache)*24", "ChunkedKVCache[8192]*3,KVCache"
//
// A .tqkv file keeps it as source_layout. Safe for untrusted input.
//
// Spec: docs/reference/interop.md, "mlx-lm".

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tqcache/description.h"
#include "tqcache/error.h"

namespace tqcache::interop {

struct MlxMember {
  std::string class_name;       // KVCache, RotatingKVCache, ...
  std::int64_t chunk_size = 0;  // of a ChunkedKVCache
  bool operator==(const MlxMember&) const = default;
};

// A layer of mlx-lm: a cache, or a CacheList.
struct MlxObject {
  std::vector<MlxMember> members;  // one if it is no list
  bool is_list = false;
  bool operator==(const MlxObject&) const = default;
};

// One object for each layer: KVCache, RotatingKVCache or ArraysCache.
std::vector<MlxObject> plain_objects(std::span<const cache::LayerDesc> layers);

// Requires: a class name has no character but letters and digits.
std::string format_objects(std::span<const MlxObject> objects);

// Errors: kCorrupt (not a text of format_objects(), or not of these layers: another number, or a
//         class of another kind of layer).
Result<std::vector<MlxObject>> parse_objects(std::string_view text,
                                             std::span<const cache::LayerDesc> layers);

}  // namespace tqcache::interop
