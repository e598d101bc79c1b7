#pragma once
// tests/interop/foreign_cache_reading.h: foreign caches loaded into memory.

#include <cstddef>
#include <memory>
#include <utility>

#include "tqcache/cache.h"
#include "tqcache/cache/memory_blocks.h"
#include "tqcache/error.h"
#include "tqcache/interop/foreign_cache.h"

namespace tqcache::test {

// Everything of it, read section by section.
inline Result<cache::Cache> load_all_sections(const cache::CacheReader& sections) {
  const std::vector<cache::BlockInfo>& blocks = sections.blocks();
  TQC_TRY_ASSIGN(cache::Cache cache, cache::make_room(sections.description(), blocks));
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    AlignedBytes raw;
    TQC_TRY(sections.read(i, raw));
    cache::place_block(blocks[i], std::move(raw), cache);
  }
  return cache;
}

// The same, valid.
inline Result<cache::Cache> read_sections(const cache::CacheReader& sections) {
  TQC_TRY_ASSIGN(cache::Cache cache, load_all_sections(sections));
  TQC_TRY(cache::validate(cache));
  return cache;
}

inline Result<cache::Cache> read_foreign(interop::ForeignCache foreign) {
  TQC_TRY_ASSIGN(const auto sections, interop::reader_of(std::move(foreign)));
  return read_sections(*sections);
}

inline std::shared_ptr<const cache::CacheReader> sections_of(cache::Cache cache) {
  return cache::reader_of(std::make_shared<const cache::Cache>(std::move(cache)));
}

}  // namespace tqcache::test
