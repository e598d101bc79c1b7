#pragma once
// format/sections/symbol_density.h: the smallest density (symbol_classes.h) for a class of symbols.
//
// Chosen by the lengths of Huffman codes rather than by trying each density: that would take longer
// than all other work of saving the symbols. The lengths need not be exact: any density can be
// read.

#include <cstdint>
#include <span>

namespace tqcache::format {

// Bits of a Huffman code for bytes with these counts, without its table; 0 if all are the same
// byte. Shapes: counts [at most 256].
std::uint64_t huffman_bits(std::span<const std::uint32_t> counts);

// 1, 2 or 4. Requires: symbols.size() is a multiple of 4, below 2^32.
unsigned best_density(std::span<const std::uint8_t> symbols);

}  // namespace tqcache::format
