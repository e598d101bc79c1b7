#pragma once
// cache/convert.h: turns the dense sides of a cache into turbo form.

#include "tqcache/base/progress.h"
#include "tqcache/base/result.h"
#include "tqcache/cache/cache.h"
#include "tqcache/cache/plan.h"

namespace tqcache::cache {

// Packs every full token block of every dense side; the incomplete last block stays dense, and
// arrays layers stay as they are, and so do sliding windows unless they shall be packed. A side
// that is turbo already keeps its packed blocks when its parts, centering, sinks and number of loud
// channels are the ones asked for, and is refused otherwise: packing again would add the error of
// both.
//
// The mean of a side is taken over mean_blocks(), its outlier channels over the blocks that the
// policy names; of a side without a full block, both over its first block once it is full.
//
// Takes the cache and gives the memory of dense blocks back as they are packed.
// Progress: head vectors packed, of all to pack.
// Errors:   as plan_layers(); kCorrupt (a value that is not finite), kUnsupported (one whose scale
//           is beyond f16), kInterrupted. The message names layer, side, head and token.
// Bytes:    identical on every CPU and for any number of threads.
Result<Cache> convert(Cache cache, const ConvertOptions& options, const Progress& progress = {});

}  // namespace tqcache::cache
