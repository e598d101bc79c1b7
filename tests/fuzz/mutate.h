#pragma once
// tests/fuzz/mutate.h: random changes of bytes and of numbers, for custom mutators.

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "fuzz/fuzz.h"
#include "support/gaussian.h"

namespace tqcache::fuzz {

// Choices that depend on a seed alone, so that every mutation can be had again.
class Chance {
 public:
  explicit Chance(std::uint64_t seed) : random_(seed) {}

  std::uint64_t bits() { return random_.next(); }
  std::size_t below(std::size_t bound) { return static_cast<std::size_t>(random_.below(bound)); }
  bool one_in(std::size_t n) { return below(n) == 0; }
  template <class T, std::size_t kCount>
  const T& one_of(const T (&values)[kCount]) {
    return values[below(kCount)];
  }

 private:
  test::SplitMix64 random_;
};

// Where arithmetic without checks trips.
inline constexpr std::uint64_t kEdges[] = {0,
                                           1,
                                           2,
                                           63,
                                           64,
                                           255,
                                           256,
                                           257,
                                           0x7fff,
                                           0xffff,
                                           0x7fffffff,
                                           0x80000000,
                                           0xffffffff,
                                           0x100000000,
                                           std::uint64_t{1} << 40,
                                           std::uint64_t{1} << 62,
                                           std::uint64_t{1} << 63,
                                           ~std::uint64_t{0}};

// A number near the old one, on an edge, or any.
template <class T>
void change_number(Chance& chance, T& value) {
  static_assert(std::is_integral_v<T>);
  const auto old = static_cast<std::uint64_t>(value);
  switch (chance.below(5)) {
    case 0:
      value = static_cast<T>(old + 1);
      return;
    case 1:
      value = static_cast<T>(old - 1);
      return;
    case 2:
      value = static_cast<T>(chance.one_of(kEdges));
      return;
    case 3:
      value = static_cast<T>(old ^ (std::uint64_t{1} << chance.below(8 * sizeof(T))));
      return;
    default:
      value = static_cast<T>(chance.below(300));
  }
}

inline void change_number(Chance& chance, float& value) {
  constexpr float kFloats[] = {0.0f,
                               -0.0f,
                               1.0f,
                               -1.0f,
                               0x1p-149f,
                               3e38f,
                               std::numeric_limits<float>::infinity(),
                               std::numeric_limits<float>::quiet_NaN()};
  value = chance.one_in(2) ? chance.one_of(kFloats)
                           : static_cast<float>(chance.below(2000)) / 1000.0f - 1.0f;
}

inline void change_number(Chance& chance, double& value) {
  auto narrow = static_cast<float>(value);
  change_number(chance, narrow);
  value = chance.one_in(4) ? value * 1.5 : narrow;
}

template <class Enum>
requires std::is_enum_v<Enum>
void change_enum(Chance& chance, Enum& value, std::size_t count) {
  value = static_cast<Enum>(chance.below(count));
}

inline void change_text(Chance& chance, std::string& text) {
  if (text.empty() || chance.one_in(3)) {
    text.insert(chance.below(text.size() + 1), 1, static_cast<char>(chance.bits()));
  } else if (chance.one_in(2)) {
    text.erase(chance.below(text.size()), 1);
  } else {
    text[chance.below(text.size())] = static_cast<char>(chance.bits());
  }
}

// Takes an element out, doubles one, or swaps two. Does nothing to an empty list.
template <class T>
void change_order(Chance& chance, std::vector<T>& list, std::size_t most) {
  if (list.empty()) return;
  const std::size_t i = chance.below(list.size());
  const auto at = list.begin() + static_cast<std::ptrdiff_t>(i);
  switch (chance.below(3)) {
    case 0:
      list.erase(at);
      return;
    case 1: {
      if (list.size() >= most) return;
      T copy = *at;
      list.insert(at, std::move(copy));
      return;
    }
    default:
      std::swap(list[i], list[chance.below(list.size())]);
  }
}

// libFuzzer's own mutations of a part of some bytes, which may change its size.
inline void change_bytes(Bytes& bytes, std::size_t begin, std::size_t end, std::size_t max_growth) {
  Bytes part(bytes.begin() + static_cast<std::ptrdiff_t>(begin),
             bytes.begin() + static_cast<std::ptrdiff_t>(end));
  const std::size_t old_size = part.size();
  part.resize(old_size + max_growth + 1);
  const std::size_t new_size = LLVMFuzzerMutate(reinterpret_cast<std::uint8_t*>(part.data()),
                                                old_size, old_size + max_growth);
  part.resize(new_size);
  bytes.erase(bytes.begin() + static_cast<std::ptrdiff_t>(begin),
              bytes.begin() + static_cast<std::ptrdiff_t>(end));
  bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(begin), part.begin(), part.end());
}

// The end of a custom mutator: hands the bytes back, or leaves libFuzzer's own mutation of the old
// ones where they have become too many.
inline std::size_t give_back(const Bytes& bytes, std::uint8_t* data, std::size_t size,
                             std::size_t max_size) {
  if (bytes.size() > max_size || bytes.empty()) return LLVMFuzzerMutate(data, size, max_size);
  std::memcpy(data, bytes.data(), bytes.size());
  return bytes.size();
}

}  // namespace tqcache::fuzz
