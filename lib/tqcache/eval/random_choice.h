#pragma once
// eval/random_choice.h: seeded random choices, the same on every machine.

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string_view>

#include "tqcache/codec/random.h"

namespace tqcache::eval {

class Draw {
 public:
  explicit Draw(std::uint64_t seed) : state_(seed) {}

  // Uniform in [0, bound), except for a bias of bound / 2^64. Requires: bound > 0.
  std::uint64_t below(std::uint64_t bound) { return codec::splitmix64(state_) % bound; }

  template <class T>
  const T& one_of(std::span<const T> values) {
    return values[static_cast<std::size_t>(below(values.size()))];
  }

 private:
  std::uint64_t state_;
};

// A seed for one part of the work, independent of the other parts.
inline std::uint64_t seed_of(std::initializer_list<std::uint64_t> parts) {
  std::uint64_t state = 0;
  for (const std::uint64_t part : parts) {
    std::uint64_t mixed = state ^ part;
    state = codec::splitmix64(mixed);
  }
  return state;
}

inline constexpr std::array<std::string_view, 24> kCities = {
    "Paris",  "London",  "Berlin", "Madrid", "Rome",   "Vienna",  "Prague",    "Lisbon",
    "Dublin", "Athens",  "Warsaw", "Oslo",   "Geneva", "Milan",   "Naples",    "Venice",
    "Porto",  "Hamburg", "Munich", "Cairo",  "Tokyo",  "Chicago", "Stockholm", "Budapest"};

}  // namespace tqcache::eval
