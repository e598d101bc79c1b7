#pragma once
// format/section_writer.h: sections and a manifest on their way to the end of a file, whether that
// is new or grows.
//
// Sections are made, digested and compressed on all threads, and written in order as they become
// ready; no more of them than a window are held.
//
// Spec: docs/reference/format.md §2 and §4.5.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "tqcache/base/bytes.h"
#include "tqcache/base/result.h"
#include "tqcache/format/cache_file.h"
#include "tqcache/format/header.h"
#include "tqcache/format/manifest.h"
#include "tqcache/format/sections/compression.h"

namespace tqcache::format {

// The end of a file, where things are put behind one another, each at a multiple of 64.
class FileEnd {
 public:
  using Write = std::function<Result<void>(std::uint64_t offset, ByteView)>;

  // `position`: how long the file is.
  FileEnd(std::uint64_t position, Write write) : position_(position), write_(std::move(write)) {}

  Result<void> append(ByteView bytes);

  // Zeros, if it takes any, and then the bytes. Gives the file offset where these begin.
  Result<std::uint64_t> append_aligned(ByteView bytes);

  std::uint64_t position() const { return position_; }

 private:
  std::uint64_t position_;
  Write write_;
};

// The manifest of a reader's cache: places and digests of sections are missing, and gaps.
Manifest manifest_of(const cache::CacheReader& reader);

// Puts hashes in the place of the token ids, if these are there.
void hide_tokens(Manifest& manifest);

// Makes the manifest ready for being written: its token ids are hidden if the options say so.
// Errors: those that show before the work: kInvalidArgument (level), kTooLarge, kCorrupt (as
//         check_contents).
Result<void> prepare_manifest(Manifest& manifest, const WriteOptions& options);

// Writes the sections of those numbers, which ascend, and fills in where they are, their digests
// and their compression.
//
// Requires: `manifest` has the reader's blocks.
// Progress: bytes of these sections before compression.
// Errors:   those of the reader for the first section that has any; kIo, kInterrupted.
// Bytes:    the same for any number of threads and any window.
Result<void> write_sections(Manifest& manifest, const cache::CacheReader& reader,
                            const std::vector<std::size_t>& numbers, const WriteOptions& options,
                            FileEnd& end, const Progress& progress);

// Fills in the content digest and writes the manifest, with which the file ends. Gives the header
// slot that goes with it, of generation 1.
//
// Requires: all that the manifest says of its sections stands there.
// Errors:   kTooLarge, kIo.
Result<HeaderSlot> write_manifest(Manifest& manifest, FileEnd& end);

// The stored bytes of each section, as its row in the section table says.
using StoredSections = std::function<ByteView(std::size_t section)>;

// Writes sections that are compressed already to a new file, which the caller commits. Gaps and
// file offsets of `manifest` have no meaning; an empty writer is this library.
//
// Errors: kCorrupt when the content digest is not the one that the manifest has; kTooLarge, kIo.
Result<void> write_stored_sections(Manifest manifest, const StoredSections& stored,
                                   AtomicFile& file);

}  // namespace tqcache::format
