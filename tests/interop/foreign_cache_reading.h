#pragma once
// tests/interop/foreign_cache_reading.h: foreign caches loaded into memory.

#include <cstddef>
#include <memory>
#include <utility>

#include "tqcache/base/result.h"
#include "tqcache/cache/cache.h"
#include "tqcache/format/sections/section_bytes.h"
#include "tqcache/interop/foreign_cache.h"

namespace tqcache::test {

// Everything of it, read section by section.
inline Result<cache::Cache> load_all_sections(const format::SectionSource& sections) {
  const format::Manifest& manifest = sections.manifest();
  TQC_TRY_ASSIGN(cache::Cache cache, format::make_empty_cache(manifest));
  for (std::size_t i = 0; i < manifest.sections.size(); ++i) {
    AlignedBytes raw;
    TQC_TRY(sections.read(i, raw));
    format::place_section(manifest.sections[i], std::move(raw), cache);
  }
  return cache;
}

// The same, valid.
inline Result<cache::Cache> read_sections(const format::SectionSource& sections) {
  TQC_TRY_ASSIGN(cache::Cache cache, load_all_sections(sections));
  TQC_TRY(cache::validate(cache));
  return cache;
}

inline Result<cache::Cache> read_foreign(interop::ForeignCache foreign) {
  TQC_TRY_ASSIGN(const auto sections, interop::sections_of(std::move(foreign)));
  return read_sections(*sections);
}

inline std::unique_ptr<format::SectionSource> sections_of(cache::Cache cache) {
  return interop::sections_of(std::make_shared<const cache::Cache>(std::move(cache)));
}

}  // namespace tqcache::test
