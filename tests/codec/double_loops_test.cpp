// Long loops of f64: every CPU gives the bits of the plain ones.

#include <gtest/gtest.h>

#include <vector>

#include "support/gaussian.h"
#include "tqcache/codec/kernels/kernels.h"

namespace tqcache::codec {
namespace double_loops_test {

using Doubles = std::vector<double>;

std::vector<const DoubleLoops*> all_loops() {
  std::vector<const DoubleLoops*> all;
  for (const Kernels* kernels : all_kernels()) all.push_back(&kernels->doubles);
  return all;
}

Doubles drawn(std::size_t n, std::uint64_t seed) {
  test::GaussianSource source(seed);
  Doubles values(n);
  for (double& value : values) value = source.next();
  return values;
}

constexpr double kA = 0.7310585786300049, kB = -1.3169578969248166;

TEST(DoubleLoops, AddAMultiple) {
  for (const std::size_t n : {0u, 1u, 7u, 8u, 29u}) {
    const Doubles from = drawn(n, 1), to = drawn(n, 2);
    Doubles expected = to;
    for (std::size_t j = 0; j < n; ++j) expected[j] += kA * from[j];
    for (const DoubleLoops* loops : all_loops()) {
      Doubles out = to;
      loops->add_multiple(from.data(), kA, n, out.data());
      EXPECT_EQ(out, expected) << n;
    }
  }
}

TEST(DoubleLoops, SubtractTwoMultiples) {
  for (const std::size_t n : {0u, 1u, 7u, 8u, 29u}) {
    const Doubles v = drawn(n, 3), w = drawn(n, 4), to = drawn(n, 5);
    Doubles expected = to;
    for (std::size_t j = 0; j < n; ++j) {
      const double first = kA * v[j], second = kB * w[j];
      expected[j] -= first + second;
    }
    for (const DoubleLoops* loops : all_loops()) {
      Doubles out = to;
      loops->subtract_two(kA, v.data(), kB, w.data(), n, out.data());
      EXPECT_EQ(out, expected) << n;
    }
  }
}

TEST(DoubleLoops, TurnTwoRows) {
  for (const std::size_t n : {0u, 1u, 7u, 8u, 29u}) {
    const Doubles a = drawn(n, 6), b = drawn(n, 7);
    Doubles first(n), second(n);
    for (std::size_t j = 0; j < n; ++j) {
      const double ac = a[j] * kA, bs = b[j] * kB, as = a[j] * kB, bc = b[j] * kA;
      first[j] = ac - bs;
      second[j] = as + bc;
    }
    for (const DoubleLoops* loops : all_loops()) {
      Doubles x = a, y = b;
      loops->rotate(kA, kB, n, x.data(), y.data());
      EXPECT_EQ(x, first) << n;
      EXPECT_EQ(y, second) << n;
    }
  }
}

}  // namespace double_loops_test
}  // namespace tqcache::codec
