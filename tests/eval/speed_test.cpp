// Speeds with a clock that the test sets: what is timed, which runs count, and what is refused.

#include "tqcache/eval/speed.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "format/file_fixture.h"
#include "support/cache_builder.h"
#include "tqcache/quantize.h"

namespace tqcache::test {
namespace speed_test {

using eval::Speed;
using eval::SpeedCase;
using testing::Each;
using testing::ElementsAre;

TEST(Median, IsTheOneInTheMiddleOrTheMeanOfTwo) {
  EXPECT_EQ(eval::median({3}), 3);
  EXPECT_EQ(eval::median({3, 1, 2}), 2);
  EXPECT_EQ(eval::median({4, 1, 3, 2}), 2.5);
  EXPECT_EQ(eval::median({1, 1, 100}), 1);
}

TEST(MedianRun, TakesEachTimeByItself) {
  Speed speed;
  speed.runs = {{1, 10}, {3, 20}, {2, 40}};
  const eval::SpeedRun median = eval::median_run(speed);
  EXPECT_EQ(median.prompt_seconds, 2);
  EXPECT_EQ(median.generation_seconds, 20);
}

TEST(RandomIds, AreOfTheVocabularyAndTheSameForTheSameSeed) {
  const auto ids = eval::random_ids(1000, 50, 1);
  EXPECT_EQ(ids.size(), 1000u);
  EXPECT_THAT(ids, Each(testing::AllOf(testing::Ge(0), testing::Lt(50))));
  EXPECT_EQ(ids, eval::random_ids(1000, 50, 1));
  EXPECT_NE(ids, eval::random_ids(1000, 50, 2));
}

// The bundled model, loaded once.
const model::Model& demo() {
  static const std::unique_ptr<model::Model> kModel =
      must(model::load_model(TQCACHE_DEMO_MODEL "/tqcache-demo-17m.q8_0.gguf"));
  return *kModel;
}

constexpr std::int64_t kLayers = 8;

SpeedCase dense() {
  SpeedCase dense{"baseline", {}, false};
  dense.options.keys.dense = dense.options.values.dense = true;
  return dense;
}

SpeedCase turbo() { return {"turbo", must(cache::preset("turbo4")), true}; }

// The n-th reading is n seconds after the previous one.
eval::SecondsClock slowing_clock() {
  return [looks = 0.0, now = 0.0]() mutable { return now += looks++; };
}

Result<std::vector<Speed>> measure(const std::vector<SpeedCase>& cases, std::int64_t n_prompt,
                                   const eval::SpeedOptions& options = {.n_warmups = 0,
                                                                        .n_repeats = 1},
                                   const Progress& progress = {}) {
  const auto prompt = eval::random_ids(n_prompt, demo().config.vocab_size, 1);
  const auto continuation = eval::random_ids(2, demo().config.vocab_size, 2);
  return eval::measure_speed(demo(), cases, prompt, continuation, options, progress,
                             slowing_clock());
}

TEST(MeasureSpeed, LetsCasesTakeTurnsAndLeavesWarmUpsOut) {
  const auto speeds = must(measure({dense(), dense()}, 3, {.n_warmups = 1, .n_repeats = 2}));
  ASSERT_EQ(speeds.size(), 2u);
  const auto seconds = [&](std::size_t i) {
    std::vector<std::pair<double, double>> pairs;
    for (const auto& run : speeds[i].runs) {
      pairs.emplace_back(run.prompt_seconds, run.generation_seconds);
    }
    return pairs;
  };
  // Each run looks at the clock three times; runs 0 and 1 are to warm up.
  EXPECT_THAT(seconds(0), ElementsAre(std::pair(7., 8.), std::pair(13., 14.)));
  EXPECT_THAT(seconds(1), ElementsAre(std::pair(10., 11.), std::pair(16., 17.)));
}

TEST(MeasureSpeed, ReportsTheCacheAtTheEndOfARun) {
  const auto speeds = must(measure({dense(), turbo()}, 300));
  EXPECT_EQ(speeds[0].packed_blocks, 0);
  EXPECT_EQ(speeds[0].route.step, "dense");
  EXPECT_EQ(speeds[0].cache_bytes.used, std::uint64_t{2 * kLayers * 2 * 128 * 302 * 2});
  EXPECT_EQ(speeds[1].packed_blocks, 2 * kLayers);
  EXPECT_NE(speeds[1].route.step, "dense");
  EXPECT_LT(speeds[1].cache_bytes.used, speeds[0].cache_bytes.used / 2);
  EXPECT_GT(speeds[1].scratch_bytes, 0u);
}

TEST(MeasureSpeed, RefusesACaseThatPacksNothing) {
  expect_error(dropped(measure({dense(), turbo()}, 100)), ErrorCode::kInvalidArgument,
               "turbo: nothing was quantized: 102 tokens fill no token block");
  EXPECT_TRUE(measure({turbo()}, 256).ok());
  SpeedCase none = dense();
  none.must_pack = true;
  expect_error(dropped(measure({none}, 300)), ErrorCode::kInvalidArgument, "nothing was quantized");
}

TEST(MeasureSpeed, NamesTheCaseWhoseCacheCannotBeMade) {
  SpeedCase odd = turbo();
  odd.options.keys.n_sinks = 1000;
  expect_error(dropped(measure({odd}, 3)), ErrorCode::kInvalidArgument, "turbo: ");
}

TEST(MeasureSpeed, ReportsProgressAndStopsWhenInterrupted) {
  std::uint64_t last = 0;
  must(measure({dense()}, 3, {.n_warmups = 1, .n_repeats = 1},
               [&](std::uint64_t done, std::uint64_t total) {
                 EXPECT_GE(done, last);
                 EXPECT_EQ(total, 10u);
                 last = done;
                 return true;
               }));
  EXPECT_EQ(last, 10u);
  for (const std::uint64_t stop_at : {1u, 4u}) {  // in the prompt, and behind it
    const auto stop = [&](std::uint64_t done, std::uint64_t) { return done < stop_at; };
    const auto stopped = measure({dense()}, 3, {.n_warmups = 0, .n_repeats = 1}, stop);
    ASSERT_FALSE(stopped.ok());
    EXPECT_EQ(stopped.error().code, ErrorCode::kInterrupted);
  }
}

TEST(MeasureSpeed, RefusesWhatTheModelRefuses) {
  const std::vector<std::int32_t> ids = {-1};
  expect_error(dropped(eval::measure_speed(demo(), std::vector{dense()}, ids, ids, {})),
               ErrorCode::kInvalidArgument, "-1");
}

}  // namespace speed_test
}  // namespace tqcache::test
