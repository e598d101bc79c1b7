#pragma once
// format/sections/symbol_classes.h: trellis symbols as bytes for an entropy coder that spends at
// least one bit per byte: rare symbols take a byte each, frequent ones share a byte with their
// neighbors.
//
// Sixteen components form a class. Its bytes hold one, two or four symbols each.
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

// The largest number of symbols of a class per byte: 1, 2 or 4. Two per byte need symbols from 56
// to 71, four need 62 to 65.
unsigned highest_density(std::span<const std::uint8_t> symbols);

constexpr bool is_density(unsigned density) { return density == 1 || density == 2 || density == 4; }

// Shapes: packed [symbols.size() / density]. Requires: symbols.size() is a multiple of 4, and
//         density is at most highest_density(symbols).
void pack_symbols(unsigned density, std::span<const std::uint8_t> symbols,
                  std::span<std::uint8_t> packed);

// The inverse. Any bytes are accepted; a symbol alone in its byte may come out above 127.
void unpack_symbols(unsigned density, std::span<const std::uint8_t> packed,
                    std::span<std::uint8_t> symbols);

}  // namespace tqcache::format
