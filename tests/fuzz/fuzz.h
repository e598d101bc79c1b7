#pragma once
// tests/fuzz/fuzz.h: what fuzz targets share. docs/develop/fuzzing.md tells what there is and how
// to run it.
//
// A target is one file with LLVMFuzzerTestOneInput(), which takes any bytes, and perhaps
// LLVMFuzzerCustomMutator(), which changes them in ways that get behind checksums. libFuzzer calls
// them; in an ordinary build replay.cpp does.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string_view>
#include <utility>

#include "tqcache/bytes.h"
#include "tqcache/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t max_size);

namespace tqcache::fuzz {

// A rule that holds for every input. That it does not is a find: the process ends.
inline void require(bool holds, std::string_view rule) {
  if (holds) return;
  std::fprintf(stderr, "broken rule: %.*s\n", static_cast<int>(rule.size()), rule.data());
  std::abort();
}

inline void require(const Result<void>& result, std::string_view rule) {
  if (result) return;
  std::fprintf(stderr, "%s\n", result.error().message.c_str());
  require(false, rule);
}

template <class T>
T must(Result<T> result, std::string_view rule) {
  if (!result) std::fprintf(stderr, "%s\n", result.error().message.c_str());
  require(result.ok(), rule);
  return std::move(result).value();
}

inline ByteView view_of(const std::uint8_t* data, std::size_t size) {
  return std::as_bytes(std::span(data, size));
}

// An input as a row of choices: each takes bytes from the front, and zeros once there are no more.
class Input {
 public:
  explicit Input(ByteView bytes) : rest_(bytes) {}

  template <class T>
  T take() {
    static_assert(std::is_arithmetic_v<T> && !std::is_same_v<T, bool>);
    T value{};
    const std::size_t n = std::min(sizeof(T), rest_.size());
    if (n > 0) std::memcpy(&value, rest_.data(), n);
    rest_ = rest_.subspan(n);
    return value;
  }
  // Requires: 1 <= bound <= 65536.
  std::size_t below(std::size_t bound) {
    return (bound <= 256 ? take<std::uint8_t>() : take<std::uint16_t>()) % bound;
  }
  bool flag() { return (take<std::uint8_t>() & 1) != 0; }
  template <class T, std::size_t kCount>
  T one_of(const T (&values)[kCount]) {
    return values[below(kCount)];
  }

  bool empty() const { return rest_.empty(); }
  ByteView rest() const { return rest_; }

 private:
  ByteView rest_;
};

}  // namespace tqcache::fuzz
