// The random matrices of dense maps, and the numbers they are drawn from (docs/reference/codec.md
// §2).

#include "tqcache/codec/dense_matrix.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <vector>

#include "support/gaussian.h"
#include "tqcache/codec/random.h"
#include "tqcache/codec_spec.h"

namespace tqcache::codec {
namespace dense_matrix_test {

using test::SplitMix64;

std::vector<double> normals(std::size_t count, std::uint64_t seed) {
  NormalSource source(seed);
  std::vector<double> values(count);
  for (double& value : values) value = source.next();
  return values;
}

TEST(PortableLog, IsThatOfLibmToTwoUnitsInTheLastPlace) {
  SplitMix64 random(1);
  for (int i = 0; i < 100000; ++i) {
    const int exponent = static_cast<int>(random.below(120)) - 110;
    const double s = std::ldexp(0.5 + 0.5 * random.uniform(), exponent);
    EXPECT_NEAR(portable_log(s), std::log(s), 4.5e-16 * std::abs(std::log(s))) << s;
  }
  EXPECT_EQ(portable_log(1.0), 0.0);
}

TEST(PortableLog, KeepsItsAccuracyNearOne) {
  for (const double away : {1e-3, 1e-6, 1e-9, 1e-12, 1e-15}) {
    for (const double s : {1.0 - away, 1.0 + away}) {
      EXPECT_NEAR(portable_log(s) / std::log(s), 1.0, 4.5e-16);
    }
  }
}

TEST(NormalSource, HasTheMomentsOfANormalNumber) {
  constexpr std::size_t kCount = 400000;
  const std::vector<double> values = normals(kCount, 3);
  double first = 0.0, second = 0.0, third = 0.0, fourth = 0.0, neighbors = 0.0;
  for (std::size_t i = 0; i < kCount; ++i) {
    const double x = values[i];
    first += x;
    second += x * x;
    third += x * x * x;
    fourth += x * x * x * x;
    neighbors += x * values[(i + 1) % kCount];
  }
  // Five standard errors: sqrt(1, 2, 15, 96, 1) / sqrt(count).
  const double unit = 5.0 / std::sqrt(double{kCount});
  EXPECT_NEAR(first / kCount, 0.0, unit);
  EXPECT_NEAR(second / kCount, 1.0, unit * std::sqrt(2.0));
  EXPECT_NEAR(third / kCount, 0.0, unit * std::sqrt(15.0));
  EXPECT_NEAR(fourth / kCount, 3.0, unit * std::sqrt(96.0));
  EXPECT_NEAR(neighbors / kCount, 0.0, unit);
}

// The document's rule once more, with libm's logarithm.
TEST(NormalSource, IsThePolarMethodOverSplitmix64) {
  SplitMix64 random(kDefaultSeed);
  NormalSource source(kDefaultSeed);
  const auto coordinate = [&random] {
    return static_cast<double>(random.next() >> 11) / 4503599627370496.0 - 1.0;
  };
  for (int i = 0; i < 10000; ++i) {
    double u = 1.0, v = 1.0;
    while (u * u + v * v >= 1.0) {
      u = coordinate();
      v = coordinate();
    }
    const double s = u * u + v * v;
    const double factor = std::sqrt(-2.0 * std::log(s) / s);
    EXPECT_NEAR(source.next(), u * factor, 1e-14);
    EXPECT_NEAR(source.next(), v * factor, 1e-14);
  }
}

TEST(GaussianMatrix, HoldsTheNormalNumbersRowByRow) {
  const AlignedFloats matrix = gaussian_matrix(20, 8);
  const std::vector<double> values = normals(400, 8);
  for (std::size_t i = 0; i < 400; ++i) EXPECT_EQ(matrix[i], static_cast<float>(values[i]));
}

// The orthogonal factor of a matrix a (n x n, by rows) with R's diagonal positive, by Householder's
// reflections: another way to the same matrix.
std::vector<double> householder_q(std::vector<double> a, std::size_t n) {
  std::vector<double> q(n * n, 0.0);  // the product of the reflections so far
  for (std::size_t i = 0; i < n; ++i) q[i * n + i] = 1.0;
  std::vector<double> signs(n);
  for (std::size_t k = 0; k < n; ++k) {
    double squares = 0.0;
    for (std::size_t i = k; i < n; ++i) squares += a[i * n + k] * a[i * n + k];
    const double length = std::sqrt(squares);
    signs[k] = a[k * n + k] > 0.0 ? -1.0 : 1.0;  // of R's diagonal: away from a[k][k]
    std::vector<double> v(n, 0.0);
    for (std::size_t i = k; i < n; ++i) v[i] = a[i * n + k];
    v[k] -= signs[k] * length;
    double size = 0.0;
    for (const double value : v) size += value * value;
    for (std::size_t j = 0; j < n; ++j) {
      double share = 0.0, share_q = 0.0;
      for (std::size_t i = k; i < n; ++i) {
        share += v[i] * a[i * n + j];
        share_q += q[j * n + i] * v[i];
      }
      for (std::size_t i = k; i < n; ++i) {
        a[i * n + j] -= 2.0 / size * share * v[i];
        q[j * n + i] -= 2.0 / size * share_q * v[i];
      }
    }
  }
  for (std::size_t i = 0; i < n * n; ++i) q[i] *= signs[i % n];
  return q;
}

TEST(OrthogonalMatrix, IsTheQOfTheNormalNumbersByHouseholderToo) {
  for (const std::size_t n : {8u, 33u, 128u}) {
    const std::vector<double> expected = householder_q(normals(n * n, 17), n);
    const AlignedFloats matrix = orthogonal_matrix(n, 17);
    for (std::size_t i = 0; i < n * n; ++i) ASSERT_NEAR(matrix[i], expected[i], 5e-8) << n;
  }
}

// Of the largest one too, whose condition number is the worst; pairs of every 37th column.
TEST(OrthogonalMatrix, HasOrthogonalColumns) {
  for (const std::size_t n : {8u, 80u, 128u, 576u, 1024u}) {
    const AlignedFloats matrix = orthogonal_matrix(n, kDefaultSeed);
    for (std::size_t i = 0; i < n; i += 37) {
      for (std::size_t j = 0; j <= i; ++j) {
        double product = 0.0;
        for (std::size_t k = 0; k < n; ++k) {
          product += double{matrix[k * n + i]} * double{matrix[k * n + j]};
        }
        ASSERT_NEAR(product, i == j ? 1.0 : 0.0, 1e-7) << n;
      }
    }
  }
}

std::uint32_t bits_of(float value) { return std::bit_cast<std::uint32_t>(value); }

// The expected bits are those of a second implementation, in Python, too. A digest of all bits, and
// a few entries to find out how a matrix that differs does so.
std::uint64_t digest_of(const AlignedFloats& matrix) {
  std::uint64_t digest = 0xcbf29ce484222325;
  for (const float value : matrix) digest = (digest ^ bits_of(value)) * 0x100000001b3;
  return digest;
}

TEST(GaussianMatrix, HasTheSameBitsEverywhere) {
  const AlignedFloats matrix = gaussian_matrix(128, kDefaultSeed);
  const std::array<std::uint32_t, 4> first = {bits_of(matrix[0]), bits_of(matrix[1]),
                                              bits_of(matrix[2]), bits_of(matrix[3])};
  EXPECT_EQ(first, (std::array<std::uint32_t, 4>{0xbef5d2e6, 0x3c6864ec, 0xbf504a8b, 0x3f3e797f}));
  EXPECT_EQ(bits_of(matrix.back()), 0xbf437db8u);
  EXPECT_EQ(digest_of(matrix), 0x9248ae3445b3081cu);
}

TEST(OrthogonalMatrix, HasTheSameBitsEverywhere) {
  const AlignedFloats matrix = orthogonal_matrix(128, kDefaultSeed);
  const std::array<std::uint32_t, 4> first = {bits_of(matrix[0]), bits_of(matrix[1]),
                                              bits_of(matrix[2]), bits_of(matrix[3])};
  EXPECT_EQ(first, (std::array<std::uint32_t, 4>{0xbd312e35, 0x3a1e1465, 0xbd926760, 0x3da47a08}));
  EXPECT_EQ(bits_of(matrix.back()), 0xbdda0be4u);
  EXPECT_EQ(digest_of(matrix), 0xa37ce48bad422c3bu);
  EXPECT_EQ(digest_of(orthogonal_matrix(100, 5)), 0xf16c162d3a9a4c17u);
}

TEST(OrthogonalColumns, AreWhatIsLeftOfEachByThoseBefore) {
  const std::vector<double> matrix = {3, 1, 4, 1};
  const auto q = orthogonal_columns(2, matrix, 1e-3);
  ASSERT_TRUE(q);
  // (3, 4) / 5, and of (1, 1) what is not along it: (4, -3) / 25.
  const std::vector<float> expected = {0.6f, 0.8f, 0.8f, -0.6f};
  for (std::size_t i = 0; i < 4; ++i) EXPECT_NEAR((*q)[i], expected[i], 1e-7f);
}

TEST(OrthogonalColumns, AreNoneWhereLittleIsLeft) {
  EXPECT_TRUE(orthogonal_columns(2, std::vector<double>{1, 1, 0, 1.1e-3}, 1e-3));
  EXPECT_FALSE(orthogonal_columns(2, std::vector<double>{1, 1, 0, 0.9e-3}, 1e-3));
  EXPECT_FALSE(orthogonal_columns(2, std::vector<double>{0, 1, 0, 1}, 1e-3));
}

}  // namespace dense_matrix_test
}  // namespace tqcache::codec
