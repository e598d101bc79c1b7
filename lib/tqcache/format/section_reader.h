#pragma once
// format/section_reader.h: one section from the file, checked and decompressed. Safe for untrusted
// input.
//
// Spec: docs/format.md §5 and §6.

#include <cstddef>
#include <cstdint>

#include "tqcache/base/aligned.h"
#include "tqcache/base/file.h"
#include "tqcache/base/result.h"
#include "tqcache/format/compression.h"
#include "tqcache/format/manifest.h"

namespace tqcache::format {

// Sections are worked on in batches, many at a time but never more than this many bytes of them
// before compression (or a single one), so that memory stays bounded and progress is told.
inline constexpr std::uint64_t kBatchBytes = std::uint64_t{32} << 20;

// The end of the batch that begins with section `first`.
std::size_t batch_end(const Manifest& manifest, std::size_t first);

std::uint64_t total_raw_bytes(const Manifest& manifest);

// The bytes of a section before compression.
//
// Threads: may be called from several at once.
// Errors:  kCorrupt (checksum, zstd frame), kTruncated (the file was cut meanwhile), kIo; without
//          the section's place.
Result<AlignedBytes> read_section(const ByteSource& source, const SectionInfo& section,
                                  const Decompressor& decompressor);

// Whether the bytes from the end of section `index` to the next section, or the manifest, are
// zero.
// Errors: as read_section.
Result<void> check_padding(const ByteSource& source, const Manifest& manifest, std::size_t index);

}  // namespace tqcache::format
