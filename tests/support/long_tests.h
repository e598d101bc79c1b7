#pragma once
// support/long_tests.h: whether tests take all of their cases, as tools/check.sh --long asks for,
// or some of them, as every other run does.

#include <cstddef>
#include <cstdlib>

namespace tqcache::test {

inline bool runs_long_tests() { return std::getenv("TQCACHE_LONG_TESTS") != nullptr; }

// Whether case `index` of `n` is taken: every one, or every `step`th, the first and the last.
inline bool takes_case(std::size_t index, std::size_t n, std::size_t step) {
  return runs_long_tests() || index % step == 0 || index + 1 == n;
}

// From one flipped bit of a file to the next: by fives one or two bits of every byte flip, and over
// eight bytes every one of their bits.
inline std::size_t bit_step() { return runs_long_tests() ? 1 : 5; }

// Cases that a processor of its own takes all of: an emulator (tests/neon) takes some.
inline bool takes_emulated_case([[maybe_unused]] std::size_t index,
                                [[maybe_unused]] std::size_t step) {
#ifdef TQCACHE_TEST_EMULATED
  return runs_long_tests() || index % step == 0;
#else
  return true;
#endif
}

}  // namespace tqcache::test
