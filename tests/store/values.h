#pragma once
// Values that say themselves whether they are whole and the right ones.

#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <string_view>

#include "tqcache/bytes.h"
#include "tqcache/hash.h"

namespace tqcache::test {

inline Bytes value_of(std::string_view key, std::size_t size) {
  std::mt19937_64 random(xxh3_64(as_bytes(key)) ^ size);
  Bytes value((size + 7) / 8 * 8);
  for (std::size_t i = 0; i < value.size(); i += 8) {
    const std::uint64_t word = random();
    std::memcpy(value.data() + i, &word, 8);
  }
  value.resize(size);
  return value;
}

// A size for each key, so that values of two keys differ in length, too.
inline std::size_t size_of_value(std::string_view key, std::size_t largest) {
  return xxh3_64(as_bytes(key)) % (largest + 1);
}

}  // namespace tqcache::test
