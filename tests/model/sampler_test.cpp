#include "tqcache/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "support/matchers.h"

namespace tqcache::model {
namespace sampler_test {

using testing::HasSubstr;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Probabilities 0.5, 0.25, 0.125, 0.0625, 0.0625, not in this order.
const std::vector<float> kLogits = {std::log(0.0625f), std::log(0.5f), std::log(0.125f),
                                    std::log(0.0625f), std::log(0.25f)};

std::vector<int> count_draws(const SamplerOptions& options, std::span<const float> logits, int n) {
  Sampler sampler(options);
  std::vector<int> counts(logits.size());
  for (int i = 0; i < n; ++i) ++counts[static_cast<std::size_t>(sampler.next(logits))];
  return counts;
}

std::set<std::size_t> drawn(const SamplerOptions& options, std::span<const float> logits) {
  std::set<std::size_t> ids;
  const std::vector<int> counts = count_draws(options, logits, 2000);
  for (std::size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] > 0) ids.insert(i);
  }
  return ids;
}

using Ids = std::set<std::size_t>;

TEST(Sampler, TakesTheLargestLogitAtTemperatureZero) { EXPECT_EQ(Sampler({}).next(kLogits), 1); }

TEST(Sampler, TakesTheLowestIdAmongEqualsAtTemperatureZero) {
  EXPECT_EQ(Sampler({}).next(std::vector<float>{1, 3, 2, 3}), 1);
}

TEST(Sampler, CountsNanAsMinusInfinity) {
  EXPECT_EQ(Sampler({}).next(std::vector<float>{kNan, -5, kNan}), 1);
  EXPECT_EQ(Sampler({}).next(std::vector<float>{kNan, kNan}), 0);
  EXPECT_EQ(drawn({.temperature = 1}, std::vector<float>{kNan, 1, -kInfinity, 1}), (Ids{1, 3}));
}

TEST(Sampler, DrawsAmongInfiniteLogitsAlone) {
  EXPECT_EQ(drawn({.temperature = 1}, std::vector<float>{kInfinity, 1, kInfinity}), (Ids{0, 2}));
}

TEST(Sampler, DrawsEveryTokenAsOftenAsItsProbabilitySays) {
  const std::vector<int> counts = count_draws({.temperature = 1, .seed = 1}, kLogits, 16000);
  const int expected[] = {1000, 8000, 2000, 1000, 4000};
  // Five standard deviations of a binomial count are at most 316.
  for (std::size_t i = 0; i < counts.size(); ++i) EXPECT_NEAR(counts[i], expected[i], 320);
}

TEST(Sampler, FlattensProbabilitiesWithTemperature) {
  const std::vector<float> logits = {std::log(0.9f), std::log(0.1f)};
  // At temperature 2 the odds are 3 to 1, at 0.5 they are 81 to 1.
  EXPECT_NEAR(count_draws({.temperature = 2, .seed = 1}, logits, 8000)[1], 2000, 200);
  EXPECT_NEAR(count_draws({.temperature = 0.5f, .seed = 1}, logits, 8200)[1], 100, 50);
}

TEST(Sampler, StandsATemperatureNearZero) {
  EXPECT_EQ(drawn({.temperature = 1e-30f}, kLogits), (Ids{1}));
}

TEST(Sampler, KeepsTheLikeliestKTokens) {
  EXPECT_EQ(drawn({.temperature = 1, .top_k = 1}, kLogits), (Ids{1}));
  EXPECT_EQ(drawn({.temperature = 1, .top_k = 3}, kLogits), (Ids{1, 2, 4}));
  EXPECT_EQ(drawn({.temperature = 1, .top_k = 4}, kLogits), (Ids{0, 1, 2, 4}));  // 0 before 3
  EXPECT_EQ(drawn({.temperature = 1, .top_k = 100}, kLogits), (Ids{0, 1, 2, 3, 4}));
}

TEST(Sampler, KeepsTheFewestTokensThatReachTopP) {
  EXPECT_EQ(drawn({.temperature = 1, .top_p = 0.01f}, kLogits), (Ids{1}));
  EXPECT_EQ(drawn({.temperature = 1, .top_p = 0.49f}, kLogits), (Ids{1}));
  EXPECT_EQ(drawn({.temperature = 1, .top_p = 0.51f}, kLogits), (Ids{1, 4}));
  EXPECT_EQ(drawn({.temperature = 1, .top_p = 0.8f}, kLogits), (Ids{1, 2, 4}));
}

