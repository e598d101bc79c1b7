#pragma once
// base/integers.h: conversions between the integers of caches (signed, 64 bits) and those of the
// standard library (unsigned).

#include <cstddef>
#include <cstdint>

namespace tqcache {

// Requires: n >= 0.
constexpr std::size_t to_size(std::int64_t n) { return static_cast<std::size_t>(n); }
constexpr std::uint64_t to_u64(std::int64_t n) { return static_cast<std::uint64_t>(n); }

}  // namespace tqcache
