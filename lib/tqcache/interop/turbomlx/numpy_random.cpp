#include "tqcache/interop/turbomlx/numpy_random.h"

#include <bit>
#include <cmath>

#include "tqcache/interop/turbomlx/numpy_normal_tables.h"

namespace tqcache::interop {
namespace {

constexpr std::size_t kPool = 4;
constexpr std::uint32_t kInitA = 0x43b0d7e5, kMultA = 0x931e8875;
constexpr std::uint32_t kInitB = 0x8b51f9dd, kMultB = 0x58f38ded;
constexpr std::uint32_t kMixLeft = 0xca01f9dd, kMixRight = 0x4973f715;
constexpr std::uint64_t kPcgHigh = 2549297995355413924u, kPcgLow = 4865540595714422341u;

std::uint32_t folded(std::uint32_t x) { return x ^ x >> 16; }

// One hash of a word; `constant` goes on from call to call.
std::uint32_t hash_word(std::uint32_t word, std::uint32_t multiplier, std::uint32_t& constant) {
  word ^= constant;
  constant *= multiplier;
  return folded(word * constant);
}

using Pool = std::array<std::uint32_t, kPool>;

// The seed is the lowest words of the entropy; the others are 0, as those of a shorter one are.
Pool mix_seed(std::uint64_t seed) {
  std::uint32_t constant = kInitA;
  Pool pool{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32), 0, 0};
  for (std::uint32_t& word : pool) word = hash_word(word, kMultA, constant);
  for (std::size_t from = 0; from < kPool; ++from) {
    for (std::size_t to = 0; to < kPool; ++to) {
      if (from == to) continue;
      pool[to] = folded(kMixLeft * pool[to] - kMixRight * hash_word(pool[from], kMultA, constant));
    }
  }
  return pool;
}

}  // namespace

std::array<std::uint64_t, 4> numpy_seed_state(std::uint64_t seed) {
  const Pool pool = mix_seed(seed);
  std::uint32_t constant = kInitB;
  std::array<std::uint64_t, 4> state{};
  for (std::size_t i = 0; i < 2 * state.size(); ++i) {
    const std::uint64_t word = hash_word(pool[i % kPool], kMultB, constant);
    state[i / 2] |= word << (i % 2 * 32);
  }
  return state;
}

NumpyRandom::Wide NumpyRandom::plus(Wide a, Wide b) {
  const std::uint64_t low = a.low + b.low;
  return {low, a.high + b.high + (low < a.low ? 1u : 0u)};
}

// The lower 128 bits.
NumpyRandom::Wide NumpyRandom::times(Wide a, Wide b) {
  constexpr std::uint64_t kHalf = 0xffffffff;
  const std::uint64_t a0 = a.low & kHalf, a1 = a.low >> 32;
  const std::uint64_t b0 = b.low & kHalf, b1 = b.low >> 32;
  const std::uint64_t middle = a1 * b0 + (a0 * b0 >> 32);
  const std::uint64_t other = a0 * b1 + (middle & kHalf);
  const std::uint64_t carried = a1 * b1 + (middle >> 32) + (other >> 32);
  return {a.low * b.low, carried + a.low * b.high + a.high * b.low};
}

NumpyRandom::NumpyRandom(std::uint64_t seed) {
  const auto [s0, s1, i0, i1] = numpy_seed_state(seed);
  increment_ = {i1 << 1 | 1, i0 << 1 | i1 >> 63};
  step();
  state_ = plus(state_, {s1, s0});
  step();
}

void NumpyRandom::step() { state_ = plus(times(state_, {kPcgLow, kPcgHigh}), increment_); }

std::uint64_t NumpyRandom::next_u64() {
  step();
  return std::rotr(state_.high ^ state_.low, static_cast<int>(state_.high >> 58));
}

std::uint32_t NumpyRandom::next_u32() {
  if (has_half_) {
    has_half_ = false;
    return half_;
  }
  const std::uint64_t both = next_u64();
  has_half_ = true;
  half_ = static_cast<std::uint32_t>(both >> 32);
  return static_cast<std::uint32_t>(both);
}

double NumpyRandom::next_double() { return static_cast<double>(next_u64() >> 11) * 0x1p-53; }

// Lemire's method for a range of two, which never has to draw again: the highest bit.
std::uint32_t NumpyRandom::next_of_two() { return next_u32() >> 31; }

// Beyond the outermost layer. Source: Marsaglia and Tsang, 2000.
double NumpyRandom::tail(std::uint64_t bits) {
  while (true) {
    const double x = -kNormalEndInverse * std::log1p(-next_double());
    const double y = -std::log1p(-next_double());
    if (y + y <= x * x) continue;
    return (bits >> 8 & 1) != 0 ? -(kNormalEnd + x) : kNormalEnd + x;
  }
}

double NumpyRandom::next_normal() {
  while (true) {
    const std::uint64_t random = next_u64();
    const std::size_t layer = random & 0xff;
    const std::uint64_t bits = random >> 9 & 0x000fffffffffffff;
    const double magnitude = static_cast<double>(bits) * kNormalWidths[layer];
    const double x = (random >> 8 & 1) != 0 ? -magnitude : magnitude;
    if (bits < kNormalInner[layer]) return x;
    if (layer == 0) return tail(bits);
    const double height = kNormalHeights[layer - 1] - kNormalHeights[layer];
    if (height * next_double() + kNormalHeights[layer] < std::exp(-0.5 * x * x)) return x;
  }
}

}  // namespace tqcache::interop
