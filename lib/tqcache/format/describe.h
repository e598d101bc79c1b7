#pragma once
// format/describe.h: the manifest of a cache in memory.

#include <string>

#include "tqcache/cache/cache.h"
#include "tqcache/format/manifest.h"

namespace tqcache::format {

// Everything but what only writing shows: of the sections layer, side, block, form and size
// before compression stand there; where they are and their digests do not, nor the content name.
//
// Requires: cache::validate(cache).
Manifest describe(const cache::Cache& cache, std::string writer);

}  // namespace tqcache::format
