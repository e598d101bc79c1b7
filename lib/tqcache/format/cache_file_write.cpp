#include <memory>
#include <utility>

#include "tqcache/base/shared_bytes.h"
#include "tqcache/format/cache_file.h"
#include "tqcache/format/container_writer.h"
#include "tqcache/format/describe.h"
#include "tqcache/format/section_bytes.h"
#include "tqcache/format/section_reader.h"

namespace tqcache::format {
namespace {

// The cache's own memory where it stands there as the file wants it, otherwise a copy.
SharedBytes bytes_of_section(const cache::Cache& cache, const SectionInfo& section) {
  const auto copy = std::make_shared<AlignedBytes>();
  const ByteView view = section_bytes(cache, section, *copy);
  return {copy, view};
}

// Views `cache` and `progress`.
Result<ContainerContent> content_of(const cache::Cache& cache, const Progress& progress) {
  TQC_TRY(cache::validate(cache));
  ContainerContent content{describe(cache, {}), {}};
  const auto sections = std::make_shared<const std::vector<SectionInfo>>(content.manifest.sections);
  content.make_section = [&cache, sections](std::size_t i) -> Result<SharedBytes> {
    return bytes_of_section(cache, (*sections)[i]);
  };
  if (progress) {
    content.after_section = [&progress, sections, done = std::uint64_t{0},
                             total = total_raw_bytes(content.manifest)](std::size_t i) mutable {
      return progress(done += (*sections)[i].raw_bytes, total);
    };
  }
  return content;
}

}  // namespace

Result<void> write_cache_file(const cache::Cache& cache, const std::filesystem::path& path,
                              const WriteOptions& options, const Progress& progress) {
  TQC_TRY_ASSIGN(AtomicFile file, AtomicFile::create(path, options.overwrite));
  TQC_TRY_ASSIGN(ContainerContent content, content_of(cache, progress));
  return write_container_file(std::move(content), std::move(file), options);
}

Result<Bytes> write_cache_bytes(const cache::Cache& cache, const WriteOptions& options,
                                const Progress& progress) {
  TQC_TRY_ASSIGN(ContainerContent content, content_of(cache, progress));
  return write_container_bytes(std::move(content), options);
}

}  // namespace tqcache::format
