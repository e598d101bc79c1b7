#pragma once
// format/load_sections.h: a cache from anywhere, brought into memory.

#include <cstdint>

#include "tqcache/base/progress.h"
#include "tqcache/base/result.h"
#include "tqcache/cache/cache.h"
#include "tqcache/format/section_source.h"

namespace tqcache::format {

// All of it, section by section. Packed ones that the source has in memory stay there.
//
// Progress: bytes of sections.
// Errors:   those of the source; kTooLarge when it takes more memory than `max_payload_bytes`;
//           kInterrupted.
Result<cache::Cache> load_sections(const SectionSource& source, std::uint64_t max_payload_bytes,
                                   const Progress& progress = {}, unsigned n_threads = 1);

}  // namespace tqcache::format
