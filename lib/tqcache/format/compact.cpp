#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>
#include <vector>

#include "tqcache/format/encryption.h"
#include "tqcache/format/manifest.h"
#include "tqcache/format/open_container.h"
#include "tqcache/format/predicted_blocks.h"
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
class ComparedFile : public PredictedReader {
 public:
  // Both must outlive this.
  ComparedFile(const ByteSource& source, const OpenContainer& container)
      : source_(source),
        manifest_(container.info),
        cipher_(container.cipher.get()),
        blocks_(blocks_of(manifest_.sections)) {}

  const cache::CacheDesc& description() const override { return manifest_; }
  const std::vector<cache::BlockInfo>& blocks() const override { return blocks_; }
  Result<void> read(std::size_t i, AlignedBytes& raw) const override {
    const SectionInfo& section = manifest_.sections[i];
    Result<void> done = read_section(source_, manifest_, section, cipher_, decompressor_, raw);
    if (done) done = check_digest(section, raw);
    if (!done) return in_context(block_place(i, section), std::move(done).error());
    return {};
  }

  const Prediction* prediction() const override {
    return manifest_.prediction ? &*manifest_.prediction : nullptr;
  }
  Result<bool> coded(std::size_t i, Bytes& out) const override {
    const SectionInfo& section = manifest_.sections[i];
    if (section.compression != Compression::kPredicted) return false;
    AlignedBytes stored;
    Result<void> done = read_stored_section(source_, section, cipher_, stored);
    if (!done) return in_context(block_place(i, section), std::move(done).error());
    out.assign(stored.begin(), stored.end());
    return true;
  }

 private:
  const ByteSource& source_;
  const Manifest& manifest_;
  const FileCipher* cipher_;
  std::vector<cache::BlockInfo> blocks_;
  Decompressor decompressor_;
};

WriteOptions options_like(const Manifest& manifest, WriteOptions options) {
  options.compression = compression_of(manifest);
  options.writer = manifest.writer;
  options.hide_tokens = false;  // hidden tokens stay hidden
  return options;
}

// Writes the content of an open file to `file`, with the first of options.keys.
Result<CompactReport> rewrite(const ByteSource& source, const OpenContainer& container,
                              AtomicFile file, const WriteOptions& options,
                              const Progress& progress) {
  const ComparedFile content(source, container);
  TQC_TRY(check_largest(content.blocks(), ReadOptions{}.max_payload_bytes));
  TQC_TRY(write_cache(content, file, options_like(container.info, options), progress));
  CompactReport report{container.info.file_bytes + container.info.trailing_bytes, file.size(),
                       true};
  TQC_TRY(file.commit());
  return report;
}

}  // namespace

Result<CompactReport> compact_file(const std::filesystem::path& path, const WriteOptions& options,
                                   const Progress& progress) {
  TQC_TRY_ASSIGN(const std::unique_ptr<LockedFile> locked, LockedFile::open(path));
  TQC_TRY_ASSIGN(const OpenContainer container, open_container(*locked, options.keys));
  const CacheFileInfo& info = container.info;
  TQC_TRY(check_content_name(info));
  const std::uint64_t bytes_before = info.file_bytes + info.trailing_bytes;
  if (!has_dead_bytes(container)) return CompactReport{bytes_before, bytes_before, false};

  WriteOptions write = options;
  write.keys = info.encryption ? options.keys.only(info.encryption->key_id) : KeyRing();
  TQC_TRY_ASSIGN(AtomicFile file, AtomicFile::create(path, Overwrite::kAllow, locked.get()));
  return rewrite(*locked, container, std::move(file), write, progress);
}

Result<CompactReport> rekey_file(const std::filesystem::path& path, const KeyRing& keys,
                                 const std::filesystem::path& out, const WriteOptions& options,
                                 const Progress& progress) {
  TQC_TRY(Compressor::make(options.zstd_level));
  TQC_TRY_ASSIGN(const std::unique_ptr<LockedFile> locked, LockedFile::open(path));
  TQC_TRY_ASSIGN(const OpenContainer container, open_container(*locked, keys));
  TQC_TRY(check_content_name(container.info));
  std::error_code absent;
  const bool is_same = path == out || std::filesystem::equivalent(path, out, absent);
  TQC_TRY_ASSIGN(AtomicFile file,
                 AtomicFile::create(out, is_same ? Overwrite::kAllow : options.overwrite,
                                    is_same ? locked.get() : nullptr));
  return rewrite(*locked, container, std::move(file), options, progress);
}

}  // namespace tqcache::format
