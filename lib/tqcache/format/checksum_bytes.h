#pragma once
// format/checksum_bytes.h: XXH3-128 in the byte order of the file.
//
// Canonical order, as xxhsum prints it: the high half first, each half big-endian.
//
// Spec: docs/reference/format.md §5.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "tqcache/hash.h"

namespace tqcache::format {

using ChecksumBytes = std::array<std::byte, 16>;

inline ChecksumBytes to_bytes(const Checksum128& checksum) {
  ChecksumBytes bytes;
  for (unsigned i = 0; i < 8; ++i) {
    bytes[i] = static_cast<std::byte>(checksum.high >> (56 - 8 * i));
    bytes[8 + i] = static_cast<std::byte>(checksum.low >> (56 - 8 * i));
  }
  return bytes;
}

inline Checksum128 checksum_from_bytes(std::span<const std::byte, 16> bytes) {
  Checksum128 checksum;
  for (std::size_t i = 0; i < 8; ++i) {
    checksum.high = checksum.high << 8 | std::to_integer<std::uint64_t>(bytes[i]);
    checksum.low = checksum.low << 8 | std::to_integer<std::uint64_t>(bytes[8 + i]);
  }
  return checksum;
}

}  // namespace tqcache::format
