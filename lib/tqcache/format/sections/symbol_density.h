#pragma once
// format/sections/symbol_density.h: which density (symbol_classes.h) makes the symbols of a class smallest.
//
// Told by the lengths of Huffman codes, and not by compressing them in every way: that takes
// longer than all else that is done to save them. Values need not be exact: any density can be
// read.

#include <cstdint>
#include <span>

namespace tqcache::format {

// Bits that a Huffman code of bytes takes that occur so often, without its table; 0 if all are the
// same byte. Shapes: counts [at most 256].
std::uint64_t huffman_bits(std::span<const std::uint32_t> counts);

// 1, 2 or 4. Requires: symbols.size() is a multiple of 4, below 2^32.
unsigned best_density(std::span<const std::uint8_t> symbols);

}  // namespace tqcache::format
