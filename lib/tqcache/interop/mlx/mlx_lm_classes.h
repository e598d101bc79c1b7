#pragma once
// interop/mlx/mlx_lm_classes.h: the cache objects in a prompt cache of mlx-lm and the number of
// tokens each has seen. Safe for untrusted input.
//
// Spec: docs/reference/interop.md, "mlx-lm".

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "tqcache/error.h"
#include "tqcache/interop/mlx/mlx_lm_state.h"

namespace tqcache::interop {

enum class MlxClass : std::uint8_t {
  kKv,             // KVCache
  kConcatenate,    // ConcatenateKVCache: like KVCache, without a number of tokens
  kQuantized,      // QuantizedKVCache
  kRotating,       // RotatingKVCache
  kArrays,         // ArraysCache, MambaCache
  kChunked,        // ChunkedKVCache
  kBatch,          // BatchKVCache
  kBatchRotating,  // BatchRotatingKVCache
};

// Errors: kUnsupported, with the name of the class.
Result<MlxClass> mlx_class(std::string_view name);

// Lists the caches in file order; those of a CacheList are consecutive.
//
// Errors: kCorrupt, kTooLarge (layers); kUnsupported (a CacheList within a CacheList, or one whose
//         contents the file does not state).
Result<std::vector<MlxCache>> list_caches(MlxFile& file);

// Tokens that a cache has seen, for one row of its batch. nullopt: the file does not say.
//
// Errors: kCorrupt, kTooLarge, kUnsupported, kInvalidArgument (no such row).
Result<std::optional<std::int64_t>> tokens_seen(MlxFile& file, const MlxCache& cache,
                                                std::int64_t row);

}  // namespace tqcache::interop
