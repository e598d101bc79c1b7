// The codebook is the exact Lloyd-Max solution for the Beta marginal (docs/reference/codec.md §3).

#include "tqcache/codec/codebook.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "tqcache/codec_spec.h"

namespace tqcache::codec {
namespace codebook_test {

// 8 to 1024 in steps that meet every remainder, and both ends.
std::vector<int> some_head_dims() {
  std::vector<int> dims = {9, 33, 64, 80, 96, 128, 256, 576, kMaxHeadDim};
  for (int head_dim = kMinPartDim; head_dim < kMaxHeadDim; head_dim += 53) dims.push_back(head_dim);
  return dims;
}

struct Table {
  int head_dim;
  int bits;
  std::vector<double> positive;  // centroids * sqrt(head_dim)
  double distortion;
};

// Worked out apart from this code, from the same density.
const Table kTables[] = {
    {64, 1, {0.801007}, 0.358387},
    {64, 2, {0.452119, 1.499975}, 0.114526},
    {64, 3, {0.243753, 0.750658, 1.329343, 2.111311}, 0.033391},
    {64,
     4,
     {0.127352, 0.384718, 0.650494, 0.931894, 1.239404, 1.590849, 2.023310, 2.646370},
     0.009132},
    {128, 1, {0.799444}, 0.360889},
    {128, 2, {0.452453, 1.505193}, 0.116000},
    {128, 3, {0.244425, 0.753330, 1.336599, 2.131471}, 0.033966},
    {128,
     4,
     {0.127873, 0.386381, 0.653619, 0.937097, 1.247770, 1.604343, 2.045925, 2.688859},
     0.009315},
    {256, 1, {0.798664}, 0.362136},
    {256, 2, {0.452618, 1.507805}, 0.116740},
    {256, 3, {0.244760, 0.754667, 1.340247, 2.141669}, 0.034256},
    {256,
     4,
     {0.128134, 0.387214, 0.655187, 0.939714, 1.251989, 1.611168, 2.057411, 2.710567},
     0.009408},
};

TEST(Codebook, CentroidsAreTheKnownOnes) {
  for (const Table& table : kTables) {
    const std::vector<float> centroids = lloyd_max_centroids(table.head_dim, table.bits);
    ASSERT_EQ(centroids.size(), 2 * table.positive.size());
    for (std::size_t i = 0; i < table.positive.size(); ++i) {
      EXPECT_NEAR(centroids[table.positive.size() + i] * std::sqrt(table.head_dim),
                  table.positive[i], 1e-5)
          << "head_dim " << table.head_dim << ", " << table.bits << " bits";
    }
  }
}

TEST(Codebook, DistortionIsTheKnownOne) {
  for (const Table& table : kTables) {
    const double distortion =
        expected_distortion(table.head_dim, lloyd_max_centroids(table.head_dim, table.bits));
    EXPECT_NEAR(distortion / table.distortion, 1.0, 1e-3)
        << "head_dim " << table.head_dim << ", " << table.bits << " bits";
  }
}

// First, middle and last positive centroid, solved with 30 digits (mpmath; the mass of a cell
// from the hypergeometric function).
TEST(Codebook, IsSolvedToTwelveDigits) {
  struct Exact {
    int head_dim, bits;
    double first, middle, last;
  };
  constexpr Exact kExact[] = {
      {32, 8, 0.0014593588062873053, 0.20069269112210872, 0.68797450832548594},
      {128, 8, 0.00074228718329639206, 0.10285762154663626, 0.38922954071576169},
      {512, 8, 0.00037273910910692691, 0.05175193159983192, 0.20117291411642071},
      {33, 7, 0.0028666483298657637, 0.1988244592944027, 0.63537176816956263},
      {80, 5, 0.007309354001290941, 0.13386160005225094, 0.3514604442141704},
  };
  for (const Exact& exact : kExact) {
    const std::vector<double> solved = solve_lloyd_max(exact.head_dim, exact.bits);
    EXPECT_NEAR(solved.front(), exact.first, 1e-12) << exact.head_dim;
    EXPECT_NEAR(solved[solved.size() / 2], exact.middle, 1e-12) << exact.head_dim;
    EXPECT_NEAR(solved.back(), exact.last, 1e-12) << exact.head_dim;
  }
}

// The mean of f(x) = (1 - x^2)^p over a cell, by other means than the solver's: the first moment
// in closed form, the mass by Simpson's rule. Beyond 12 deviations lies less than 1e-30 of it.
double mean_of_cell(double low, double high, double p) {
  const auto density = [p](double x) { return std::pow(1.0 - x * x, p); };
  constexpr int kHalves = 2000;
  const double step = (std::min(high, low + 12.0 / std::sqrt(2.0 * p)) - low) / (2 * kHalves);
  double mass = density(low) + density(low + step * 2 * kHalves);
  for (int i = 1; i < 2 * kHalves; ++i) mass += (i % 2 == 1 ? 4.0 : 2.0) * density(low + step * i);
  mass *= step / 3.0;
  const auto antiderivative = [p](double x) {
    return x < 1.0 ? -std::expm1((p + 1.0) * std::log1p(-x * x)) : 1.0;
  };
  return (antiderivative(high) - antiderivative(low)) / (2.0 * (p + 1.0)) / mass;
}

TEST(Codebook, EveryCentroidIsTheMeanOfItsCell) {
  for (const int head_dim : {32, 45, 128, 512}) {
    for (const int bits : {1, 2, 3, 4, 6, 8}) {
      const std::vector<double> c = solve_lloyd_max(head_dim, bits);
      for (std::size_t i = 0; i < c.size(); i += 1 + c.size() / 16) {
        const double low = i == 0 ? 0.0 : (c[i - 1] + c[i]) / 2.0;
        const double high = i + 1 == c.size() ? 1.0 : (c[i] + c[i + 1]) / 2.0;
        EXPECT_NEAR(mean_of_cell(low, high, (head_dim - 3) / 2.0), c[i], 1e-12)
            << "head_dim " << head_dim << ", " << bits << " bits, centroid " << i;
      }
    }
  }
}

// base^(halves / 2), not by std::pow: that of musl has only the digits of double on ARM.
long double half_power(long double base, int halves) {
  long double power = halves % 2 == 0 ? 1.0L : std::sqrt(base);
  for (int i = 0; i < halves / 2; ++i) power *= base;
  return power;
}

// The integral of (1 - t^2)^(k / 2) from 0 to x, in closed form: by parts, two powers at a time.
long double mass_to(long double x, int k) {
  long double sum = k % 2 == 0 ? x : std::asin(x);
  for (int power = k % 2 == 0 ? 2 : 1; power <= k; power += 2) {
    sum = (x * half_power(1.0L - x * x, power) + power * sum) / (power + 1);
  }
  return sum;
}

// The least head_dims, where the density falls to 0 slowly: an even one has a square root there.
TEST(Codebook, OfFewChannelsIsSolvedToTenDigitsToo) {
  for (int head_dim = kMinPartDim; head_dim < 33; ++head_dim) {
    for (const int bits : {1, 2, 4, 8}) {
      const std::vector<double> c = solve_lloyd_max(head_dim, bits);
      const int p = head_dim - 1;  // twice the exponent of the first moment
      long double low = 0.0L;
      for (std::size_t i = 0; i < c.size(); ++i) {
        const long double high = i + 1 == c.size() ? 1.0L : (0.0L + c[i] + c[i + 1]) / 2.0L;
        const long double first =
            (half_power(1.0L - low * low, p) - half_power(1.0L - high * high, p)) / p;
        const long double mass = mass_to(high, head_dim - 3) - mass_to(low, head_dim - 3);
        EXPECT_NEAR(static_cast<double>(first / mass), c[i], 1e-12)
            << "head_dim " << head_dim << ", " << bits << " bits, centroid " << i;
        low = high;
      }
    }
  }
}

TEST(Codebook, OfAResidualMakesInnerProductsRight) {
  const std::vector<float> gaussian = residual_centroids(128, TransformKind::kGaussian);
  const std::vector<float> orthogonal = residual_centroids(128, TransformKind::kDenseQr);
  ASSERT_EQ(gaussian.size(), 2u);
  ASSERT_EQ(orthogonal.size(), 2u);
  EXPECT_FLOAT_EQ(gaussian[1], 0.009791517f);  // sqrt(pi / 2) / 128
  // 1 / (128 E|y|), E|y| = .799444 / sqrt(128) being the centroid of 1 bit.
  EXPECT_NEAR(orthogonal[1], 1.0 / (std::sqrt(128.0) * 0.799444), 1e-7);
  EXPECT_EQ(gaussian[0], -gaussian[1]);
  EXPECT_EQ(orthogonal[0], -orthogonal[1]);
}

TEST(Codebook, OfEvenStepsGoesFromMinusOneToOne) {
  EXPECT_EQ(linear_centroids(1), (std::vector<float>{-1.0f, 1.0f}));
  EXPECT_EQ(linear_centroids(2), (std::vector<float>{-1.0f, -1.0f / 3.0f, 1.0f / 3.0f, 1.0f}));
  const std::vector<float> c = linear_centroids(8);
  ASSERT_EQ(c.size(), 256u);
  for (std::size_t i = 0; i < c.size(); ++i) {
    EXPECT_FLOAT_EQ(c[i], (2.0f * static_cast<float>(i) - 255.0f) / 255.0f);
    EXPECT_EQ(c[i], -c[255 - i]);
  }
}

TEST(Codebook, AscendsAndIsSymmetricForEveryHeadDimAndWidth) {
  for (const int head_dim : some_head_dims()) {
    for (int bits = kMinBits; bits <= kMaxBits; ++bits) {
      const std::vector<float> c = lloyd_max_centroids(head_dim, bits);
      ASSERT_EQ(c.size(), std::size_t{1} << bits);
      EXPECT_LT(c.back(), 1.0f);
      for (std::size_t i = 0; i < c.size(); ++i) EXPECT_EQ(c[i], -c[c.size() - 1 - i]);
      const auto not_ascending = [](float a, float b) { return !(a < b); };
      EXPECT_EQ(std::adjacent_find(c.begin(), c.end(), not_ascending), c.end())
          << "head_dim " << head_dim << ", " << bits << " bits";
    }
  }
}

// Moving any centroid either way makes the distortion larger.
TEST(Codebook, IsAMinimumOfTheDistortion) {
  for (const int bits : {1, 3, 4}) {
    std::vector<float> centroids = lloyd_max_centroids(128, bits);
    const double least = expected_distortion(128, centroids);
    for (float& centroid : centroids) {
      for (const float move : {-0.001f, 0.001f}) {
        const float kept = std::exchange(centroid, centroid + move);
        EXPECT_GT(expected_distortion(128, centroids), least);
        centroid = kept;
      }
    }
  }
}

TEST(Codebook, EveryBitMakesTheDistortionSmaller) {
  for (const int head_dim : some_head_dims()) {
    double previous = 1.0;
    for (int bits = kMinBits; bits <= kMaxBits; ++bits) {
      const double distortion = expected_distortion(head_dim, lloyd_max_centroids(head_dim, bits));
      EXPECT_LT(distortion, previous / 2.5) << "head_dim " << head_dim << ", " << bits << " bits";
      EXPECT_GT(distortion, previous / 4.2) << "head_dim " << head_dim << ", " << bits << " bits";
      previous = distortion;
    }
  }
}

// For many components the density becomes a normal one, with an error of order 1 / head_dim that
// the values at 256 and 512 take out.
TEST(Codebook, TendsToTheNormalOne) {
  const std::vector<double> normal = {0.128395, 0.388048, 0.656759, 0.942340,
                                      1.256231, 1.618046, 2.069017, 2.732590};
  const std::vector<double> at_256 = solve_lloyd_max(256, 4);
  const std::vector<double> at_512 = solve_lloyd_max(512, 4);
  for (std::size_t i = 0; i < normal.size(); ++i) {
    const double limit = 2.0 * at_512[i] * std::sqrt(512.0) - at_256[i] * 16.0;
    EXPECT_NEAR(limit, normal[i], 2e-4);
  }
  const double distortion_512 = expected_distortion(512, lloyd_max_centroids(512, 4));
  const double distortion_256 = expected_distortion(256, lloyd_max_centroids(256, 4));
  EXPECT_NEAR(2.0 * distortion_512 - distortion_256, 0.009501, 2e-6);
}

TEST(Codebook, BoundariesAreMidpointsInF32) {
  const std::vector<float> centroids = lloyd_max_centroids(128, 4);
  const std::vector<float> boundaries = decision_boundaries(centroids);
  ASSERT_EQ(boundaries.size(), 15u);
  EXPECT_EQ(boundaries[7], 0.0f);
  for (std::size_t i = 0; i < boundaries.size(); ++i) {
    const float sum = centroids[i] + centroids[i + 1];
    EXPECT_EQ(boundaries[i], sum * 0.5f);
  }
}

}  // namespace codebook_test
}  // namespace tqcache::codec
