#include "tqcache/eval/principal_directions.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "support/small_profile.h"

namespace tqcache::test {
namespace principal_directions_test {

constexpr std::size_t kDim = 90, kVectors = 700;

// Vectors whose deviations fall by a fifth from one direction to the next; the directions are those
// of a Householder reflection.
std::vector<float> some_vectors() {
  EvenNumbers numbers(6);
  std::vector<double> mirror(kDim);
  double squares = 0;
  for (double& each : mirror) squares += std::pow(each = double{numbers.next()}, 2);
  std::vector<float> vectors(kVectors * kDim);
  for (std::size_t t = 0; t < kVectors; ++t) {
    std::vector<double> x(kDim);
    double along = 0;
    for (std::size_t i = 0; i < kDim; ++i) {
      x[i] = double{numbers.next()} * std::pow(0.8, static_cast<double>(i));
      along += x[i] * mirror[i];
    }
    for (std::size_t i = 0; i < kDim; ++i) {
      vectors[t * kDim + i] = static_cast<float>(x[i] - 2 * along / squares * mirror[i]);
    }
  }
  return vectors;
}

TEST(PrincipalDirections, AreThoseOfTheWholeCovariance) {
  const std::vector<float> vectors = some_vectors();
  const auto load = [&](std::size_t i, std::span<float> out) {
    std::copy_n(vectors.data() + i * kDim, kDim, out.begin());
  };
  constexpr std::size_t kWanted = 10;
  const auto found = must(eval::principal_directions(kDim, kVectors, load, kWanted));
  ASSERT_EQ(found.values.size(), kWanted);
  ASSERT_EQ(found.vectors.size(), kWanted * kDim);

  std::vector<double> covariance(kDim * kDim);
  for (std::size_t t = 0; t < kVectors; ++t) {
    for (std::size_t i = 0; i < kDim; ++i) {
      for (std::size_t j = 0; j <= i; ++j) {
        covariance[i * kDim + j] += double{vectors[t * kDim + i]} * double{vectors[t * kDim + j]};
      }
    }
  }
  const auto expected = must(codec::symmetric_eigen(kDim, covariance));
  for (std::size_t i = 0; i < kWanted; ++i) {
    EXPECT_NEAR(found.values[i], expected.values[i], 1e-4 * expected.values[i]) << i;
    double cosine = 0;
    for (std::size_t c = 0; c < kDim; ++c) {
      cosine += found.vectors[i * kDim + c] * expected.vectors[i * kDim + c];
    }
    EXPECT_NEAR(std::abs(cosine), 1, 1e-4) << i;
  }
}

TEST(PrincipalDirections, BeyondTheRankAreZero) {
  const std::vector<float> vectors = some_vectors();
  const auto load = [&](std::size_t i, std::span<float> out) {
    std::copy_n(vectors.data() + i * kDim, kDim, out.begin());
  };
  const auto found = must(eval::principal_directions(kDim, 2, load, 4));
  for (std::size_t i = 0; i < 4; ++i) {
    double squares = 0;
    for (std::size_t c = 0; c < kDim; ++c) squares += std::pow(found.vectors[i * kDim + c], 2);
    EXPECT_NEAR(squares, i < 2 ? 1 : 0, 1e-6) << i;
    if (i < 2) continue;
    EXPECT_NEAR(found.values[i], 0, 1e-6 * found.values[0]) << i;
  }
}

}  // namespace principal_directions_test
}  // namespace tqcache::test
