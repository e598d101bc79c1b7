#pragma once
// format/sections/plane_section.h: one dense section as byte planes (byte_planes.h), each stored
// raw or as one zstd frame. Decompression is safe for untrusted input.
//
// Spec: docs/reference/format.md §6.5.

#include <cstddef>
#include <cstdint>
#include <span>

#include "tqcache/bytes.h"
#include "tqcache/error.h"
#include "tqcache/format/sections/compression.h"

namespace tqcache::format {

// Fills `stored` with the planes of `raw`, numbers of `width` bytes. Returns false if that would
// not be smaller than `raw`.
//
// Requires: width is 2 or 4, and raw.size() a multiple of it; `compressor` is for_planes().
// Threads:  any number at once.
bool compress_planes(const Compressor& compressor, ByteView raw, std::size_t width, Bytes& stored);

// Checks by sizes and frame headers that `stored` is exactly the planes of raw_size / width
// numbers. Call it before memory for the content is allocated.
//
// Requires: as compress_planes(). Errors: kCorrupt.
Result<void> check_planes(ByteView stored, std::uint64_t raw_size, std::size_t width);

// Requires: check_planes(stored, raw.size(), width).
// Errors:   kCorrupt when a frame does not hold what it declares.
Result<void> decompress_planes(const Decompressor& decompressor, ByteView stored, std::size_t width,
                               std::span<std::byte> raw);

}  // namespace tqcache::format
