#include "tqcache/eval/divergence.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "support/gaussian.h"

namespace tqcache::eval {
namespace divergence_test {

std::vector<float> logs(const std::vector<double>& probabilities, double shift = 0) {
  std::vector<float> logits;
  for (const double p : probabilities) logits.push_back(static_cast<float>(std::log(p) + shift));
  return logits;
}

double divergence_of(const std::vector<float>& p, const std::vector<float>& q) {
  std::vector<float> scratch;
  return divergence(p, softmax_of(p, scratch), q, softmax_of(q, scratch), scratch);
}

TEST(Softmax, HasTheSumsLogarithm) {
  std::vector<float> scratch;
  const std::vector<float> logits = {0, std::log(2.0f), std::log(5.0f)};
  const Softmax softmax = softmax_of(logits, scratch);
  EXPECT_EQ(softmax.max, logits[2]);
  EXPECT_NEAR(softmax.log_sum, std::log(8.0), 1e-6);
  EXPECT_NEAR(negative_log_likelihood(logits, softmax, 1), std::log(4.0), 1e-6);
}

TEST(Softmax, StandsLargeLogits) {
  std::vector<float> scratch;
  const std::vector<float> logits = {1000, 1000, -1000};
  EXPECT_NEAR(softmax_of(logits, scratch).log_sum, 1000 + std::log(2.0), 1e-4);
}

// 1/2 log(1/2 : 1/4) + 1/4 log(1/4 : 1/2) + 1/4 log(1/4 : 1/4) = 1/4 log 2.
TEST(Divergence, IsWhatThePaperSays) {
  const double expected = 0.25 * std::log(2.0);
  EXPECT_NEAR(divergence_of(logs({.5, .25, .25}), logs({.25, .5, .25})), expected, 1e-6);
  // Not the same the other way round: .9 log(.9/.5) + .1 log(.1/.5), .5 log(.5/.9) + .5 log(.5/.1).
  EXPECT_NEAR(divergence_of(logs({.9, .1}), logs({.5, .5})), 0.368064, 1e-6);
  EXPECT_NEAR(divergence_of(logs({.5, .5}), logs({.9, .1})), 0.510826, 1e-6);
}

TEST(Divergence, DoesNotDependOnWhatIsAddedToAllLogits) {
  EXPECT_NEAR(divergence_of(logs({.9, .1}, 20), logs({.5, .5}, -3)), 0.368064, 1e-5);
}

TEST(Divergence, OfEqualRowsIsZero) {
  test::GaussianSource random(5);
  const std::vector<float> row = random.vector(8192, 4.0f);
  EXPECT_EQ(divergence_of(row, row), 0);
}

// A small difference of large rows is not lost in rounding.
TEST(Divergence, AgreesWithDoubles) {
  test::GaussianSource random(6);
  const std::vector<float> p = random.vector(8192, 4.0f);
  std::vector<float> q = p;
  for (float& value : q) value += random.vector(1, 0.005f)[0];
  double sum_p = 0, sum_q = 0;
  for (std::size_t i = 0; i < p.size(); ++i) {
    sum_p += std::exp(static_cast<double>(p[i]));
    sum_q += std::exp(static_cast<double>(q[i]));
  }
  double expected = std::log(sum_q) - std::log(sum_p);
  for (std::size_t i = 0; i < p.size(); ++i) {
    expected += std::exp(static_cast<double>(p[i])) / sum_p *
                (static_cast<double>(p[i]) - static_cast<double>(q[i]));
  }
  EXPECT_GT(expected, 5e-6);
  EXPECT_NEAR(divergence_of(p, q), expected, 1e-6);
}

TEST(MostProbable, IsTheFirstOfTheLargest) {
  std::vector<float> scratch;
  const std::vector<float> logits = {1, 3, 2, 3};
  EXPECT_EQ(most_probable(logits, softmax_of(logits, scratch)), 1u);
}

}  // namespace divergence_test
}  // namespace tqcache::eval
