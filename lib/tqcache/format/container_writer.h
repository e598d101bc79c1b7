#pragma once
// format/container_writer.h: writes a new .tqkv file section by section, holding no more of them
// than a window.
//
// The sections come first; manifest and header follow when all that they say is known.
//
// Spec: docs/reference/format.md §2.

#include <cstddef>
#include <functional>

#include "tqcache/base/bytes.h"
#include "tqcache/base/file.h"
#include "tqcache/base/result.h"
#include "tqcache/base/shared_bytes.h"
#include "tqcache/format/cache_file.h"
#include "tqcache/format/manifest.h"

namespace tqcache::format {

struct ContainerContent {
  // As describe() gives it: where sections are and their digests are still missing. The writer's
  // name is filled in from the options.
  Manifest manifest;
  // The bytes of a section before compression, as many as the manifest says.
  // Threads: called for several sections at once.
  std::function<Result<SharedBytes>(std::size_t section)> make_section;
  // Told of every section in its order once it is written; returns false to stop. May be empty.
  std::function<bool(std::size_t section)> after_section = {};
};

// Writes it to a new file, which the caller commits. A stream is written once all is computed.
//
// Errors: those of make_section for the first section that has any; kTooLarge, kCorrupt (as
//         check_contents), kInvalidArgument (level), kIo, kInterrupted.
// Bytes:  the same for any number of threads and any window.
Result<void> write_container(ContainerContent content, AtomicFile& file,
                             const WriteOptions& options);

// The same, and commits the file.
Result<void> write_container_file(ContainerContent content, AtomicFile file,
                                  const WriteOptions& options);

// The same bytes in memory.
Result<Bytes> write_container_bytes(ContainerContent content, const WriteOptions& options);

// The stored bytes of each section, as its row in the section table says.
using StoredSections = std::function<ByteView(std::size_t section)>;

// Writes sections that are stored in this way already to a new file, which the caller commits.
// Gaps and file offsets of `manifest` have no meaning; an empty writer is this library.
//
// Errors: kCorrupt when the content name is not the one that the manifest has; kTooLarge, kIo.
Result<void> write_stored_sections(Manifest manifest, const StoredSections& stored,
                                   AtomicFile& file);

}  // namespace tqcache::format
