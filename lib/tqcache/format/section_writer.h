#pragma once
// format/section_writer.h: a writer of sections and a manifest at the end of a new or growing file.
//
// Sections are made, digested and compressed on all threads, and written in order as they become
// ready; at most window_bytes of them are held in memory.
//
// Spec: docs/reference/format.md §2 and §4.5.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "tqcache/bytes.h"
#include "tqcache/error.h"
#include "tqcache/format/encryption.h"
#include "tqcache/format/header.h"
#include "tqcache/format/manifest.h"
#include "tqcache/format/sections/compression.h"
#include "tqcache/tqkv.h"

namespace tqcache::format {

// The end of a file, where data is appended, each piece at a multiple of 64.
class FileEnd {
 public:
  using Write = std::function<Result<void>(std::uint64_t offset, ByteView)>;

  // `position`: the size of the file.
  FileEnd(std::uint64_t position, Write write) : position_(position), write_(std::move(write)) {}

  Result<void> append(ByteView bytes);

  // Writes zeros up to the next multiple of 64, then the bytes. Returns the offset of the bytes.
  Result<std::uint64_t> append_aligned(ByteView bytes);

  std::uint64_t position() const { return position_; }

 private:
  std::uint64_t position_;
  Write write_;
};

// The manifest of a reader's cache, without checkpoints, gaps, and offsets and digests of sections.
Manifest manifest_of(const cache::CacheReader& reader);

// Adds the checkpoints of the reader and their sections. Requires: manifest_of(reader).
void add_checkpoints(const cache::CacheReader& reader, Manifest& manifest);

// Replaces token ids by hashes, if the ids are present.
void hide_tokens(Manifest& manifest);

// Prepares the manifest for writing: hides its token ids if the options say so.
// Errors: those found before any work: kInvalidArgument (level), kTooLarge, kCorrupt (as
//         check_contents).
Result<void> prepare_manifest(Manifest& manifest, const WriteOptions& options);

// Writes the sections with these indices, in ascending order, and fills in their offsets, digests,
// compression and seals. `cipher` is null for a plain file.
//
// Sections of checkpoints are stored as planes where that makes them smaller, unless nothing is
// compressed.
//
// Requires: `manifest` has the reader's blocks, and those of its checkpoints if it has checkpoints.
// Progress: bytes of these sections before compression.
// Errors:   those of the reader for the first section that fails; kIo, kInterrupted.
// Bytes:    the same for any number of threads and any window.
Result<void> write_sections(Manifest& manifest, const cache::CacheReader& reader,
                            const std::vector<std::size_t>& numbers, const WriteOptions& options,
                            const FileCipher* cipher, FileEnd& end, const Progress& progress);

// Fills in the content digest and writes the manifest, which ends the file. Returns the header slot
// for it, with this generation.
//
// Requires: the rows of all sections are complete.
// Errors:   kTooLarge, kIo.
Result<HeaderSlot> write_manifest(Manifest& manifest, std::uint32_t generation,
                                  const FileCipher* cipher, FileEnd& end);

// The stored bytes of each section, as described by its row in the section table.
using StoredSections = std::function<ByteView(std::size_t section)>;

// Writes already compressed sections to a new file, which the caller commits. Gaps and file offsets
// of `manifest` are ignored; an empty writer means this library. The first of `keys` encrypts it.
//
// Errors: kCorrupt when the content digest differs from the manifest's; kTooLarge, kIo.
Result<void> write_stored_sections(Manifest manifest, const StoredSections& stored,
                                   AtomicFile& file, const KeyRing& keys = {});

}  // namespace tqcache::format
