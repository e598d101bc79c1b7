#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "research/demo_dialogue.h"
#include "support/matchers.h"
#include "tqcache/research/needle.h"

namespace tqcache::research {
namespace needle_run_test {

using test::chat_dialogue;
using test::demo_model;
using test::must;
using testing::HasSubstr;

const Haystack& haystack() {
  static const Haystack made = must(Haystack::make(test::excerpt_text(), demo_model().tokenizer));
  return made;
}

NeedleOptions options() {
  NeedleOptions options;
  options.lengths = {400};
  options.depths = {10, 60};
  options.configurations = must(cache::parse_configurations("f32,turbo4,turbo2"));
  options.max_tokens = 24;
  options.n_threads = 2;
  return options;
}

Result<NeedleResult> measure(const NeedleOptions& wanted, const Progress& progress = {}) {
  return measure_needles(demo_model(), haystack(), chat_dialogue(), wanted, progress);
}

// A short real run: the bundled model finds every needle within a token block and a half.
TEST(Needles, AreFoundInAShortText) {
  std::uint64_t last = 0, whole = 0;
  const NeedleResult result = must(measure(options(), [&](std::uint64_t done, std::uint64_t total) {
    EXPECT_GE(done, last);
    last = done;
    whole = total;
    return true;
  }));
  EXPECT_EQ(whole, 800u);
  ASSERT_EQ(result.grids.size(), 3u);
  for (std::size_t c = 0; c < 2; ++c) {
    const AnswerScore sum = total(result.grids[c]);
    EXPECT_EQ(sum.trials, 2);
    EXPECT_EQ(sum.found, 2);
    EXPECT_EQ(sum.exact, 2);
    EXPECT_EQ(sum.forced, 2);
    EXPECT_GT(sum.mean(sum.log_probability), -0.1);
  }
  // Coding changes something, so the configurations were not all the same cache.
  EXPECT_NE(total(result.grids[0]).log_probability, total(result.grids[1]).log_probability);
  EXPECT_NE(total(result.grids[1]).log_probability, total(result.grids[2]).log_probability);
}

TEST(Needles, ScoreTheSameWhateverElseIsMeasured) {
  NeedleOptions few = options();
  few.configurations = must(cache::parse_configurations("turbo4"));
  few.n_threads = 1;
  NeedleOptions fewer = few;
  fewer.depths = {60};
  const AnswerScore one = must(measure(few)).grids[0][0][1];
  const AnswerScore other = must(measure(fewer)).grids[0][0][0];
  EXPECT_EQ(one.log_probability, other.log_probability);
  EXPECT_EQ(one.found, other.found);
}

TEST(Needles, StopWhenInterrupted) {
  const auto result = measure(options(), [](std::uint64_t, std::uint64_t) { return false; });
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code, ErrorCode::kInterrupted);
}

TEST(Needles, RefuseLengthsBeyondTheContext) {
  NeedleOptions wanted = options();
  wanted.lengths = {400, 16384};
  const Haystack large = must(Haystack::make(
      test::excerpt_text() + test::excerpt_text() + test::excerpt_text(), demo_model().tokenizer));
  EXPECT_THAT(check_needles(demo_model(), large, chat_dialogue(), wanted),
              test::FailsWith(ErrorCode::kInvalidArgument,
                              HasSubstr("16384 tokens and the answer up to 24")));
}

TEST(Needles, RefuseAHaystackThatIsTooShort) {
  NeedleOptions wanted = options();
  wanted.lengths = {8192};
  const auto result = measure(wanted);
  ASSERT_FALSE(result);
  EXPECT_THAT(result.error().message, HasSubstr("the haystack has"));
}

TEST(Needles, RefuseConfigurationsThatDoNotFitTheModel) {
  NeedleOptions wanted = options();
  wanted.configurations = must(cache::parse_configurations("k=mixed:3:200:4"));
  const auto result = measure(wanted);
  ASSERT_FALSE(result);
  EXPECT_THAT(result.error().message, HasSubstr("k=mixed:3:200:4: "));
}

TEST(Needles, AreReportedByConfigurationLengthAndDepth) {
  NeedleOptions wanted = options();
  wanted.lengths = {400, 500};
  NeedleResult result;
  result.grids.assign(3, NeedleGrid(2, std::vector<AnswerScore>(2)));
  result.grids[1][1][0] = {.trials = 4, .exact = 1, .found = 3, .forced = 2, .log_probability = -2};
  result.grids[1][0][1] = {.trials = 4, .exact = 1, .found = 1, .forced = 0, .log_probability = -2};
  const eval::Report report = needle_report(wanted, result);
  const eval::Table& table = std::get<eval::Table>(report.figures[0]);
  ASSERT_EQ(table.rows.size(), 3u);
  EXPECT_EQ(std::get<std::string>(table.rows[1][0]), "turbo4");
  EXPECT_EQ(std::get<eval::Number>(table.rows[1][1]).value, 8);
  EXPECT_EQ(std::get<eval::Number>(table.rows[1][2]).value, 0.5);
  EXPECT_DOUBLE_EQ(std::get<eval::Number>(table.rows[1][3]).value, std::sqrt(0.5 * 0.5 / 8));
  EXPECT_EQ(std::get<eval::Number>(table.rows[1][4]).value, 0.25);
  EXPECT_EQ(std::get<eval::Number>(table.rows[1][5]).value, 0.25);
  EXPECT_EQ(std::get<eval::Number>(table.rows[1][6]).value, -0.5);
  std::vector<eval::HeatMap> maps;
  for (const eval::Figure& figure : report.figures) {
    if (const auto* map = std::get_if<eval::HeatMap>(&figure)) maps.push_back(*map);
  }
  ASSERT_EQ(maps.size(), 3u);
  EXPECT_EQ(maps[1].low, 0);
  EXPECT_EQ(maps[1].high, 1);
  EXPECT_EQ(maps[1].rows, (std::vector<std::string>{"400", "500"}));
  EXPECT_EQ(maps[1].columns, (std::vector<std::string>{"10%", "60%"}));
  EXPECT_EQ(maps[1].values[1][0], 0.75);
  EXPECT_TRUE(std::isnan(maps[1].values[0][0]));
}

}  // namespace needle_run_test
}  // namespace tqcache::research
