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
#include "tqcache/format/sections/compression.h"
#include "tqcache/format/container_writer.h"
#include "tqcache/format/header.h"
#include "tqcache/format/manifest.h"

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

// The numbers of all sections.
std::vector<std::size_t> all_sections(const Manifest& manifest);

// Puts hashes in the place of the token ids, if these are there.
void hide_tokens(Manifest& manifest);

// Makes the manifest ready for being written: its token ids are hidden if the options say so.
// Errors: those that show before the work: kInvalidArgument (level), kTooLarge, kCorrupt (as
//         check_contents).
Result<void> prepare_manifest(Manifest& manifest, const WriteOptions& options);

// Writes the sections of those numbers, which ascend, and fills in where they are, their digests
// and their compression. content.after_section is told of each.
//
// Errors: those of make_section for the first section that has any; kIo, kInterrupted.
// Bytes:  the same for any number of threads and any window.
Result<void> write_sections(ContainerContent& content, const std::vector<std::size_t>& numbers,
                            const WriteOptions& options, FileEnd& end);

// Fills in the content name and writes the manifest, with which the file ends. Gives the header
// slot that goes with it, of generation 1.
//
// Requires: all that the manifest says of its sections stands there.
// Errors:   kTooLarge, kIo.
Result<HeaderSlot> write_manifest(Manifest& manifest, FileEnd& end);

}  // namespace tqcache::format
