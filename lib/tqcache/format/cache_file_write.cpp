// write_cache() and related functions: a new file.

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "tqcache/cache/memory_blocks.h"
#include "tqcache/format/container_format.h"
#include "tqcache/format/encryption.h"
#include "tqcache/format/header.h"
#include "tqcache/format/section_writer.h"
#include "tqcache/tqkv.h"
#include "tqcache/version.h"

namespace tqcache::format {
namespace {

// The destination of the file: disk or memory.
struct Output {
  FileEnd::Write append;
  std::function<Result<void>(ByteView)> replace_start;  // the first bytes, once all are known
};

std::string this_writer() { return "tqcache " + std::string(version()); }

using WriteSections = std::function<Result<void>(FileEnd& end)>;

using Cipher = std::shared_ptr<const FileCipher>;

// The encryption of a new file, if there are keys.
Result<Cipher> new_cipher(const KeyRing& keys, Manifest& manifest) {
  manifest.encryption.reset();
  if (keys.empty()) return Cipher();
  TQC_TRY_ASSIGN(Cipher cipher, FileCipher::make(keys));
  manifest.encryption = cipher->description();
  return cipher;
}

// The header stays zero until everything else is written: without it the file is invalid.
Result<void> write_around(Manifest& manifest, const Cipher& cipher,
                          const WriteSections& write_sections, Output output) {
  FileEnd end(0, std::move(output.append));
  TQC_TRY(end.append(std::array<std::byte, kHeaderBytes>{}));
  TQC_TRY(write_sections(end));
  TQC_TRY_ASSIGN(const HeaderSlot slot, write_manifest(manifest, 1, cipher.get(), end));
  return output.replace_start(encode_slot(slot));
}

Result<void> write_all(const cache::CacheReader& reader, const WriteOptions& options,
                       const Progress& progress, Output output) {
  Manifest manifest = manifest_of(reader);
  add_checkpoints(reader, manifest);
  manifest.writer = options.writer.empty() ? this_writer() : options.writer;
  TQC_TRY_ASSIGN(const Cipher cipher, new_cipher(options.keys, manifest));
  TQC_TRY(prepare_manifest(manifest, options));
  std::vector<std::size_t> all(manifest.sections.size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  const auto write = [&](FileEnd& end) {
    return write_sections(manifest, reader, all, options, cipher.get(), end, progress);
  };
  return write_around(manifest, cipher, write, std::move(output));
}

Output output_to(AtomicFile& file) {
  return {[&](std::uint64_t, ByteView bytes) { return file.write(bytes); },
          [&](ByteView bytes) { return file.write_at(0, bytes); }};
}

Output output_to(Bytes& out) {
  return {[&](std::uint64_t, ByteView bytes) -> Result<void> {
            out.insert(out.end(), bytes.begin(), bytes.end());
            return {};
          },
          [&](ByteView bytes) -> Result<void> {
            std::ranges::copy(bytes, out.begin());
            return {};
          }};
}

// A stream cannot be written at an offset; it is written at the end.
bool is_stream(AtomicFile& file) { return !file.write_at(0, {}); }

}  // namespace

Result<void> write_cache(const cache::CacheReader& cache, AtomicFile& file,
                         const WriteOptions& options, const Progress& progress) {
  if (!is_stream(file)) return write_all(cache, options, progress, output_to(file));
  TQC_TRY_ASSIGN(const Bytes bytes, write_cache_bytes(cache, options, progress));
  return file.write(bytes);
}

Result<void> write_cache(const cache::Cache& cache, AtomicFile& file, const WriteOptions& options,
                         const Progress& progress) {
  TQC_TRY(cache::validate(cache));
  return write_cache(*cache::reader_of(cache), file, options, progress);
}

Result<void> write_cache_file(const cache::CacheReader& cache, const std::filesystem::path& path,
                              const WriteOptions& options, const Progress& progress) {
  TQC_TRY(Compressor::make(options.zstd_level));  // a bad level is reported before the file exists
  TQC_TRY_ASSIGN(AtomicFile file, AtomicFile::create(path, options.overwrite));
  TQC_TRY(write_cache(cache, file, options, progress));
  return file.commit();
}

Result<void> write_cache_file(const cache::Cache& cache, const std::filesystem::path& path,
                              const WriteOptions& options, const Progress& progress) {
  TQC_TRY_ASSIGN(AtomicFile file, AtomicFile::create(path, options.overwrite));
  TQC_TRY(write_cache(cache, file, options, progress));
  return file.commit();
}

Result<Bytes> write_cache_bytes(const cache::CacheReader& cache, const WriteOptions& options,
                                const Progress& progress) {
  Bytes out;
  TQC_TRY(write_all(cache, options, progress, output_to(out)));
  return out;
}

Result<Bytes> write_cache_bytes(const cache::Cache& cache, const WriteOptions& options,
                                const Progress& progress) {
  TQC_TRY(cache::validate(cache));
  return write_cache_bytes(*cache::reader_of(cache), options, progress);
}

Result<void> write_stored_sections(Manifest manifest, const StoredSections& stored,
                                   AtomicFile& file, const KeyRing& keys) {
  if (manifest.writer.empty()) manifest.writer = this_writer();
  manifest.gaps.clear();
  const Sha256 expected = manifest.content_name;
  TQC_TRY_ASSIGN(const Cipher cipher, new_cipher(keys, manifest));
  Bytes encrypted;
  const auto write = [&](FileEnd& end) -> Result<void> {
    for (std::size_t i = 0; i < manifest.sections.size(); ++i) {
      SectionInfo& section = manifest.sections[i];
      ByteView bytes = stored(i);
      if (cipher != nullptr) {
        if (bytes.size() > kMaxSealedBytes) return too_large("a section of more than 64 GiB");
        encrypted.resize(bytes.size());
        cipher->seal_section(static_cast<std::uint32_t>(i), bytes, encrypted, section);
        bytes = encrypted;
      }
      TQC_TRY_ASSIGN(section.file_offset, end.append_aligned(bytes));
    }
    return {};
  };
  Bytes bytes;
  const bool in_memory = is_stream(file);
  TQC_TRY(write_around(manifest, cipher, write, in_memory ? output_to(bytes) : output_to(file)));
  if (manifest.content_name != expected) {
    return Error{ErrorCode::kCorrupt, "the content name is another than it should be"};
  }
  return in_memory ? file.write(bytes) : Result<void>();
}

}  // namespace tqcache::format
