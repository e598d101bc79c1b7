#pragma once
// format/cache_content.h: a cache in memory as what goes into a file.

#include <cstddef>
#include <vector>

#include "tqcache/base/progress.h"
#include "tqcache/cache/cache.h"
#include "tqcache/format/container_writer.h"

namespace tqcache::format {

// All of its sections, made from the cache as they are asked for.
//
// Requires: cache::validate(cache); `cache` outlives what is returned.
ContainerContent content_of(const cache::Cache& cache);

// Lets content.after_section tell `progress`, which must outlive it, how many bytes before
// compression of the sections of those numbers are written. Does nothing if `progress` is empty.
void report_sections(ContainerContent& content, const std::vector<std::size_t>& numbers,
                     const Progress& progress);

}  // namespace tqcache::format
