#pragma once
// format/sections/plane_section.h: one dense section as planes of bytes (byte_planes.h), each of
// them as it is or as one zstd frame, and back. Decompression is safe for untrusted input.
//
// Spec: docs/reference/format.md §6.5.

#include <cstddef>
#include <cstdint>
#include <span>

#include "tqcache/bytes.h"
#include "tqcache/error.h"
#include "tqcache/format/sections/compression.h"

namespace tqcache::format {

// Fills `stored` with the planes of `raw`, numbers of `width` bytes. False: that would not be
// smaller than `raw`.
//
// Requires: width is 2 or 4, and raw.size() a multiple of it; `compressor` is for_planes().
// Threads:  any number at once.
bool compress_planes(const Compressor& compressor, ByteView raw, std::size_t width, Bytes& stored);

// Checks that `stored` is the planes of raw_size / width numbers and nothing more, as far as sizes
// and the headers of frames tell. To be called before memory for the content is allocated.
//
// Requires: as compress_planes(). Errors: kCorrupt.
Result<void> check_planes(ByteView stored, std::uint64_t raw_size, std::size_t width);

// Requires: check_planes(stored, raw.size(), width).
// Errors:   kCorrupt, when a frame does not hold what it says.
Result<void> decompress_planes(const Decompressor& decompressor, ByteView stored, std::size_t width,
                               std::span<std::byte> raw);

}  // namespace tqcache::format
