#include "tqcache/format/sections/symbol_classes.h"

#include <algorithm>
#include <cassert>
#include <cstring>

namespace tqcache::format {
namespace {

// The lowest symbol that fits a field of kFields / density bits; the middle is symbol 64.
constexpr unsigned lowest(unsigned density) { return density == 2 ? 56 : 62; }

constexpr unsigned kFields = 8;  // bits of a byte

// The density is a constant, so that compilers can vectorize these functions.
template <unsigned kDensity>
void pack(const std::uint8_t* __restrict symbols, std::span<std::uint8_t> packed) {
  constexpr unsigned kBits = kFields / kDensity;
  for (std::uint8_t& byte : packed) {
    unsigned fields = 0;
    for (unsigned k = 0; k < kDensity; ++k) fields |= (symbols[k] - lowest(kDensity)) << k * kBits;
    byte = static_cast<std::uint8_t>(fields);
    symbols += kDensity;
  }
}

template <unsigned kDensity>
void unpack(std::span<const std::uint8_t> packed, std::uint8_t* __restrict symbols) {
  constexpr unsigned kBits = kFields / kDensity, kMask = (1u << kBits) - 1;
  for (const std::uint8_t byte : packed) {
    for (unsigned k = 0; k < kDensity; ++k) {
      symbols[k] = static_cast<std::uint8_t>(lowest(kDensity) + (byte >> k * kBits & kMask));
    }
    symbols += kDensity;
  }
}

}  // namespace

unsigned highest_density(std::span<const std::uint8_t> symbols) {
  std::uint8_t least = 255, most = 0;
  for (const std::uint8_t symbol : symbols) {  // not minmax(), which compilers do not vectorize
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
  if (density == 4) return pack<4>(symbols.data(), packed);
  if (density == 2) return pack<2>(symbols.data(), packed);
  std::memcpy(packed.data(), symbols.data(), packed.size());
}

void unpack_symbols(unsigned density, std::span<const std::uint8_t> packed,
                    std::span<std::uint8_t> symbols) {
  assert(is_density(density) && packed.size() * density == symbols.size());
  if (density == 4) return unpack<4>(packed, symbols.data());
  if (density == 2) return unpack<2>(packed, symbols.data());
  std::memcpy(symbols.data(), packed.data(), packed.size());
}

}  // namespace tqcache::format
