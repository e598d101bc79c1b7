#include <utility>

#include "tqcache/base/threads.h"
#include "tqcache/format/cache_file.h"
#include "tqcache/format/header.h"
#include "tqcache/format/manifest_rules.h"
#include "tqcache/format/open_container.h"
#include "tqcache/format/section_bytes.h"
#include "tqcache/format/section_reader.h"

namespace tqcache::format {
namespace {

Result<void> check_memory(const Manifest& manifest, std::uint64_t max_bytes) {
  const std::uint64_t bytes = total_memory_bytes(manifest);
  if (bytes <= max_bytes) return {};
  return Error{ErrorCode::kTooLarge, "the cache takes " + std::to_string(bytes) +
                                         " bytes of memory, " + std::to_string(max_bytes) +
                                         " are allowed"};
}

Result<void> load_section(const ByteSource& source, const Manifest& manifest, std::size_t index,
                          const Decompressor& decompressor, cache::Cache& cache) {
  const SectionInfo& section = manifest.sections[index];
  auto raw = read_section(source, section, decompressor);
  if (!raw) return in_context(section_place(index, section), std::move(raw).error());
  if (auto padding = check_padding(source, manifest, index); !padding) {
    return in_context(section_place(index, section), std::move(padding).error());
  }
  place_section(section, std::move(raw).value(), cache);
  return {};
}

Result<void> load_sections(const ByteSource& source, const Manifest& manifest,
                           const ReadOptions& options, const Progress& progress,
                           cache::Cache& cache) {
  const Decompressor decompressor;
  const std::uint64_t total = total_raw_bytes(manifest);
  std::uint64_t done = 0;
  for (std::size_t first = 0; first < manifest.sections.size();) {
    const std::size_t end = batch_end(manifest, first);
    TQC_TRY(parallel_try(end - first, options.n_threads, [&](std::size_t i) {
      return load_section(source, manifest, first + i, decompressor, cache);
    }));
    for (; first < end; ++first) done += manifest.sections[first].raw_bytes;
    if (progress && !progress(done, total)) return Error{ErrorCode::kInterrupted, "interrupted"};
  }
  return {};
}

}  // namespace

Result<cache::Cache> read_cache(const ByteSource& source, const ReadOptions& options,
                                const Progress& progress) {
  TQC_TRY_ASSIGN(const CacheFileInfo info, read_cache_info(source));
  TQC_TRY(check_memory(info, options.max_payload_bytes));
  TQC_TRY_ASSIGN(cache::Cache cache, make_empty_cache(info));
  TQC_TRY(load_sections(source, info, options, progress, cache));
  TQC_TRY(cache::validate(cache));
  return cache;
}

Result<CacheFileInfo> read_cache_info(const ByteSource& source) {
  TQC_TRY_ASSIGN(OpenContainer container, open_container(source));
  TQC_TRY(check_content_name(container.info));
  return std::move(container.info);
}

bool looks_like_cache_file(const ByteSource& source) { return has_magic(source); }

}  // namespace tqcache::format
