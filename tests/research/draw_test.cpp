#include "research/simulation/draw.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace tqcache::simulation {
namespace draw_test {

constexpr int kDraws = 100'000;

TEST(Zipf, GivesRankItsShareOfTheWhole) {
  const Zipf zipf(3, 1);  // 1 : 1/2 : 1/3
  EXPECT_NEAR(zipf.probability(0), 6.0 / 11, 1e-12);
  EXPECT_NEAR(zipf.probability(1), 3.0 / 11, 1e-12);
  EXPECT_NEAR(zipf.probability(2), 2.0 / 11, 1e-12);
}

TEST(Zipf, DrawsRanksAsOftenAsTheirProbabilitySays) {
  const Zipf zipf(50, 1.2);
  Random random(1);
  std::vector<int> counts(50);
  for (int i = 0; i < kDraws; ++i) ++counts[zipf.draw(random)];
  for (std::size_t rank = 0; rank < 50; ++rank) {
    const double p = zipf.probability(rank);
    EXPECT_NEAR(counts[rank], p * kDraws, 4 * std::sqrt(p * kDraws)) << rank;
  }
}

TEST(Zipf, OfExponentZeroPrefersNothing) {
  const Zipf zipf(4, 0);
  for (std::size_t rank = 0; rank < 4; ++rank) EXPECT_DOUBLE_EQ(zipf.probability(rank), 0.25);
}

TEST(Zipf, AmongTheFirstRanksKeepsTheirProportions) {
  const Zipf zipf(50, 1);
  Random random(2);
  int first = 0;
  for (int i = 0; i < kDraws; ++i) {
    const std::size_t rank = zipf.draw_among(random, 2);
    ASSERT_LT(rank, 2u);
    first += rank == 0;
  }
  EXPECT_NEAR(first, kDraws * 2.0 / 3, 4 * std::sqrt(kDraws));
}

TEST(Random, IsTheSameForTheSameSeedOnly) {
  Random a(7), b(7), c(8);
  for (int i = 0; i < 100; ++i) {
    const double drawn = a.uniform();
    EXPECT_EQ(drawn, b.uniform());
    EXPECT_NE(drawn, c.uniform());
    EXPECT_GT(drawn, 0);
    EXPECT_LT(drawn, 1);
  }
}

TEST(Random, HasTheMeansThatWereAskedFor) {
  Random random(3);
  double tries = 0, wait = 0;
  for (int i = 0; i < kDraws; ++i) {
    const std::int64_t n = random.geometric(5);
    ASSERT_GE(n, 1);
    tries += static_cast<double>(n);
    wait += random.exponential(60);
  }
  EXPECT_NEAR(tries / kDraws, 5, 0.1);
  EXPECT_NEAR(wait / kDraws, 60, 1);
}

TEST(Random, HasNoSecondTryWhereTheMeanIsOne) {
  Random random(4);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(random.geometric(1), 1);
}

TEST(Random, PutsHalfOfLogNormalBelowTheMedian) {
  Random random(5);
  int below = 0;
  double logs = 0;
  for (int i = 0; i < kDraws; ++i) {
    const double drawn = random.log_normal(250, 0.8);
    below += drawn < 250;
    logs += std::pow(std::log(drawn / 250), 2);
  }
  EXPECT_NEAR(below, kDraws / 2.0, 4 * std::sqrt(kDraws));
  EXPECT_NEAR(std::sqrt(logs / kDraws), 0.8, 0.01);
}

}  // namespace draw_test
}  // namespace tqcache::simulation
