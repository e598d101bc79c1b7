// Eigenvalues and eigenvectors (docs/reference/codec.md §10).

#include "tqcache/codec/trellis/symmetric_eigen.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numbers>
#include <vector>

#include "support/gaussian.h"
#include "support/matchers.h"

namespace tqcache::codec {
namespace symmetric_eigen_test {

using test::SplitMix64;
using Matrix = std::vector<double>;

Matrix random_symmetric(std::size_t n, std::uint64_t seed) {
  SplitMix64 random(seed);
  Matrix a(n * n);
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j <= i; ++j) a[i * n + j] = a[j * n + i] = 2.0 * random.uniform() - 1.0;
  }
  return a;
}

// a = sum of values[k] times the outer product of a vector with itself; the vectors are those of
// the discrete cosine transform.
Matrix with_values(const std::vector<double>& values) {
  const std::size_t n = values.size();
  Matrix a(n * n, 0.0);
  for (std::size_t k = 0; k < n; ++k) {
    std::vector<double> v(n);
    for (std::size_t i = 0; i < n; ++i) {
      const double angle =
          std::numbers::pi * (static_cast<double>(i) + 0.5) * static_cast<double>(k);
      const double size = std::sqrt((k == 0 ? 1.0 : 2.0) / static_cast<double>(n));
      v[i] = size * std::cos(angle / static_cast<double>(n));
    }
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t j = 0; j < n; ++j) a[i * n + j] += values[k] * v[i] * v[j];
    }
  }
  return a;
}

double largest(const Matrix& a) {
  double most = 0.0;
  for (const double entry : a) most = std::max(most, std::abs(entry));
  return most;
}

// A v = value v and orthogonality to rounding errors, order and signs as promised.
void expect_eigen(const Matrix& a, std::size_t n, const SymmetricEigen& e) {
  ASSERT_EQ(e.values.size(), n);
  ASSERT_EQ(e.vectors.size(), n * n);
  EXPECT_TRUE(std::is_sorted(e.values.rbegin(), e.values.rend()));
  const double bound = 1e-15 * static_cast<double>(n + 10);
  const double residual_bound = bound * static_cast<double>(n) * largest(a);
  for (std::size_t k = 0; k < n; ++k) {
    const double* const v = e.vectors.data() + k * n;
    for (std::size_t i = 0; i < n; ++i) {
      double sum = 0.0;
      for (std::size_t j = 0; j < n; ++j) sum += a[i * n + j] * v[j];
      ASSERT_NEAR(sum, e.values[k] * v[i], residual_bound) << k;
    }
    for (std::size_t other = 0; other <= k; ++other) {
      double product = 0.0;
      for (std::size_t j = 0; j < n; ++j) product += v[j] * e.vectors[other * n + j];
      ASSERT_NEAR(product, other == k ? 1.0 : 0.0, bound) << k << ", " << other;
    }
    const double* const most =
        std::max_element(v, v + n, [](double x, double y) { return std::abs(x) < std::abs(y); });
    EXPECT_GT(*most, 0.0) << k;
  }
}

TEST(SymmetricEigen, SolvesRandomMatrices) {
  for (const std::size_t n : {1u, 2u, 3u, 4u, 17u, 64u, 128u, 200u}) {
    const Matrix a = random_symmetric(n, n);
    expect_eigen(a, n, symmetric_eigen(n, a).value());
  }
}

TEST(SymmetricEigen, FindsValuesThatAreKnown) {
  std::vector<double> values;
  for (int k = 0; k < 96; ++k) values.push_back(100.0 * std::pow(k + 1.0, -1.5));
  const Matrix a = with_values(values);
  const SymmetricEigen e = symmetric_eigen(96, a).value();
  expect_eigen(a, 96, e);
  for (std::size_t k = 0; k < 96; ++k) EXPECT_NEAR(e.values[k], values[k], 1e-12) << k;
}

TEST(SymmetricEigen, SolvesMatricesWithEqualValues) {
  std::vector<double> values(48, 2.0);
  for (std::size_t k = 0; k < 10; ++k) values[k] = -3.0;
  values[20] = 7.0;
  const Matrix a = with_values(values);
  const SymmetricEigen e = symmetric_eigen(48, a).value();
  expect_eigen(a, 48, e);
  std::sort(values.rbegin(), values.rend());
  for (std::size_t k = 0; k < 48; ++k) EXPECT_NEAR(e.values[k], values[k], 1e-13);
}

TEST(SymmetricEigen, LeavesDiagonalMatricesAsTheyAre) {
  const std::vector<double> diagonal = {3.0, -1.0, 8.0, 3.0, 0.0};
  Matrix a(25, 0.0);
  for (std::size_t i = 0; i < 5; ++i) a[i * 6] = diagonal[i];
  const SymmetricEigen e = symmetric_eigen(5, a).value();
  EXPECT_EQ(e.values, (std::vector<double>{8.0, 3.0, 3.0, 0.0, -1.0}));
  const std::size_t places[] = {2, 0, 3, 4, 1};  // equal ones in their order
  for (std::size_t k = 0; k < 5; ++k) {
    for (std::size_t j = 0; j < 5; ++j) EXPECT_EQ(e.vectors[k * 5 + j], j == places[k] ? 1.0 : 0.0);
  }
}

