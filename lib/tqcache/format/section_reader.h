#pragma once
// format/section_reader.h: reading of sections from a file, checked and decompressed. Safe for
// untrusted input.
//
// Spec: docs/reference/format.md §5 and §6.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "tqcache/bytes.h"
#include "tqcache/error.h"
#include "tqcache/file.h"
#include "tqcache/format/encryption.h"
#include "tqcache/format/open_container.h"
#include "tqcache/format/sections/compression.h"
#include "tqcache/reader.h"
#include "tqcache/tqkv.h"

namespace tqcache::format {

// Decompresses a section that is not stored uncompressed. `stored` has already been checked against
// the checksum of the section table, and the size of the section by check_memory(). Only the layers
// of `manifest` are used.
//
// Threads: any number at once.
// Errors:  kCorrupt (zstd frame, planes, symbols); without the section's place.
Result<void> unpack_stored(const Manifest& manifest, const SectionInfo& section, ByteView stored,
                           const Decompressor& decompressor, AlignedBytes& raw);

// Reads the stored bytes of a section, decrypted and authenticated, or checked against their
// checksum. Shapes: stored [section.stored_bytes].
// Errors: kCorrupt, kTruncated, kIo; without the section's place.
Result<void> read_stored_section(const ByteSource& source, const SectionInfo& section,
                                 const FileCipher* cipher, std::span<std::byte> stored);

// Reads the bytes of a section before compression into `raw`, which is resized to them; its memory
// is reused if it is large enough. Only the layers of `manifest` are used. `cipher` is null for a
// plain file; an encrypted section is authenticated before anything else is done with it.
//
// Threads: any number at once.
// Errors:  kCorrupt (checksum, seal, zstd frame, planes), kTruncated (the file was cut meanwhile),
// kIo;
//          without the section's place.
Result<void> read_section(const ByteSource& source, const Manifest& manifest,
                          const SectionInfo& section, const FileCipher* cipher,
                          const Decompressor& decompressor, AlignedBytes& raw);

// Checks stored bytes against the checksum of the section table. Errors: kCorrupt.
Result<void> check_stored(const SectionInfo& section, ByteView stored);

// Checks bytes before compression against the SHA-256 of the section table. The content digest is
// made of these, so afterwards the bytes are those that the digest names. Errors: kCorrupt.
Result<void> check_digest(const SectionInfo& section, ByteView raw);

// Checks that the bytes between the end of section `index` and the next section, or the manifest,
// are zero.
// Errors: as read_section.
Result<void> check_padding(const ByteSource& source, const Manifest& manifest, std::size_t index);

// Checks each section against the limit of memory: if every thread holds one, a hostile file can
// use no more memory than this per thread. Errors: kTooLarge.
Result<void> check_memory(const Manifest& manifest, const MemoryBudget& memory);
// The same for a file, whose sections together have to be in proportion to its size, too. So a
// small file of zeros cannot take much memory.
Result<void> check_memory(const CacheFileInfo& info, const MemoryBudget& memory);

// Whether sections are compared with their SHA-256, too. Their XXH3 finds damage, but anybody can
// make other bytes that have it.
enum class Digests { kCompare, kTrust };

// A .tqkv file with checked header and manifest, whose sections are read one by one. Its blocks are
// the sections of the cache, the first ones of the file; those of checkpoints follow. Threads: any
// number may read.
class SectionReader : public cache::CacheReader {
 public:
  // Errors: as read_cache_info.
  static Result<SectionReader> open(std::shared_ptr<const ByteSource> source,
                                    const Access& access = {}, Digests digests = Digests::kCompare);
  // `source` must outlive the reader.
  static Result<SectionReader> open(const ByteSource& source, const Access& access = {},
                                    Digests digests = Digests::kCompare);
  // A mapped file. share() returns uncompressed packed sections of a plain file without copying
  // them, and checks their checksums only if `verify_checksums` or `digests` is kCompare.
  static Result<SectionReader> open_mapped(SharedBytes file, bool verify_checksums,
                                           const Access& access, Digests digests);

  // A file that is open already. `source` must outlive the reader. The content digest is not
  // compared.
  SectionReader(const ByteSource& source, OpenContainer container, Digests digests);

  const CacheFileInfo& info() const { return file_->info; }

  const cache::CacheDesc& description() const override { return file_->info; }
  const std::vector<cache::BlockInfo>& blocks() const override { return blocks_; }
  std::span<const cache::Checkpoint> checkpoints() const override { return checkpoints_; }
  // As read_section; the padding after it must be zero. Errors name the section's place.
  Result<void> read(std::size_t index, AlignedBytes& raw) const override;
  Result<SharedBytes> share(std::size_t index) const override;

  // With kCompare the stored bytes are also decompressed and compared with their SHA-256.
  Result<std::optional<cache::StoredBlock>> stored(std::size_t index,
                                                   const cache::Room& room) const override;
  std::optional<Prediction> prediction() const override { return file_->info.prediction; }

 private:
  // The readers of checkpoints share it.
  struct File {
    File(std::shared_ptr<const ByteSource> from, OpenContainer container, Digests compared)
        : source(std::move(from)),
          info(std::move(container.info)),
          cipher(std::move(container.cipher)),
          digests(compared) {}

    std::shared_ptr<const ByteSource> source;
    CacheFileInfo info;
    std::shared_ptr<const FileCipher> cipher;  // null: a plain file
    Digests digests;
    SharedBytes mapped = {};  // empty: not mapped
    bool verify_checksums = true;
    Decompressor decompressor = {};

    Result<void> read(std::size_t index, AlignedBytes& raw) const;
    bool is_in_place(std::size_t index) const;
    // Requires: is_in_place().
    Result<SharedBytes> share(std::size_t index) const;
    Result<std::optional<cache::StoredBlock>> stored(std::size_t index,
                                                     const cache::Room& room) const;
    Result<void> compare(const SectionInfo& section, ByteView raw) const {
      return digests == Digests::kCompare ? check_digest(section, raw) : Result<void>();
    }
    Result<void> compare_stored(const SectionInfo& section, ByteView stored) const;
  };
  class OfCheckpoint;

  SectionReader(std::shared_ptr<const ByteSource> source, OpenContainer container, Digests digests);

  std::shared_ptr<File> file_;
  std::vector<cache::BlockInfo> blocks_;
  std::vector<cache::Checkpoint> checkpoints_;
};

}  // namespace tqcache::format
