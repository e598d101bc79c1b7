#pragma once
// cache/truncate.h: takes the last tokens out of a cache.

#include <cstdint>

#include "tqcache/base/result.h"
#include "tqcache/cache/cache.h"

namespace tqcache::cache {

// The cache as it was at `n_tokens` tokens, as nearly as its packed blocks allow: a packed block
// that is cut becomes the dense tail, with the values that its codes stand for.
//
// Errors: kInvalidArgument when n_tokens is negative or more than the cache holds; kUnsupported
//         when it is fewer and a layer keeps state without attention, which cannot be taken back.
Result<Cache> truncate(Cache cache, std::int64_t n_tokens);

}  // namespace tqcache::cache
