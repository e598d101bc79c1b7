#pragma once
// format/sections/section_bytes.h: between a cache in memory and the bytes of its sections.
//
// Spec: docs/reference/format.md §6.

#include "tqcache/base/aligned.h"
#include "tqcache/base/bytes.h"
#include "tqcache/base/result.h"
#include "tqcache/base/shared_bytes.h"
#include "tqcache/cache/cache.h"
#include "tqcache/format/manifest.h"

namespace tqcache::format {

// The bytes of one section before compression: the cache's own memory where it stands there as
// the file wants it, otherwise a copy in `scratch`.
//
// Requires: cache::validate(cache); `section` is of describe(cache).
ByteView section_bytes(const cache::Cache& cache, const SectionInfo& section,
                       AlignedBytes& scratch);

// A cache without values, with room for every token block and array of the manifest.
//
// Requires: check_contents(manifest) and check_sections(manifest).
// Errors:   those of cache::KvCodec::make().
Result<cache::Cache> make_empty_cache(const Manifest& manifest);

// Puts the bytes of one section, which are as many as the manifest says, where they belong. The
// cache keeps packed ones as they are, shared or its own, and takes memory of its own over where it
// can; shared bytes of dense sections and arrays are copied.
//
// Requires: shared bytes of a packed section begin at a multiple of 64.
// Threads:  may be called for different sections at the same time.
void place_section(const SectionInfo& section, SharedBytes raw, cache::Cache& cache);
void place_section(const SectionInfo& section, AlignedBytes raw, cache::Cache& cache);

}  // namespace tqcache::format
