#pragma once
// capi/writer.h: the object behind a tqcache_writer.

#include <vector>

#include "tqcache/capi/handles.h"
#include "tqcache/description.h"

struct tqcache_writer {
  tqcache::cache::CacheDesc description;
  std::vector<tqcache::capi::CallerCache::Source> sources;
};
