#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>

#include "tqcache/format/encryption.h"
#include "tqcache/format/manifest.h"
#include "tqcache/format/open_container.h"
#include "tqcache/format/section_reader.h"
#include "tqcache/tqkv.h"

namespace tqcache::format {
namespace {

bool has_dead_bytes(const OpenContainer& container) {
  return !container.info.gaps.empty() || container.info.trailing_bytes > 0 ||
         container.header.announced || !container.header.damage.empty();
}

// Writes the content of an open file to `file`, with the first of options.keys.
Result<CompactReport> rewrite(const ByteSource& source, const OpenContainer& container,
                              const MemoryBudget& memory, AtomicFile file, WriteOptions options,
                              const Progress& progress) {
  const Manifest& manifest = container.info;
  TQC_TRY(check_memory(manifest, memory));
  // Compares sections with their SHA-256: the content digest stays the same only if they match.
  const SectionReader content(source, container, Digests::kCompare);
  options.keep_stored = true;
  options.writer = container.info.writer;
  options.hide_tokens = false;  // hidden tokens stay hidden
  TQC_TRY(write_cache(content, file, options, progress));
  CompactReport report{container.info.file_bytes + container.info.trailing_bytes, file.size(),
                       true};
  TQC_TRY(file.commit());
  return report;
}

}  // namespace

Result<CompactReport> compact_file(const std::filesystem::path& path, const WriteOptions& options,
                                   const Progress& progress, const Access& access) {
  TQC_TRY_ASSIGN(const std::unique_ptr<LockedFile> locked, LockedFile::open(path));
  TQC_TRY_ASSIGN(const OpenContainer container, open_container(*locked, access));
  const CacheFileInfo& info = container.info;
  TQC_TRY(check_content_name(info));
  const std::uint64_t bytes_before = info.file_bytes + info.trailing_bytes;
  if (!has_dead_bytes(container)) {
    // Compared as a rewriting compares it: no file is called compact that could not be rewritten.
    ReadOptions read;
    read.n_threads = options.n_threads;
    read.access = access;
    TQC_TRY_ASSIGN(const VerifyReport found, verify_cache(*locked, read, progress));
    if (!found.damage.empty()) return corrupt(found.damage.front());
    return CompactReport{bytes_before, bytes_before, false};
  }

  WriteOptions write = options;
  write.keys = info.encryption ? access.keys.only(info.encryption->key_id) : KeyRing();
  TQC_TRY_ASSIGN(AtomicFile file, AtomicFile::create(path, Overwrite::kAllow, locked.get()));
  return rewrite(*locked, container, access.memory, std::move(file), write, progress);
}

Result<CompactReport> rekey_file(const std::filesystem::path& path, const Access& access,
                                 const std::filesystem::path& out, const WriteOptions& options,
                                 const Progress& progress) {
  TQC_TRY_ASSIGN(const std::unique_ptr<LockedFile> locked, LockedFile::open(path));
  TQC_TRY_ASSIGN(const OpenContainer container, open_container(*locked, access));
  TQC_TRY(check_content_name(container.info));
  std::error_code absent;
  const bool is_same = path == out || std::filesystem::equivalent(path, out, absent);
  TQC_TRY_ASSIGN(AtomicFile file,
                 AtomicFile::create(out, is_same ? Overwrite::kAllow : options.overwrite,
                                    is_same ? locked.get() : nullptr));
  return rewrite(*locked, container, access.memory, std::move(file), options, progress);
}

}  // namespace tqcache::format
