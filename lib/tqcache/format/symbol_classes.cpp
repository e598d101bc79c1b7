#include "tqcache/format/symbol_classes.h"

#include <array>
#include <cassert>
#include <cstring>

namespace tqcache::format {
namespace {

// The lowest symbol of those that fit a field of 8 / density bits: the middle is symbol 64.
constexpr unsigned lowest(unsigned density) { return density == 2 ? 56 : 62; }

using Counts = std::array<std::size_t, 256>;

Counts count(std::span<const std::uint8_t> symbols) {
  // Four tables, so that equal neighbours do not wait for each other.
  std::array<std::array<std::uint32_t, 256>, 4> tables{};
  for (std::size_t i = 0; i + 4 <= symbols.size(); i += 4) {
    for (std::size_t k = 0; k < 4; ++k) ++tables[k][symbols[i + k]];
  }
  Counts counts{};
  for (const auto& table : tables) {
    for (std::size_t i = 0; i < counts.size(); ++i) counts[i] += table[i];
  }
  return counts;
}

bool fits(const Counts& counts, unsigned density, std::size_t total) {
  const std::size_t n_values = std::size_t{1} << (8 / density);
  std::size_t inside = 0;
  for (std::size_t i = 0; i < n_values; ++i) inside += counts[lowest(density) + i];
  return inside == total;
}

}  // namespace

unsigned choose_density(std::span<const std::uint8_t> symbols) {
  const Counts counts = count(symbols);
  std::size_t most = 0;
  for (const std::size_t each : counts) most = most < each ? each : most;
  // The share of the most frequent symbol tells how few bits it takes: whole numbers, so that all
  // CPUs choose alike. A fifth is about 2.5 bits a symbol, a half about 1.5.
  const std::size_t total = symbols.size();
  if (2 * most > total && fits(counts, 4, total)) return 4;
  if (10 * most > 3 * total && fits(counts, 2, total)) return 2;
  return 1;
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
      byte |= (symbols[i * density + k] - base) << (k * 8 / density);
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
  const unsigned mask = (1u << (8 / density)) - 1;
  for (std::size_t i = 0; i < packed.size(); ++i) {
    for (unsigned k = 0; k < density; ++k) {
      symbols[i * density + k] =
          static_cast<std::uint8_t>(base + (packed[i] >> (k * 8 / density) & mask));
    }
  }
}

}  // namespace tqcache::format
