#include <utility>

#include "tqcache/format/cache_content.h"
#include "tqcache/format/cache_file.h"
#include "tqcache/format/container_writer.h"
#include "tqcache/format/section_writer.h"

namespace tqcache::format {
namespace {

// Views `cache` and `progress`.
Result<ContainerContent> checked_content(const cache::Cache& cache, const Progress& progress) {
  TQC_TRY(cache::validate(cache));
  ContainerContent content = content_of(cache);
  report_sections(content, all_sections(content.manifest), progress);
  return content;
}

}  // namespace

Result<void> write_cache(const cache::Cache& cache, AtomicFile& file, const WriteOptions& options,
                         const Progress& progress) {
  TQC_TRY_ASSIGN(ContainerContent content, checked_content(cache, progress));
  return write_container(std::move(content), file, options);
}

Result<void> write_cache_file(const cache::Cache& cache, const std::filesystem::path& path,
                              const WriteOptions& options, const Progress& progress) {
  TQC_TRY_ASSIGN(AtomicFile file, AtomicFile::create(path, options.overwrite));
  TQC_TRY(write_cache(cache, file, options, progress));
  return file.commit();
}

Result<Bytes> write_cache_bytes(const cache::Cache& cache, const WriteOptions& options,
                                const Progress& progress) {
  TQC_TRY_ASSIGN(ContainerContent content, checked_content(cache, progress));
  return write_container_bytes(std::move(content), options);
}

}  // namespace tqcache::format
