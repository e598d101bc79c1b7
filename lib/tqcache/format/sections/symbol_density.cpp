#include "tqcache/format/sections/symbol_density.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <vector>

#include "tqcache/format/sections/symbol_classes.h"

namespace tqcache::format {
namespace {

using Counts = std::array<std::uint32_t, 256>;

// Cost of each distinct byte in the table before the codes.
constexpr std::uint64_t kTableBits = 1;

// Four counters per byte: a single one would wait for itself where bytes repeat.
Counts count_bytes(std::span<const std::uint8_t> bytes) {
  std::array<Counts, 4> parts{};
  const std::size_t whole = bytes.size() / 4 * 4;
  for (std::size_t i = 0; i < whole; i += 4) {
    for (std::size_t k = 0; k < 4; ++k) ++parts[k][bytes[i + k]];
  }
  for (std::size_t i = whole; i < bytes.size(); ++i) ++parts[0][bytes[i]];
  for (std::size_t k = 1; k < 4; ++k) {
    for (std::size_t i = 0; i < 256; ++i) parts[0][i] += parts[k][i];
  }
  return parts[0];
}

std::uint64_t coded_bits(const Counts& counts) {
  const auto n_different = counts.size() - static_cast<std::size_t>(std::ranges::count(counts, 0u));
  return huffman_bits(counts) + kTableBits * n_different;
}

// Codes of at least one bit per symbol waste little if no symbol is more frequent than this.
bool may_waste(const Counts& counts, std::size_t n_symbols) {
  return std::ranges::max(counts) >= n_symbols / 10 * 3;
}

}  // namespace

// Two queues: single bytes, the rarest first, and joined ones, which appear in ascending order.
std::uint64_t huffman_bits(std::span<const std::uint32_t> counts) {
  std::vector<std::uint64_t> single;
  for (const std::uint32_t count : counts) {
    if (count > 0) single.push_back(count);
  }
  std::ranges::sort(single);
  std::vector<std::uint64_t> joined;
  std::size_t next_single = 0, next_joined = 0;
  const auto take_least = [&] {
    const bool takes_single =
        next_joined == joined.size() ||
        (next_single < single.size() && single[next_single] <= joined[next_joined]);
    return takes_single ? single[next_single++] : joined[next_joined++];
  };
  std::uint64_t bits = 0;
  for (std::size_t n = 1; n < single.size(); ++n) {
    const std::uint64_t first = take_least();
    joined.push_back(first + take_least());
    bits += joined.back();
  }
  return bits;
}

unsigned best_density(std::span<const std::uint8_t> symbols) {
  const unsigned highest = highest_density(symbols);
  if (highest == 1) return 1;
  const Counts counts = count_bytes(symbols);
  if (!may_waste(counts, symbols.size())) return 1;
  std::vector<std::uint8_t> packed(symbols.size());
  unsigned best = 1;
  std::uint64_t least = coded_bits(counts);
  for (unsigned density = 2; density <= highest; density *= 2) {
    const auto bytes = std::span(packed).first(symbols.size() / density);
    pack_symbols(density, symbols, bytes);
    const std::uint64_t bits = coded_bits(count_bytes(bytes));
    if (bits >= least) continue;
    least = bits;
    best = density;
  }
  return best;
}

}  // namespace tqcache::format
