#pragma once
// interop/mlx/mlx_lm_classes.h: the cache objects in a prompt cache of mlx-lm or mlx-swift-lm, the
// versions of these programs that write them so, and the number of tokens each has seen. Safe for
// untrusted input.
//
// Spec:   docs/reference/interop.md, "mlx-lm".
// Source: ml-explore/mlx-lm mlx_lm/models/cache.py of 0.19.1 to 0.32.2; ml-explore/mlx-swift-lm
//         Libraries/MLXLMCommon/KVCache.swift, the newest of 2026.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tqcache/error.h"
#include "tqcache/interop/mlx/mlx_lm_state.h"

namespace tqcache::interop {

// Rows of a batch that are read.
inline constexpr std::uint64_t kMaxBatch = 65'536;

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

// Errors: kUnsupported, with the name of the class, and of the program that has it if it is known.
Result<MlxClass> mlx_class(const MlxCache& cache);

struct MlxCaches {
  std::vector<MlxCache> list;  // in file order; those of a CacheList are consecutive
  std::string writer;          // "mlx-lm 0.19 to 0.28.0": what all of them agree on
  // Tokens by top-level layer, as mlx-swift-lm notes them beside the caches; may be empty.
  std::vector<std::optional<std::int64_t>> noted_tokens;
};

// Lists the caches.
//
// Errors: kCorrupt (layers that versions wrote which have none in common), kTooLarge (layers);
//         kUnsupported (a CacheList within a CacheList, or one whose contents the file does not
//         state; the state of a model beside the caches; numbers of an unknown version).
Result<MlxCaches> list_caches(MlxFile& file);

// Tokens that a cache has seen, for one row of its batch. nullopt: the file does not say.
//
// Errors: kCorrupt, kTooLarge, kUnsupported, kInvalidArgument (no such row).
Result<std::optional<std::int64_t>> tokens_seen(MlxFile& file, const MlxCache& cache,
                                                std::int64_t row);

}  // namespace tqcache::interop
