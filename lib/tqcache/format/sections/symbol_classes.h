#pragma once
// format/sections/symbol_classes.h: symbols of trellis codes as bytes for an entropy coder that
// gives every byte a bit or more: rare ones stand alone, frequent ones share a byte with their
// neighbors.
//
// Sixteen components are a class. Its symbols stand one, two or four to a byte.
//
// Spec: docs/reference/format.md §6.6.

#include <cstddef>
#include <cstdint>
#include <span>

namespace tqcache::format {

inline constexpr std::size_t kClassComponents = 16;

constexpr std::size_t class_count(std::size_t head_dim) {
  return (head_dim + kClassComponents - 1) / kClassComponents;
}

// How many symbols of a class may stand in a byte: 1, 2 or 4 at most. Two to a byte take symbols
// from 56 to 71, four those from 62 to 65.
unsigned highest_density(std::span<const std::uint8_t> symbols);

constexpr bool is_density(unsigned density) { return density == 1 || density == 2 || density == 4; }

// Shapes: packed [symbols.size() / density]. Requires: symbols.size() is a multiple of 4, and
//         symbols are such as highest_density() says, which is no lower.
void pack_symbols(unsigned density, std::span<const std::uint8_t> symbols,
                  std::span<std::uint8_t> packed);

// The inverse. Any bytes will do; alone in its byte a symbol may come out above 127.
void unpack_symbols(unsigned density, std::span<const std::uint8_t> packed,
                    std::span<std::uint8_t> symbols);

}  // namespace tqcache::format
