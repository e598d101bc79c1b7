#include "tqcache/format/cache_content.h"

#include <cstdint>
#include <memory>
#include <utility>

#include "tqcache/base/shared_bytes.h"
#include "tqcache/format/describe.h"
#include "tqcache/format/sections/section_bytes.h"

namespace tqcache::format {
namespace {

// The cache's own memory where it stands there as the file wants it, otherwise a copy.
SharedBytes bytes_of_section(const cache::Cache& cache, const SectionInfo& section) {
  const auto copy = std::make_shared<AlignedBytes>();
  const ByteView view = section_bytes(cache, section, *copy);
  return {copy, view};
}

}  // namespace

ContainerContent content_of(const cache::Cache& cache) {
  ContainerContent content{describe(cache, {}), {}};
  // A copy: the writer changes those of the manifest while others are made.
  content.make_section =
      [&cache, sections = content.manifest.sections](std::size_t i) -> Result<SharedBytes> {
    return bytes_of_section(cache, sections[i]);
  };
  return content;
}

void report_sections(ContainerContent& content, const std::vector<std::size_t>& numbers,
                     const Progress& progress) {
  if (!progress) return;
  std::vector<std::uint64_t> bytes;
  for (const SectionInfo& section : content.manifest.sections) bytes.push_back(section.raw_bytes);
  std::uint64_t total = 0;
  for (const std::size_t i : numbers) total += bytes[i];
  content.after_section = [&progress, bytes = std::move(bytes), done = std::uint64_t{0}, total](
                              std::size_t i) mutable { return progress(done += bytes[i], total); };
}

}  // namespace tqcache::format
