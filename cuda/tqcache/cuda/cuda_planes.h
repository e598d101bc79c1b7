#pragma once
// cuda/cuda_planes.h: floating-point numbers split into planes of bytes in GPU memory, and joined
// again.
//
// Lossless sections of a file hold planes: each number is rotated left by one bit and its bytes go
// to separate planes, the highest one first. A file compresses some planes with zstd; that stays on
// the CPU. What is done here is the rest: split before the compressor, join after the decompressor.
//
// Spec: docs/reference/format.md §6.5.

#include <array>
#include <cstddef>
#include <cstdint>

#include "tqcache/cuda/cuda_codec.h"
#include "tqcache/error.h"

namespace tqcache::cuda {

// Device pointers to planes of n bytes, one for each byte of a number.
using BytePlanes = std::array<std::byte*, 4>;

// Shapes: numbers [n] of `width` bytes; planes, the first `width` of them: [n].
// Errors: kInvalidArgument for another width than 2 or 4, a negative n, or pointers that are not
//         multiples of 16 bytes; kIo when the launch fails.
// Bytes:  as format::split_planes and format::join_planes.
Result<void> split_planes(const void* numbers, std::int64_t n, int width, const BytePlanes& planes,
                          Stream stream);
Result<void> join_planes(const BytePlanes& planes, std::int64_t n, int width, void* numbers,
                         Stream stream);

}  // namespace tqcache::cuda
