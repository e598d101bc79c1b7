#include "tqcache/format/load_sections.h"

#include <optional>
#include <string>
#include <utility>

#include "tqcache/base/aligned.h"
#include "tqcache/base/result.h"
#include "tqcache/base/threads.h"
#include "tqcache/format/manifest_rules.h"
#include "tqcache/format/section_reader.h"
#include "tqcache/format/sections/section_bytes.h"

namespace tqcache::format {

namespace {

Result<void> load(const SectionSource& source, std::size_t i, cache::Cache& cache) {
  const SectionInfo& section = source.manifest().sections[i];
  if (section.packed) {
    if (std::optional<SharedBytes> there = source.in_memory(i)) {
      place_section(section, *std::move(there), cache);
      return {};
    }
  }
  AlignedBytes raw;
  TQC_TRY(source.read(i, raw));
  place_section(section, std::move(raw), cache);
  return {};
}

}  // namespace

Result<cache::Cache> load_sections(const SectionSource& source, std::uint64_t max_payload_bytes,
                                   const Progress& progress, unsigned n_threads) {
  const Manifest& manifest = source.manifest();
  const std::uint64_t bytes = total_memory_bytes(manifest);
  if (bytes > max_payload_bytes) {
    return Error{ErrorCode::kTooLarge, "the cache takes " + std::to_string(bytes) +
                                           " bytes of memory, " +
                                           std::to_string(max_payload_bytes) + " are allowed"};
  }
  TQC_TRY_ASSIGN(cache::Cache cache, make_empty_cache(manifest));
  const std::uint64_t total = total_raw_bytes(manifest);
  std::uint64_t done = 0;
  const auto make = [&](std::size_t i, std::size_t) { return load(source, i, cache); };
  const auto tell = [&](std::size_t i, std::size_t) -> Result<void> {
    done += manifest.sections[i].raw_bytes;
    if (!progress || progress(done, total)) return {};
    return interrupted_error();
  };
  TQC_TRY(run_in_order({manifest.sections.size(), make, tell}, n_threads));
  TQC_TRY(cache::validate(cache));
  return cache;
}

}  // namespace tqcache::format
