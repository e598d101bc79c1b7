#include "tqcache/format/manifest.h"

#include <algorithm>
#include <cassert>

namespace tqcache::format {

Compression compression_of(const Manifest& manifest) {
  Compression most = Compression::kNone;
  for (const SectionInfo& section : manifest.sections) {
    // Symbols and residuals replace zstd frames where a tensor supports them.
    most = std::max(most, section.compression >= Compression::kSymbols ? Compression::kZstd
                                                                       : section.compression);
  }
  return most;
}

std::vector<SectionInfo> sections_of(const cache::CacheReader& reader) {
  std::vector<SectionInfo> sections;
  for (cache::BlockInfo block : reader.blocks()) {
    block.stored_bytes = 0;  // it was the source's
    static_cast<cache::BlockInfo&>(sections.emplace_back()) = block;
  }
  return sections;
}

std::vector<cache::BlockInfo> blocks_of(const std::vector<SectionInfo>& sections) {
  return {sections.begin(), sections.end()};
}

}  // namespace tqcache::format
