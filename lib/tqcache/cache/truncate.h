#pragma once
// cache/truncate.h: removal of the last tokens of a cache.

#include <cstdint>

#include "tqcache/base/result.h"
#include "tqcache/cache/cache.h"

namespace tqcache::cache {

// Checks that truncate() can cut a cache of this description.
// Errors: as truncate().
Result<void> check_truncate(const CacheDesc& cache, std::int64_t n_tokens);

// The cache as it was at `n_tokens` tokens, as nearly as its packed blocks allow: a packed block
// that is cut becomes the dense tail, with the values that its codes stand for.
//
// Errors: kInvalidArgument when n_tokens is negative or more than the cache holds. When it is less,
//         kUnsupported: when a layer keeps state without attention, or a sliding window, which
//         cannot be taken back; and when tokens are hidden and a token block would be cut, as its
//         hash stands for all of it.
Result<Cache> truncate(Cache cache, std::int64_t n_tokens);

}  // namespace tqcache::cache
