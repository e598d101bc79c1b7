#include "tqcache/codec/trellis_walk.h"

#include <cassert>
#include <cstring>
#include <string>

namespace tqcache::codec {
namespace {

// The same byte eight times.
constexpr std::uint64_t each(std::uint8_t byte) { return byte * 0x0101010101010101u; }

std::uint64_t load(const std::uint8_t* from, std::size_t n) {
  std::uint64_t word = 0;
  std::memcpy(&word, from, n);
  return word;
}

void store(std::uint64_t word, std::uint8_t* to, std::size_t n) { std::memcpy(to, &word, n); }

// The states after symbols whose lowest bits are `driver`. No bit leaves its byte: states are
// below 8.
std::uint64_t next_states(std::uint64_t states, std::uint64_t driver) {
  const std::uint64_t odd = states & each(1);
  return (states >> 1 & each(3)) ^ (odd | odd << 2) ^ driver << 1;
}

}  // namespace

TrellisWalk::TrellisWalk(std::size_t n_vectors) : n_(n_vectors) {
  assert(n_vectors >= 1 && n_vectors <= kBlockTokens);
}

template <class Step>
void TrellisWalk::for_words(const std::uint8_t* in, std::uint8_t* out, const Step& step) {
  const std::size_t whole = n_ / 8;
  for (std::size_t w = 0; w < whole; ++w) {
    store(step(load(in + 8 * w, 8), states_[w], bad_[w]), out + 8 * w, 8);
  }
  const std::size_t left = n_ % 8;
  if (left == 0) return;
  store(step(load(in + 8 * whole, left), states_[whole], bad_[whole]), out + 8 * whole, left);
}

void TrellisWalk::to_codes(const std::uint8_t* symbols, std::uint8_t flip, std::uint8_t* codes) {
  const std::uint64_t flips = each(flip);
  for_words(symbols, codes, [flips](std::uint64_t word, std::uint64_t& states, std::uint64_t& bad) {
    bad |= word & each(0x80);
    const std::uint64_t code = (word & each(0x7f)) << 1 | (states & each(1));
    states = next_states(states, word & each(1));
    return code ^ flips;
  });
}

void TrellisWalk::to_symbols(const std::uint8_t* codes, std::uint8_t flip, std::uint8_t* symbols) {
  const std::uint64_t flips = each(flip);
  for_words(codes, symbols, [flips](std::uint64_t word, std::uint64_t& states, std::uint64_t& bad) {
    const std::uint64_t code = word ^ flips;
    bad |= (code ^ states) & each(1);
    const std::uint64_t symbol = code >> 1 & each(0x7f);
    states = next_states(states, symbol & each(1));
    return symbol;
  });
}

Result<void> TrellisWalk::verdict(const char* fact) const {
  std::array<std::uint8_t, kBlockTokens> bytes;
  static_assert(sizeof(bytes) == sizeof(bad_));
  std::memcpy(bytes.data(), bad_.data(), sizeof(bytes));
  for (std::size_t vector = 0; vector < n_; ++vector) {
    if (bytes[vector] == 0) continue;
    return Error{ErrorCode::kCorrupt, "vector " + std::to_string(vector) + ": " + fact};
  }
  return {};
}

}  // namespace tqcache::codec
