#include <memory>
#include <utility>
#include <vector>

#include "tqcache/base/hash.h"
#include "tqcache/format/append.h"
#include "tqcache/format/cache_content.h"
#include "tqcache/format/sections/compression.h"
#include "tqcache/format/container_writer.h"
#include "tqcache/format/open_container.h"
#include "tqcache/format/section_reader.h"
#include "tqcache/format/section_writer.h"

namespace tqcache::format {
namespace {

bool has_dead_bytes(const OpenContainer& container) {
  return !container.info.gaps.empty() || container.info.trailing_bytes > 0 ||
         container.header.announced || !container.header.damage.empty();
}

// The content name stays the same only if the sections do, so these are looked at closely.
Result<SharedBytes> carry_over(const ByteSource& source, const Manifest& manifest,
                               const SectionInfo& section, const Decompressor& decompressor) {
  AlignedBytes raw;
  TQC_TRY(read_section(source, manifest, section, decompressor, raw));
  if (sha256(raw) != section.raw_sha256) {
    return Error{ErrorCode::kCorrupt, "SHA-256 of the content mismatch"};
  }
  return SharedBytes(std::move(raw));
}

// Everything but what depends on where it stands. Views both.
ContainerContent content_of(const ByteSource& source, const Manifest& manifest) {
  ContainerContent content{manifest, {}};
  content.manifest.gaps.clear();
  content.make_section = [&source, &manifest,
                          decompressor = std::make_shared<const Decompressor>()](
                             std::size_t i) -> Result<SharedBytes> {
    const SectionInfo& section = manifest.sections[i];
    auto raw = carry_over(source, manifest, section, *decompressor);
    if (!raw) return in_context(section_place(i, section), std::move(raw).error());
    return raw;
  };
  return content;
}

WriteOptions options_like(const Manifest& manifest, WriteOptions options) {
  options.compression = compression_of(manifest);
  options.writer = manifest.writer;
  options.hide_tokens = false;  // those that are hidden stay so
  return options;
}

}  // namespace

Result<CompactReport> compact_file(const std::filesystem::path& path, const WriteOptions& options,
                                   const Progress& progress) {
  TQC_TRY_ASSIGN(const std::unique_ptr<LockedFile> locked, LockedFile::open(path));
  TQC_TRY_ASSIGN(const OpenContainer container, open_container(*locked));
  const CacheFileInfo& info = container.info;
  TQC_TRY(check_content_name(info));
  const std::uint64_t bytes_before = info.file_bytes + info.trailing_bytes;
  if (!has_dead_bytes(container)) return CompactReport{bytes_before, bytes_before, false};

  TQC_TRY(check_largest(info, ReadOptions{}.max_payload_bytes));
  TQC_TRY_ASSIGN(AtomicFile file, AtomicFile::create(path, Overwrite::kAllow, locked.get()));
  ContainerContent content = content_of(*locked, info);
  report_sections(content, all_sections(info), progress);
  TQC_TRY(write_container(std::move(content), file, options_like(info, options)));
  const std::uint64_t bytes_after = file.size();
  TQC_TRY(file.commit());
  return CompactReport{bytes_before, bytes_after, true};
}

}  // namespace tqcache::format
