#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "model/tiny_model.h"
#include "report/text_table.h"
#include "support/matchers.h"
#include "tqcache/decoder.h"
#include "tqcache/eval.h"
#include "tqcache/quantize.h"

namespace tqcache::eval {
namespace advise_test {

using cache::Configuration;
using test::must;
using testing::ContainsRegex;
using testing::ElementsAre;
using testing::HasSubstr;

std::vector<Rung> ladder_of(const std::vector<std::vector<std::string>>& names) {
  std::vector<Rung> ladder;
  for (const auto& rung : names) {
    Rung& ways = ladder.emplace_back();
    for (const std::string& name : rung) ways.push_back({name, {}});
  }
  return ladder;
}

// Returns made-up numbers and records the configurations that it was asked for.
class Measured {
 public:
  explicit Measured(std::map<std::string, double> divergences)
      : divergences_(std::move(divergences)) {}

  MeasureConfigurations measure() {
    return [this](std::span<const Configuration> configurations) -> Result<PredictionCosts> {
      PredictionCosts costs;
      costs.n_windows = 2;
      std::vector<std::string>& names = rounds.emplace_back();
      for (const Configuration& each : configurations) {
        names.push_back(each.name);
        costs.ways.push_back({.configuration = each, .kld_mean = divergences_.at(each.name)});
      }
      return costs;
    };
  }

  std::vector<std::vector<std::string>> rounds;

 private:
  std::map<std::string, double> divergences_;
};

// Rungs "0" to "12", each of half the divergence of the one before it: 1, 1/2, 1/4, ...
class Halving : public testing::Test {
 protected:
  Halving() : measured_(divergences()) {
    for (int i = 0; i < kRungs; ++i) ladder_.push_back({Configuration{std::to_string(i), {}}});
  }
  static std::map<std::string, double> divergences() {
    std::map<std::string, double> all;
    for (int i = 0; i < kRungs; ++i) all[std::to_string(i)] = std::ldexp(1, -i);
    return all;
  }
  static std::string choice(const Advice& advice) {
    return advice.choice ? advice.costs.ways[*advice.choice].configuration.name : "none";
  }
  static std::vector<std::string> names(const Advice& advice) {
    std::vector<std::string> all;
    for (const auto& way : advice.costs.ways) all.push_back(way.configuration.name);
    return all;
  }

