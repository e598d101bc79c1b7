#pragma once
// base/integers.h: integer conversions, and sizes that cannot overflow.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace tqcache {

// From the signed integers of caches to the unsigned integers of the standard library.
// Requires: n >= 0.
constexpr std::size_t to_size(std::int64_t n) { return static_cast<std::size_t>(n); }
constexpr std::uint64_t to_u64(std::int64_t n) { return static_cast<std::uint64_t>(n); }

// Use these for products and sums of numbers from files before using them as sizes.
// Errors: nullopt if the result does not fit 64 bits.
inline std::optional<std::uint64_t> checked_mul(std::uint64_t a, std::uint64_t b) {
  std::uint64_t product;
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

inline std::optional<std::uint64_t> checked_add(std::uint64_t a, std::uint64_t b) {
  std::uint64_t sum;
  if (__builtin_add_overflow(a, b, &sum)) return std::nullopt;
  return sum;
}

// The product of all dimensions: 1 for a scalar, 0 if any dimension is 0.
//
// Errors: nullopt also if the product of the nonzero dimensions does not fit, so that the strides
//         of an accepted shape fit too, in any order of its dimensions.
inline std::optional<std::uint64_t> element_count(std::span<const std::uint64_t> shape) {
  std::uint64_t product = 1;
  bool empty = false;
  for (const std::uint64_t n : shape) {
    empty = empty || n == 0;
    if (n != 0 && __builtin_mul_overflow(product, n, &product)) return std::nullopt;
  }
  return empty ? 0 : product;
}

// The smallest multiple of `alignment` (a power of two) that is at least `value`.
inline std::optional<std::uint64_t> align_up(std::uint64_t value, std::uint64_t alignment) {
  const std::optional<std::uint64_t> sum = checked_add(value, alignment - 1);
  if (!sum) return std::nullopt;
  return *sum & ~(alignment - 1);
}

}  // namespace tqcache
