#pragma once
// format/sections/byte_planes.h: floating-point numbers taken apart into planes of bytes, and put
// together again.
//
// The bytes of a float do not resemble each other: exponents are much alike, the low bits of a
// mantissa are noise. Side by side, neither compresses well; in planes of their own the first do.
// So each number is turned left by one bit, which leaves the exponent above everything and the sign
// below, and its bytes go to a plane each, the highest one first. It works on bits, so that every
// number comes back as it was.
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

// The other way. Planes need not stand behind one another.
//
// Shapes:   planes, width of them: [n] each; raw [n] numbers of `width` bytes.
// Requires: as split_planes().
void join_planes(std::span<const ByteView> planes, std::span<std::byte> raw);

}  // namespace tqcache::format
