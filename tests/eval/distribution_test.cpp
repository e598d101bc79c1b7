#include "tqcache/eval/distribution.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "support/cache_builder.h"

namespace tqcache::eval {
namespace distribution_test {

Distribution of(const std::vector<double>& values, std::size_t max_exact = 1000) {
  Distribution distribution(max_exact);
  for (const double value : values) distribution.add(value);
  return distribution;
}

TEST(Distribution, OfNothingIsZero) {
  const Distribution none;
  EXPECT_EQ(none.count(), 0u);
  EXPECT_EQ(none.mean(), 0);
  EXPECT_EQ(none.max(), 0);
  EXPECT_EQ(none.quantile(0.5), 0);
}

TEST(Distribution, OfOneNumberIsThatNumber) {
  const Distribution one = of({3});
  EXPECT_EQ(one.mean(), 3);
  EXPECT_EQ(one.max(), 3);
  for (const double q : {0.0, 0.5, 0.99, 1.0}) EXPECT_EQ(one.quantile(q), 3);
}

TEST(Distribution, HasTheMeanMaximumAndQuantilesOfItsNumbers) {
  const Distribution odd = of({5, 1, 4, 2, 8});
  EXPECT_EQ(odd.count(), 5u);
  EXPECT_EQ(odd.mean(), 4);
  EXPECT_EQ(odd.max(), 8);
  EXPECT_EQ(odd.quantile(0), 1);
  EXPECT_EQ(odd.quantile(0.5), 4);
  EXPECT_EQ(odd.quantile(1), 8);
}

// Places 0 to 3: the median is at 1.5, .99 at 2.97.
TEST(Distribution, HasTheStandardErrorOfTheMean) {
  Distribution distribution;
  EXPECT_EQ(distribution.standard_error(), 0);
  distribution.add(1);
  EXPECT_EQ(distribution.standard_error(), 0);
  for (const double each : {2.0, 3.0, 6.0}) distribution.add(each);
  // Variance (4 + 1 + 0 + 9) / 3.
  EXPECT_NEAR(distribution.standard_error(), std::sqrt(14.0 / 3 / 4), 1e-12);
}

TEST(Distribution, TakesPartsOfTwoNumbersBetweenTheirPlaces) {
  const Distribution even = of({1, 2, 4, 8});
  EXPECT_EQ(even.quantile(0.5), 3);
  EXPECT_NEAR(even.quantile(0.99), 4 + 0.97 * 4, 1e-12);
}

TEST(Distribution, FindsThe99thPercentileOfAHundredAndOne) {
  std::vector<double> values;
  for (int i = 100; i >= 0; --i) values.push_back(i);
  EXPECT_EQ(of(values).quantile(0.99), 99);
  EXPECT_EQ(of(values).quantile(0.5), 50);
}

TEST(Distribution, CountsInBinsBeyondItsLimit) {
  test::Random random(3);
  std::vector<double> values;
  for (int i = 0; i < 20000; ++i) {
    const double u = static_cast<double>(random.below(1 << 20)) / (1 << 20);
    values.push_back(u * u * 1e-3);
  }
  values.push_back(7);
  const Distribution exact = of(values, values.size());
  const Distribution binned = of(values, 100);
  EXPECT_EQ(binned.count(), exact.count());
  EXPECT_EQ(binned.mean(), exact.mean());
  EXPECT_EQ(binned.max(), 7);
  for (const double q : {0.01, 0.5, 0.9, 0.99, 0.9999}) {
    EXPECT_NEAR(binned.quantile(q), exact.quantile(q), 0.005 * exact.quantile(q)) << q;
    EXPECT_NE(binned.quantile(q), 0) << q;
  }
  EXPECT_NEAR(binned.quantile(1), 7, 0.005 * 7);
}

TEST(Distribution, KeepsZerosApartInBins) {
  const Distribution zeros = of(std::vector<double>(500, 0.0), 10);
  EXPECT_EQ(zeros.quantile(0.5), 0);
  EXPECT_EQ(zeros.quantile(1), 0);
}

TEST(Distribution, HoldsWhatIsBeyondEveryBin) {
  const Distribution large = of({1e300, 1e300, 1e300}, 1);
  EXPECT_EQ(large.max(), 1e300);
  EXPECT_EQ(large.count(), 3u);
  EXPECT_GT(large.quantile(0.5), 3e38);
}

}  // namespace distribution_test
}  // namespace tqcache::eval
