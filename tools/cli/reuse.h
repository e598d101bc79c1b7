#pragma once
// tools/cli/reuse.h: a cache used for a whole prompt, of which it may hold the beginning.

#include <cstdint>
#include <span>

#include "cli/console.h"
#include "tqcache/cache/cache.h"
#include "tqcache/model/loading/model.h"

namespace tqcache::cli {

// Tokens that both begin with.
std::int64_t common_prefix(std::span<const std::int32_t> a, std::span<const std::int32_t> b);

// Takes from the cache what the prompt does not begin with, and says so. A cache that cannot be cut
// there, because a layer keeps state without attention or a sliding window, is begun anew.
// Requires: the cache is of this model, and its tokens are known.
Result<void> keep_common_prefix(const Console& console, const model::Model& model,
                                std::span<const std::int32_t> prompt, cache::Cache& cache);

}  // namespace tqcache::cli