TEST(Sampler, KeepsTokensOfAShareOfTheLargestProbability) {
  EXPECT_EQ(drawn({.temperature = 1, .min_p = 1}, kLogits), (Ids{1}));
  EXPECT_EQ(drawn({.temperature = 1, .min_p = 0.49f}, kLogits), (Ids{1, 4}));
  EXPECT_EQ(drawn({.temperature = 1, .min_p = 0.2f}, kLogits), (Ids{1, 2, 4}));
  EXPECT_EQ(drawn({.temperature = 1, .min_p = 0.1f}, kLogits), (Ids{0, 1, 2, 3, 4}));
}

TEST(Sampler, AppliesTopPToWhatTopKLeaves) {
  // Of 0.5 and 0.25 the first has two thirds: enough for 0.6, but not of all five tokens.
  EXPECT_EQ(drawn({.temperature = 1, .top_k = 2, .top_p = 0.6f}, kLogits), (Ids{1}));
  EXPECT_EQ(drawn({.temperature = 1, .top_p = 0.6f}, kLogits), (Ids{1, 4}));
}

TEST(Sampler, AppliesTemperatureBeforeTheOtherFilters) {
  // At temperature 2 the second probability is 0.71 of the first.
  EXPECT_EQ(drawn({.temperature = 2, .min_p = 0.6f}, kLogits), (Ids{1, 4}));
  EXPECT_EQ(drawn({.temperature = 1, .min_p = 0.6f}, kLogits), (Ids{1}));
}

TEST(Sampler, RepeatsItselfWithTheSameSeedOnly) {
  const auto sequence = [](std::uint64_t seed) {
    Sampler sampler({.temperature = 1, .seed = seed});
    std::vector<std::int32_t> ids;
    for (int i = 0; i < 50; ++i) ids.push_back(sampler.next(kLogits));
    return ids;
  };
  EXPECT_EQ(sequence(1), sequence(1));
  EXPECT_NE(sequence(1), sequence(2));
}

TEST(Sampler, GivesTheTokensThatItsSeedStandsFor) {
  // Computed apart from this code: the generator's top 53 bits as a fraction of 1, placed in the
  // cumulative probabilities of kLogits in id order.
  std::mt19937_64 random(42);
  Sampler sampler({.temperature = 1, .seed = 42});
  const double cumulative[] = {0.0625, 0.5625, 0.6875, 0.75, 1.0};
  for (int i = 0; i < 100; ++i) {
    const double unit = static_cast<double>(random() >> 11) / 9007199254740992.0;
    std::int32_t expected = 0;
    while (cumulative[expected] <= unit) ++expected;
    EXPECT_EQ(sampler.next(kLogits), expected);
  }
}

void expect_invalid(const SamplerOptions& options, const std::string& name) {
  EXPECT_THAT(validate(options), test::FailsWith(ErrorCode::kInvalidArgument, HasSubstr(name)));
}

TEST(SamplerOptions, RefusesNumbersOutOfRange) {
  expect_invalid({.temperature = -0.1f}, "temperature");
  expect_invalid({.temperature = kInfinity}, "temperature");
  expect_invalid({.temperature = kNan}, "temperature");
  expect_invalid({.top_k = -1}, "top-k");
  expect_invalid({.top_p = 0}, "top-p");
  expect_invalid({.top_p = 1.1f}, "top-p");
  expect_invalid({.top_p = kNan}, "top-p");
  expect_invalid({.min_p = -0.1f}, "min-p");
  expect_invalid({.min_p = 1.1f}, "min-p");
  expect_invalid({.min_p = kNan}, "min-p");
}

TEST(SamplerOptions, AcceptsTheDefaultsAndTheEndsOfEveryRange) {
  EXPECT_TRUE(validate(SamplerOptions{}).ok());
  EXPECT_TRUE(validate({.temperature = 2, .top_k = 1, .top_p = 1, .min_p = 1}).ok());
}

