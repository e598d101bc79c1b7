#pragma once
// format/section_reader.h: sections from a file, checked and decompressed. Safe for untrusted
// input.
//
// Spec: docs/reference/format.md §5 and §6.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "tqcache/base/aligned.h"
#include "tqcache/base/file.h"
#include "tqcache/base/result.h"
#include "tqcache/base/shared_bytes.h"
#include "tqcache/cache/reader.h"
#include "tqcache/format/cache_file.h"
#include "tqcache/format/sections/compression.h"

namespace tqcache::format {

// The bytes before compression of a section that is not stored as it is, from those that are
// stored, which have the checksum of the section table. Of `manifest` only the layers count.
//
// Threads: may be called from several at once.
// Errors:  kCorrupt (zstd frame, planes, symbols); without the section's place.
Result<void> unpack_stored(const Manifest& manifest, const SectionInfo& section, ByteView stored,
                           const Decompressor& decompressor, AlignedBytes& raw);

// Reads the bytes of a section before compression into `raw`, which gets their size. Its memory is
// used again if it has enough. Of `manifest` only the layers count.
//
// Threads: may be called from several at once.
// Errors:  kCorrupt (checksum, zstd frame, planes), kTruncated (the file was cut meanwhile), kIo;
//          without the section's place.
Result<void> read_section(const ByteSource& source, const Manifest& manifest,
                          const SectionInfo& section, const Decompressor& decompressor,
                          AlignedBytes& raw);

// Whether stored bytes have the checksum of the section table. Errors: kCorrupt.
Result<void> check_stored(const SectionInfo& section, ByteView stored);

// Whether the bytes from the end of section `index` to the next section, or the manifest, are
// zero.
// Errors: as read_section.
Result<void> check_padding(const ByteSource& source, const Manifest& manifest, std::size_t index);

// Whether no section has more bytes than that before compression: where one is in memory for every
// thread, a hostile file can then ask for no more than so many times their number.
// Errors: kTooLarge.
Result<void> check_largest(const std::vector<cache::BlockInfo>& blocks, std::uint64_t max_bytes);

// A .tqkv file whose header and manifest have been checked, once, and whose sections are read one
// by one. Its blocks are the sections of the file. Threads: any number may read.
class SectionReader : public cache::CacheReader {
 public:
  // Errors: as read_cache_info.
  static Result<SectionReader> open(std::shared_ptr<const ByteSource> source);
  // `source` must outlive the reader.
  static Result<SectionReader> open(const ByteSource& source);
  // A mapped file. share() gives packed sections that are stored uncompressed where they are, and
  // compares their checksums only if `verify_checksums`.
  static Result<SectionReader> open_mapped(SharedBytes file, bool verify_checksums);

  const CacheFileInfo& info() const { return info_; }

  const cache::CacheDesc& description() const override { return info_; }
  const std::vector<cache::BlockInfo>& blocks() const override { return blocks_; }
  // As read_section, and the padding behind it has to be zero. Errors name the section's place.
  Result<void> read(std::size_t index, AlignedBytes& raw) const override;
  Result<SharedBytes> share(std::size_t index) const override;

  // The bytes of a section as the file has them, compared with their checksum.
  // Shapes: stored [info().sections[index].stored_bytes]. Errors: as read.
  Result<void> read_stored(std::size_t index, std::span<std::byte> stored) const;

 private:
  SectionReader(std::shared_ptr<const ByteSource> source, CacheFileInfo info);

  std::shared_ptr<const ByteSource> source_;
  CacheFileInfo info_;
  std::vector<cache::BlockInfo> blocks_;
  SharedBytes mapped_;  // empty: not mapped
  bool verify_checksums_ = true;
  std::unique_ptr<const Decompressor> decompressor_;
};

}  // namespace tqcache::format
