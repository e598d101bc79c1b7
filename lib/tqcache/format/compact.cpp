#include <filesystem>
#include <memory>
#include <span>
#include <system_error>
#include <utility>
#include <vector>

#include "tqcache/format/encryption.h"
#include "tqcache/format/manifest.h"
#include "tqcache/format/open_container.h"
#include "tqcache/format/predicted_blocks.h"
#include "tqcache/format/section_reader.h"
#include "tqcache/tqkv.h"

namespace tqcache::format {
namespace {

bool has_dead_bytes(const OpenContainer& container) {
  return !container.info.gaps.empty() || container.info.trailing_bytes > 0 ||
         container.header.announced || !container.header.damage.empty();
}

// The content of a file. Sections that are predicted stay as they are.
class KeptSections : public PredictedReader {
 public:
  // All must outlive this.
  KeptSections(const ByteSource& source, const FileCipher* cipher, const SectionReader& content)
      : source_(source), cipher_(cipher), content_(content) {}

  const cache::CacheDesc& description() const override { return content_.description(); }
  const std::vector<cache::BlockInfo>& blocks() const override { return content_.blocks(); }
  std::span<const cache::Checkpoint> checkpoints() const override { return content_.checkpoints(); }
  Result<void> read(std::size_t i, AlignedBytes& raw) const override {
    return content_.read(i, raw);
  }
  Result<SharedBytes> share(std::size_t i) const override { return content_.share(i); }

  const Prediction* prediction() const override {
    const CacheFileInfo& info = content_.info();
    return info.prediction ? &*info.prediction : nullptr;
  }
  Result<bool> coded(std::size_t i, Bytes& out) const override {
    const SectionInfo& section = content_.info().sections[i];
    if (section.compression != Compression::kPredicted) return false;
    AlignedBytes stored;
    Result<void> done = read_stored_section(source_, section, cipher_, stored);
    if (!done) return in_context(block_place(i, section), std::move(done).error());
    out.assign(stored.begin(), stored.end());
    return true;
  }

 private:
  const ByteSource& source_;
  const FileCipher* cipher_;
  const SectionReader& content_;
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
  // Compares sections with their SHA-256: the content digest stays the same only if they match.
  const SectionReader compared(source, container, Digests::kCompare);
  const KeptSections content(source, container.cipher.get(), compared);
  TQC_TRY(check_largest(blocks_of(container.info.sections), ReadOptions{}.max_payload_bytes));
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
  if (!has_dead_bytes(container)) {
    // Compared as a rewriting compares it: no file is called compact that could not be rewritten.
    ReadOptions read;
    read.n_threads = options.n_threads;
    read.keys = options.keys;
    TQC_TRY_ASSIGN(const VerifyReport found, verify_cache(*locked, read, progress));
    if (!found.damage.empty()) return corrupt(found.damage.front());
    return CompactReport{bytes_before, bytes_before, false};
  }

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