SamplerOptions with_bias(std::vector<LogitBias> biases) {
  SamplerOptions options;
  options.logit_bias = std::move(biases);
  return options;
}

TEST(Sampler, AddsBiasesToLogits) {
  EXPECT_EQ(Sampler(with_bias({{0, 2.5f}})).next(std::vector<float>{1, 3, 2}), 0);
  EXPECT_EQ(Sampler(with_bias({{1, -kInfinity}})).next(std::vector<float>{1, 3, 2}), 2);
  EXPECT_EQ(Sampler(with_bias({{0, 1}, {0, 1.5f}})).next(std::vector<float>{1, 3, 2}), 0);
}

TEST(Sampler, PassesOverBiasesOfTokensThatTheModelDoesNotHave) {
  EXPECT_EQ(Sampler(with_bias({{7, 100}})).next(std::vector<float>{1, 3, 2}), 1);
}

SamplerOptions with_penalty(float penalty, std::int64_t last_n = 64) {
  SamplerOptions options;
  options.repeat_penalty = penalty;
  options.repeat_last_n = last_n;
  return options;
}

TEST(Sampler, PenalizesWhatWasSeenOnceHoweverOften) {
  Sampler sampler(with_penalty(2));
  EXPECT_EQ(sampler.next(std::vector<float>{1, 3, 2}), 1);
  sampler.saw(std::vector<std::int32_t>{1, 1, 1});
  EXPECT_EQ(sampler.next(std::vector<float>{1, 3, 2}), 2);      // 3 became 1.5
  EXPECT_EQ(sampler.next(std::vector<float>{1, 3, 1.25f}), 1);  // and no less
  sampler.forget();
  EXPECT_EQ(sampler.next(std::vector<float>{1, 3, 2}), 1);
}

TEST(Sampler, MovesLogitsBelowZeroAwayFromIt) {
  Sampler sampler(with_penalty(2));
  sampler.saw(std::vector<std::int32_t>{0});
  EXPECT_EQ(sampler.next(std::vector<float>{-1, -1.5f}), 1);
}

TEST(Sampler, ForgetsWhatWasSeenLongAgo) {
  Sampler sampler(with_penalty(2, 2));
  sampler.saw(std::vector<std::int32_t>{1, 0, 0});
  EXPECT_EQ(sampler.next(std::vector<float>{1, 3, 2}), 1);
  Sampler never(with_penalty(2, -1));
  never.saw(std::vector<std::int32_t>{1});
  never.saw(std::vector<std::int32_t>(1000, 0));
  EXPECT_EQ(never.next(std::vector<float>{1, 3, 2}), 2);
  Sampler at_once(with_penalty(2, 0));
  at_once.saw(std::vector<std::int32_t>{1});
  EXPECT_EQ(at_once.next(std::vector<float>{1, 3, 2}), 1);
}

TEST(Sampler, IgnoresSeenTokensThatTheModelDoesNotHave) {
  Sampler sampler(with_penalty(2));
  sampler.saw(std::vector<std::int32_t>{-1, 9});
  EXPECT_EQ(sampler.next(std::vector<float>{1, 3, 2}), 1);
}

TEST(Sampler, RefusesPenaltiesAndBiasesThatAreNoNumbers) {
  const auto message = [](const SamplerOptions& options) {
    const Result<void> valid = validate(options);
    return valid.ok() ? "" : valid.error().message;
  };
  for (const float penalty : {0.0f, -1.0f, kNan, kInfinity}) {
    EXPECT_THAT(message(with_penalty(penalty)), HasSubstr("repeat-penalty"));
  }
  EXPECT_THAT(message(with_penalty(1, -2)), HasSubstr("repeat-last-n"));
  EXPECT_THAT(message(with_bias({{-1, 0}})), HasSubstr("logit-bias"));
  EXPECT_THAT(message(with_bias({{1, kNan}})), HasSubstr("logit-bias"));
  EXPECT_THAT(message(with_bias({{1, kInfinity}})), HasSubstr("logit-bias"));
  EXPECT_EQ(message(with_bias({{1, -kInfinity}})), "");
}

}  // namespace sampler_test
}  // namespace tqcache::model
