#include "tqcache/format/symbol_classes.h"

#include <algorithm>
#include <cassert>
#include <cstring>

namespace tqcache::format {
namespace {

// The lowest symbol of those that fit a field of kFields / density bits: the middle is symbol 64.
constexpr unsigned lowest(unsigned density) { return density == 2 ? 56 : 62; }

constexpr unsigned kFields = 8;  // bits of a byte

}  // namespace

unsigned highest_density(std::span<const std::uint8_t> symbols) {
  std::uint8_t least = 255, most = 0;
  for (const std::uint8_t symbol : symbols) {  // not minmax(), which compilers make no vectors of
    least = std::min(least, symbol);
    most = std::max(most, symbol);
  }
  const auto fits = [&](unsigned density) {
    return least >= lowest(density) && most < lowest(density) + (1u << kFields / density);
  };
  return fits(4) ? 4 : fits(2) ? 2 : 1;
}

void pack_symbols(unsigned density, std::span<const std::uint8_t> symbols,
                  std::span<std::uint8_t> packed) {
  assert(is_density(density) && packed.size() * density == symbols.size());
  if (density == 1) {
    std::memcpy(packed.data(), symbols.data(), packed.size());
    return;
  }
  const unsigned base = lowest(density);
  for (std::size_t i = 0; i < packed.size(); ++i) {
    unsigned byte = 0;
    for (unsigned k = 0; k < density; ++k) {
      byte |= (symbols[i * density + k] - base) << (k * (kFields / density));
    }
    packed[i] = static_cast<std::uint8_t>(byte);
  }
}

void unpack_symbols(unsigned density, std::span<const std::uint8_t> packed,
                    std::span<std::uint8_t> symbols) {
  assert(is_density(density) && packed.size() * density == symbols.size());
  if (density == 1) {
    std::memcpy(symbols.data(), packed.data(), packed.size());
    return;
  }
  const unsigned base = lowest(density);
  const unsigned mask = (1u << (kFields / density)) - 1;
  for (std::size_t i = 0; i < packed.size(); ++i) {
    for (unsigned k = 0; k < density; ++k) {
      symbols[i * density + k] =
          static_cast<std::uint8_t>(base + (packed[i] >> (k * (kFields / density)) & mask));
    }
  }
}

}  // namespace tqcache::format
