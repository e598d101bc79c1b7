#pragma once
// store/library/beginning.h: the longest stored beginning of a prompt as a cache that a model goes on from.
//
// Spec: docs/reference/store.md, "Generating from a store".

#include <cstdint>
#include <optional>
#include <span>

#include "tqcache/base/progress.h"
#include "tqcache/base/result.h"
#include "tqcache/cache/cache.h"
#include "tqcache/store/blobs/blob.h"
#include "tqcache/store/library/library.h"

namespace tqcache::store {

struct Beginning {
  cache::Cache cache;
  Parameters parameters;         // of its chain
  std::int64_t n_blocks = 0;     // that stand in the store as blocks
  std::uint64_t read_bytes = 0;  // of blobs
};

// The longest beginning of `tokens` that leaves one for the model to read; nullopt when there is
// none. Of caches that can be cut it ends with a token block, even if the store has a few tokens
// more: then the model reads the rest in the same chunks as if it read all, and gives the same
// bits.
//
// Progress: blobs.
// Errors:   those of the backend; kCorrupt when what was brought is no cache of these tokens;
//           kTooLarge; kInterrupted. What is missing or damaged is none: it makes the beginning
//           shorter, and the library tells of it.
Result<std::optional<Beginning>> load_beginning(Library& library, const cache::Identity& identity,
                                                std::span<const std::int32_t> tokens,
                                                const FindOptions& options = {},
                                                unsigned n_threads = 0,
                                                const Progress& progress = {});

}  // namespace tqcache::store
