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
#include <memory>
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

// The manifest of a reader's cache, without checkpoints, gaps, prediction, and offsets and digests
// of sections.
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

// A new file of sections that are compressed already. They are written as they arrive, to a stream
// only at the end.
//
// Threads: one at a time.
class StoredSectionWriter {
 public:
  // The caller commits `file`, which must outlive this. The first of `keys` encrypts it.
  static Result<StoredSectionWriter> begin(AtomicFile& file, const KeyRing& keys);
  StoredSectionWriter(StoredSectionWriter&&) noexcept;
  StoredSectionWriter& operator=(StoredSectionWriter&&) noexcept;
  ~StoredSectionWriter();

  // Writes the next section. `info` describes the stored bytes; its file offset is ignored.
  // Errors: kTooLarge, kIo.
  Result<void> add(const SectionInfo& info, ByteView stored);

  // Ends the file with the manifest. Sections that were added beyond those of `manifest` are
  // dropped. Gaps and file offsets of `manifest` are ignored; an empty writer means this library.
  // Requires: the sections of `manifest` were added, in their order. Nothing follows.
  // Errors:   kCorrupt when the content digest differs from the manifest's; kTooLarge, kIo.
  Result<void> finish(Manifest manifest);

 private:
  struct State;
  explicit StoredSectionWriter(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace tqcache::format
