#include "tqcache/format/load_sections.h"

#include <string>
#include <utility>

#include "tqcache/base/aligned.h"
#include "tqcache/format/manifest_rules.h"
#include "tqcache/format/section_bytes.h"

namespace tqcache::format {

Result<cache::Cache> load_sections(const SectionSource& source, std::uint64_t max_payload_bytes,
                                   const Progress& progress) {
  const Manifest& manifest = source.manifest();
  const std::uint64_t bytes = total_memory_bytes(manifest);
  if (bytes > max_payload_bytes) {
    return Error{ErrorCode::kTooLarge, "the cache takes " + std::to_string(bytes) +
                                           " bytes of memory, " +
                                           std::to_string(max_payload_bytes) + " are allowed"};
  }
  TQC_TRY_ASSIGN(cache::Cache cache, make_empty_cache(manifest));
  std::uint64_t total = 0;
  for (const SectionInfo& section : manifest.sections) total += section.raw_bytes;
  std::uint64_t done = 0;
  for (std::size_t i = 0; i < manifest.sections.size(); ++i) {
    AlignedBytes raw;
    TQC_TRY(source.read(i, raw));
    place_section(manifest.sections[i], std::move(raw), cache);
    done += manifest.sections[i].raw_bytes;
    if (progress && !progress(done, total)) return Error{ErrorCode::kInterrupted, "interrupted"};
  }
  TQC_TRY(cache::validate(cache));
  return cache;
}

}  // namespace tqcache::format
