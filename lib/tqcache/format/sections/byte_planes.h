#pragma once
// format/sections/byte_planes.h: floating-point numbers split into planes of bytes, and joined
// again.
//
// The bytes of a float differ in character: exponents are much alike, the low bits of a mantissa
// are noise. Interleaved, neither compresses well; in separate planes the exponents do. So each
// number is rotated left by one bit, which puts the exponent at the top and the sign at the bottom,
// and its bytes go to separate planes, the highest one first. This works on bits, so every number
// is restored exactly.
//
// Spec: docs/reference/format.md §6.5.

#include <cstddef>
#include <span>

#include "tqcache/bytes.h"

namespace tqcache::format {

inline constexpr std::size_t kMaxPlanes = 4;

// Shapes:   raw [n] numbers of `width` bytes, planes [width, n].
// Requires: width is 2 or 4; sizes are equal, and multiples of it.
void split_planes(ByteView raw, std::size_t width, std::span<std::byte> planes);

// The inverse. Planes need not be adjacent.
//
// Shapes:   planes, width of them: [n] each; raw [n] numbers of `width` bytes.
// Requires: as split_planes().
void join_planes(std::span<const ByteView> planes, std::span<std::byte> raw);

}  // namespace tqcache::format