  static constexpr int kRungs = 13;
  std::vector<Rung> ladder_;
  Measured measured_;
};

TEST_F(Halving, FindsTheSmallestThatIsGoodEnough) {
  for (int i = 0; i < kRungs; ++i) {
    const Advice advice =
        must(advise_by_divergence(ladder_, std::ldexp(1, -i), measured_.measure()));
    EXPECT_EQ(choice(advice), std::to_string(i));
    EXPECT_EQ(advice.costs.n_windows, 2);
  }
}

TEST_F(Halving, MeasuresSixRungsAtMostInTwoRounds) {
  for (int i = 0; i <= kRungs; ++i) {
    Measured measured(divergences());
    const double wanted = i == kRungs ? 1e-9 : std::ldexp(1, -i);
    must(advise_by_divergence(ladder_, wanted, measured.measure()));
    EXPECT_LE(measured.rounds.size(), 2u) << i;
    std::size_t n = 0;
    for (const auto& round : measured.rounds) n += round.size();
    EXPECT_LE(n, 6u) << i;
  }
}

TEST_F(Halving, HasNoChoiceWhereNothingIsGoodEnough) {
  const Advice advice = must(advise_by_divergence(ladder_, 1e-9, measured_.measure()));
  EXPECT_FALSE(advice.choice);
  EXPECT_EQ(names(advice).back(), "12");  // the largest was tried
}

TEST_F(Halving, ListsWhatWasMeasuredBySize) {
  const Advice advice = must(advise_by_divergence(ladder_, 0.1, measured_.measure()));
  EXPECT_EQ(choice(advice), "4");
  std::vector<int> sizes;
  for (const std::string& name : names(advice)) sizes.push_back(std::stoi(name));
  EXPECT_TRUE(std::ranges::is_sorted(sizes));
}

TEST_F(Halving, BySizeTakesTheLargestThatFits) {
  const Advice advice = must(advise_by_size(ladder_, 5, measured_.measure()));
  EXPECT_EQ(choice(advice), "4");
  EXPECT_THAT(measured_.rounds, ElementsAre(ElementsAre("3", "4", "5")));
}

TEST_F(Halving, BySizeGoesToTheEndsOfTheLadder) {
  EXPECT_EQ(choice(must(advise_by_size(ladder_, 1, measured_.measure()))), "0");
  EXPECT_EQ(choice(must(advise_by_size(ladder_, kRungs, measured_.measure()))), "12");
  EXPECT_THAT(measured_.rounds, ElementsAre(ElementsAre("0", "1"), ElementsAre("11", "12")));
}

TEST_F(Halving, FailuresOfMeasuringAreThoseOfTheSearch) {
  const MeasureConfigurations fails = [](std::span<const Configuration>) {
    return Result<PredictionCosts>(Error{ErrorCode::kInterrupted, "enough"});
  };
  EXPECT_EQ(advise_by_divergence(ladder_, 1, fails).error().code, ErrorCode::kInterrupted);
  EXPECT_EQ(advise_by_size(ladder_, 1, fails).error().message, "enough");
}

// Models differ in whether keys or values need the bits more.
TEST(Advise, OfOneSizeTheBestWayCounts) {
  const auto ladder = ladder_of({{"k2v2"}, {"k4v3", "k3v4"}, {"k4v4", "k5v3"}});
  Measured measured({{"k2v2", 9}, {"k4v3", 4}, {"k3v4", 2}, {"k4v4", 1}, {"k5v3", 3}});
  const Advice by_kld = must(advise_by_divergence(ladder, 2.5, measured.measure()));
  EXPECT_EQ(by_kld.costs.ways[*by_kld.choice].configuration.name, "k3v4");
  const Advice by_size = must(advise_by_size(ladder, 2, measured.measure()));
  EXPECT_EQ(by_size.costs.ways[*by_size.choice].configuration.name, "k3v4");
}

TEST(Advise, WhatFitsAndIsSmallerMayBeBetter) {
  const auto ladder = ladder_of({{"a"}, {"b"}, {"c"}});
  Measured measured({{"a", 1}, {"b", 2}, {"c", 0.5}});
  const Advice advice = must(advise_by_size(ladder, 2, measured.measure()));
  EXPECT_EQ(advice.costs.ways[*advice.choice].configuration.name, "a");
}

TEST(AdviceLadder, ClimbsFromTwoBitsToEight) {
  const std::vector<Rung> ladder = advice_ladder();
  const auto bits = [](const Configuration& way) {
    return way.options.keys.codec.bits + way.options.values.codec.bits;
  };
  int expected = 4;
  for (const Rung& rung : ladder) {
    ASSERT_FALSE(rung.empty());
    for (const Configuration& way : rung) {
      EXPECT_EQ(bits(way), expected);
      const auto parsed = must(cache::parse_configuration(way.name));
      EXPECT_EQ(parsed.options.keys, way.options.keys) << way.name;
      EXPECT_EQ(parsed.options.values, way.options.values) << way.name;
    }
    ++expected;
  }
  EXPECT_EQ(expected, 17);
}

// A tiny model: 2 layers, 2 kv heads of 32, so 256 values per token and 512 dense bytes.
class AdviceSizes : public testing::Test {
 protected:
  CacheBytes of(const std::string& configuration, std::int64_t n_tokens) {
    return must(
        cache_bytes(model_.config, {}, must(cache::parse_configuration(configuration)), n_tokens));
  }
  test::TinyModel model_;
};

TEST_F(AdviceSizes, CountPackedBlocksAndADenseEnd) {
  const CacheBytes size = of("k4v3,sink=0", 600);
  EXPECT_EQ(size.n_tokens, 600);
  EXPECT_EQ(size.dense_bytes, 600u * 512);
  const std::uint64_t packed_token = 4 * (16 + 2 + 12 + 2);  // codes and scales of k and v
  EXPECT_EQ(size.bytes, 512 * packed_token + 88 * 512);
}

// A window of 300 tokens stays dense, or holds a quantized block and 44 dense tokens.
TEST_F(AdviceSizes, CountSlidingWindows) {
  model_.config.layers.resize(2);
  model_.config.layers[1].window = 300;
  const CacheBytes dense = of("turbo4,sink=0", 600);
  EXPECT_EQ(dense.dense_bytes, (600u + 300) * 256);
  const std::uint64_t packed_token = 2 * 2 * (16 + 2);
  EXPECT_EQ(dense.bytes, 512 * packed_token + 88 * 256 + 300 * 256);
  const CacheBytes turbo = of("turbo4,windows=turbo,sink=0", 600);
  EXPECT_EQ(turbo.dense_bytes, dense.dense_bytes);
  EXPECT_EQ(turbo.bytes, 512 * packed_token + 88 * 256 + 256 * packed_token + 44 * 256);
  EXPECT_EQ(of("turbo4,sink=0", 200).dense_bytes, 2u * 200 * 256);
}

TEST_F(AdviceSizes, RefuseWhatTheModelDoesNotAllow) {
  EXPECT_THAT(
      cache_bytes(model_.config, {}, must(cache::parse_configuration("k=mixed:2:32:3")), 600),
      test::FailsWith(ErrorCode::kUnsupported, HasSubstr("k=mixed:2:32:3")));
}

TEST_F(AdviceSizes, EqualTheSizeOfAConvertedCache) {
  cache::Cache cache = model_.make_cache();
  model::Decoder decoder(model_.config, model_.weights, 1);
  must(decoder.prefill(cache, model_.prompt(600)));
  const auto turbo =
      must(cache::convert(cache, must(cache::parse_configuration("turbo3,sink=0")).options));
  EXPECT_EQ(cache::byte_count(turbo).used, of("turbo3,sink=0", 600).bytes + 2 * 2 * 2 * 32 * 4);
}

TEST_F(AdviceSizes, AppearInTheReportWithTheChoice) {
  Advice advice;
  advice.costs.ways = {{.configuration = must(cache::parse_configuration("turbo3,sink=0"))},
                       {.configuration = must(cache::parse_configuration("turbo4,sink=0"))}};
  advice.costs.ways[0].size.bits_per_packed_value = 3.5;
  advice.choice = 1;
  const std::vector<std::vector<CacheBytes>> sizes = {
      {of("turbo3,sink=0", 256), of("turbo3,sink=0", 512)},
      {of("turbo4,sink=0", 256), of("turbo4,sink=0", 512)}};
  const std::string text = report::report_text(advice_report(advice, sizes));
  EXPECT_THAT(text, ContainsRegex("\nadvice +turbo4,sink=0\n"));
  EXPECT_THAT(text, ContainsRegex("\nconfiguration +bits per value +256 tokens +512 tokens\n"));
  EXPECT_THAT(text, ContainsRegex("\nturbo3,sink=0 +3.500 +28,672 +57,344\n"));
  EXPECT_THAT(text, ContainsRegex("\ndense, f16 +16.000 +131,072 +262,144\n"));
  advice.choice.reset();
  EXPECT_THAT(report::report_text(advice_report(advice, sizes)),
              ContainsRegex("\nadvice +none of those measured\n"));
}

}  // namespace advise_test
}  // namespace tqcache::eval
