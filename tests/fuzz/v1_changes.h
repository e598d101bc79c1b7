#pragma once
// tests/fuzz/v1_changes.h: changes files of version 1 field by field, digest and all.

#include <cstddef>
#include <cstdint>

#include "migrations/v1_file.h"
#include "tqcache/bytes.h"

namespace tqcache::fuzz {

class Chance;

// Tensors of a file take no more than this: enough for a token block of every kind of layer.
inline constexpr std::uint64_t kMaxV1PayloadBytes = 1 << 18;

// A custom mutator for files of version 1: changes what the file says, or bytes of it, and as a
// rule makes the digest right.
std::size_t mutate_v1(std::uint8_t* data, std::size_t size, std::size_t max_size, unsigned seed);

}  // namespace tqcache::fuzz
