#include <memory>
#include <utility>
#include <vector>

#include "tqcache/format/manifest.h"
#include "tqcache/format/open_container.h"
#include "tqcache/format/section_reader.h"
#include "tqcache/format/sections/compression.h"
#include "tqcache/hash.h"
#include "tqcache/reader.h"
#include "tqcache/tqkv.h"

namespace tqcache::format {
namespace {

bool has_dead_bytes(const OpenContainer& container) {
  return !container.info.gaps.empty() || container.info.trailing_bytes > 0 ||
         container.header.announced || !container.header.damage.empty();
}

// A reader that checks content against the SHA-256 of its sections: the content digest stays the
// same only if they match.
class ComparedFile : public cache::CacheReader {
 public:
  ComparedFile(const ByteSource& source, const Manifest& manifest)
      : source_(source), manifest_(manifest), blocks_(blocks_of(manifest.sections)) {}

  const cache::CacheDesc& description() const override { return manifest_; }
  const std::vector<cache::BlockInfo>& blocks() const override { return blocks_; }
  Result<void> read(std::size_t i, AlignedBytes& raw) const override {
    const SectionInfo& section = manifest_.sections[i];
    Result<void> done = read_section(source_, manifest_, section, decompressor_, raw);
    if (done) done = check_digest(section, raw);
    if (!done) return in_context(block_place(i, section), std::move(done).error());
    return {};
  }

 private:
  const ByteSource& source_;
  const Manifest& manifest_;
  std::vector<cache::BlockInfo> blocks_;
  Decompressor decompressor_;
};

WriteOptions options_like(const Manifest& manifest, WriteOptions options) {
  options.compression = compression_of(manifest);
  options.writer = manifest.writer;
  options.hide_tokens = false;  // hidden tokens stay hidden
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

  const ComparedFile content(*locked, info);
  TQC_TRY(check_largest(content.blocks(), ReadOptions{}.max_payload_bytes));
  TQC_TRY_ASSIGN(AtomicFile file, AtomicFile::create(path, Overwrite::kAllow, locked.get()));
  TQC_TRY(write_cache(content, file, options_like(info, options), progress));
  const std::uint64_t bytes_after = file.size();
  TQC_TRY(file.commit());
  return CompactReport{bytes_before, bytes_after, true};
}

}  // namespace tqcache::format
