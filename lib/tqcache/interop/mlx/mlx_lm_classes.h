#pragma once
// interop/mlx/mlx_lm_classes.h: which cache objects a prompt cache of mlx-lm has, and how many
// tokens they have seen. Safe for untrusted input.
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
  kConcatenate,    // ConcatenateKVCache: the same without a number of tokens
  kQuantized,      // QuantizedKVCache
  kRotating,       // RotatingKVCache
  kArrays,         // ArraysCache, MambaCache
  kChunked,        // ChunkedKVCache
  kBatch,          // BatchKVCache
  kBatchRotating,  // BatchRotatingKVCache
};

// Errors: kUnsupported, with the name.
Result<MlxClass> mlx_class(std::string_view name);

// In the order of the file; those of a CacheList one after another.
//
// Errors: kCorrupt, kTooLarge (layers); kUnsupported (a CacheList within a CacheList, or one of
//         which the file does not say what is in it).
Result<std::vector<MlxCache>> list_caches(MlxFile& file);

// Tokens that a cache has seen, of a row of its batch. nullopt: the file does not say.
//
// Errors: kCorrupt, kTooLarge, kUnsupported, kInvalidArgument (no such row).
Result<std::optional<std::int64_t>> tokens_seen(MlxFile& file, const MlxCache& cache,
                                                std::int64_t row);

}  // namespace tqcache::interop