TEST(SymmetricEigen, SolvesMatricesOfZerosAndOfOneDirection) {
  const SymmetricEigen zeros = symmetric_eigen(20, Matrix(400, 0.0)).value();
  EXPECT_EQ(zeros.values, std::vector<double>(20, 0.0));
  expect_eigen(Matrix(400, 0.0), 20, zeros);
  const Matrix ones(400, 1.0);
  const SymmetricEigen e = symmetric_eigen(20, ones).value();
  expect_eigen(ones, 20, e);
  EXPECT_NEAR(e.values[0], 20.0, 1e-13);
  EXPECT_NEAR(e.values[1], 0.0, 1e-14);
}

TEST(SymmetricEigen, SolvesMatricesWithoutADiagonal) {
  Matrix a(100, 0.0);
  for (std::size_t i = 0; i + 1 < 10; ++i) a[i * 10 + i + 1] = a[(i + 1) * 10 + i] = 1.0;
  const SymmetricEigen e = symmetric_eigen(10, a).value();
  expect_eigen(a, 10, e);
  for (std::size_t k = 0; k < 10; ++k) {
    EXPECT_NEAR(e.values[k], 2.0 * std::cos(std::numbers::pi * static_cast<double>(k + 1) / 11.0),
                1e-14);
  }
}

TEST(SymmetricEigen, DoesNotMindTheSizeOfEntries) {
  const Matrix a = random_symmetric(24, 9);
  const SymmetricEigen expected = symmetric_eigen(24, a).value();
  for (const int exponent : {-900, -300, 300, 900}) {
    Matrix scaled = a;
    for (double& entry : scaled) entry = std::ldexp(entry, exponent);
    const SymmetricEigen e = symmetric_eigen(24, scaled).value();
    EXPECT_EQ(e.vectors, expected.vectors) << exponent;
    for (std::size_t k = 0; k < 24; ++k) {
      EXPECT_EQ(e.values[k], std::ldexp(expected.values[k], exponent));
    }
  }
}

// Entries of all sizes at once, down to those whose squares are nothing.
TEST(SymmetricEigen, SolvesMatricesWithEntriesFarApart) {
  for (const double ratio : {1e-3, 1e-12, 1e-40, 1e-160}) {
    Matrix a = random_symmetric(12, 10);
    for (std::size_t i = 0; i < 12; ++i) {
      for (std::size_t j = 0; j < 12; ++j)
        a[i * 12 + j] *= std::pow(ratio, static_cast<double>(std::max(i, j)) / 11.0);
    }
    expect_eigen(a, 12, symmetric_eigen(12, a).value());
  }
}

TEST(SymmetricEigen, LooksOnlyAtTheLowerTriangle) {
  Matrix a = random_symmetric(16, 11);
  const SymmetricEigen expected = symmetric_eigen(16, a).value();
  for (std::size_t i = 0; i < 16; ++i) {
    for (std::size_t j = i + 1; j < 16; ++j) a[i * 16 + j] = std::nan("");
  }
  const SymmetricEigen e = symmetric_eigen(16, a).value();
  EXPECT_EQ(e.values, expected.values);
  EXPECT_EQ(e.vectors, expected.vectors);
}

TEST(SymmetricEigen, RefusesEntriesThatAreNotFiniteOrTooLarge) {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double bad : {std::nan(""), infinity, -infinity, 1e301}) {
    Matrix a = random_symmetric(8, 12);
    a[5 * 8 + 3] = bad;
    EXPECT_THAT(
        symmetric_eigen(8, a),
        test::FailsWith(bad == 1e301 ? ErrorCode::kUnsupported : ErrorCode::kCorrupt,
                        bad == 1e301 ? "entry 5, 3: beyond 1e300" : "entry 5, 3: not finite"));
  }
}

TEST(SymmetricEigen, RefusesOtherShapes) {
  const Matrix a(9);
  for (const std::size_t n : {std::size_t{0}, std::size_t{2}, std::size_t{4}, std::size_t{1025},
                              std::numeric_limits<std::size_t>::max()}) {
    const auto result = symmetric_eigen(n, a);
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.error().code, ErrorCode::kInvalidArgument);
  }
}

TEST(SymmetricEigen, HasTheSameBitsEverywhere) {
  const SymmetricEigen e = symmetric_eigen(100, random_symmetric(100, 13)).value();
  std::uint64_t digest = 0xcbf29ce484222325;
  const auto add = [&digest](double value) {
    digest = (digest ^ std::bit_cast<std::uint64_t>(value)) * 0x100000001b3;
  };
  for (const double value : e.values) add(value);
  for (const double value : e.vectors) add(value);
  EXPECT_EQ(digest, 0xa424ad26d0d4152u);
}

}  // namespace symmetric_eigen_test
}  // namespace tqcache::codec
