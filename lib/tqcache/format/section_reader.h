#pragma once
// format/section_reader.h: sections from a file, checked and decompressed. Safe for untrusted
// input.
//
// Spec: docs/reference/format.md §5 and §6.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "tqcache/base/aligned.h"
#include "tqcache/base/file.h"
#include "tqcache/base/result.h"
#include "tqcache/format/cache_file.h"
#include "tqcache/format/sections/compression.h"
#include "tqcache/format/first_tokens.h"
#include "tqcache/format/section_source.h"

namespace tqcache::format {

std::uint64_t total_raw_bytes(const Manifest& manifest);

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
Result<void> check_largest(const Manifest& manifest, std::uint64_t max_bytes);

// A file whose header and manifest have been checked, once, and whose sections can be had one by
// one. Threads: any number may read.
class SectionReader : public SectionSource {
 public:
  // `source` must outlive this. With `first_tokens` all is as if the file held no more tokens than
  // that, and nothing is read that belongs to the others alone.
  // Errors: as read_cache_info; as cache::truncate.
  static Result<SectionReader> open(const ByteSource& source,
                                    std::optional<std::int64_t> first_tokens = {});

  // Of the tokens wanted; but header, offsets and sizes in the file are those of the file.
  const CacheFileInfo& info() const { return info_; }
  const SectionInfo& section(std::size_t index) const { return info_.sections[index]; }

  const Manifest& manifest() const override { return info_; }
  // As read_section, and the padding behind it has to be zero. Errors name the section's place.
  Result<void> read(std::size_t index, AlignedBytes& raw) const override;

  // Checks a section that is used where it stands in the file, `stored`: its checksum, if
  // `checksum` says so, and the padding behind it. Errors: as read.
  // Requires: the section is packed, and not compressed.
  Result<void> check_in_place(std::size_t index, ByteView stored, bool checksum) const;

 private:
  SectionReader(const ByteSource& source, CacheFileInfo info, TokenCut cut);
  Result<void> read_whole(std::size_t index, const SectionInfo& section, AlignedBytes& raw) const;

  const ByteSource* source_;
  CacheFileInfo info_;
  TokenCut cut_;
  std::unique_ptr<const Decompressor> decompressor_;
};

}  // namespace tqcache::format
