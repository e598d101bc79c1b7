// A calibration that is interrupted and goes on gives the same profile, and what a checkpoint
// refuses; bits and divergences of steps, from a profile.

#include "tqcache/eval/calibration.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "support/demo_model.h"
#include "support/long_tests.h"
#include "support/matchers.h"
#include "support/small_profile.h"
#include "tqcache/access.h"
#include "tqcache/predict/rate.h"

namespace tqcache::test {
namespace calibration_test {

using testing::HasSubstr;

eval::CalibrationOptions small_options() {
  eval::CalibrationOptions options;
  options.depth = 1;
  options.n_features = 4;
  options.n_tokens = 1024;
  options.window = 512;
  options.n_sensitivity = 32;
  options.n_threads = 1;
  return options;
}

TEST(Calibration, GoesOnWhereItWasInterrupted) {
  const TempDir dir;
  const std::vector<std::vector<std::int32_t>> texts = {encode(excerpt_text())};
  eval::CalibrationOptions options = small_options();
  const predict::Profile whole = must(eval::calibrate(demo_model(), texts, options, {}));
  EXPECT_GE(whole.curve.size(), 2u);
  const Bytes expected = predict::profile_bytes(whole);

  // Interrupted in a measurement of sensitivity and in one of the curve; with tools/check.sh --long
  // in the first and in the second window, too.
  const auto moments =
      runs_long_tests()
          ? std::vector<std::uint64_t>{100, 700, 1024 + 32 * 6 + 5, 1024 + 32 * 19 + 5}
          : std::vector<std::uint64_t>{1024 + 32 * 6 + 5, 1024 + 32 * 19 + 5};
  options.checkpoint = dir / "checkpoint";
  std::uint64_t total = 0;
  for (const std::uint64_t most : moments) {
    const auto stopped =
        eval::calibrate(demo_model(), texts, options, [&](std::uint64_t done, std::uint64_t all) {
          total = all;
          return done < most;
        });
    ASSERT_FALSE(stopped) << most;
    ASSERT_EQ(stopped.error().code, ErrorCode::kInterrupted) << stopped.error().message;
    EXPECT_TRUE(std::filesystem::exists(options.checkpoint));
  }
  EXPECT_GT(total, 1024u + 32 * 20);
  std::uint64_t least = total;  // what was measured is not measured again
  const predict::Profile resumed =
      must(eval::calibrate(demo_model(), texts, options, [&](std::uint64_t done, std::uint64_t) {
        least = std::min(least, done);
        return true;
      }));
  EXPECT_GE(least, 1024u);
  EXPECT_EQ(predict::profile_bytes(resumed), expected);
}

TEST(Calibration, RefusesTheCheckpointOfAnother) {
  const TempDir dir;
  const std::vector<std::vector<std::int32_t>> texts = {encode(excerpt_text())};
  eval::CalibrationOptions options = small_options();
  options.checkpoint = dir / "checkpoint";
  const auto stop = [](std::uint64_t, std::uint64_t) { return false; };
  ASSERT_FALSE(eval::calibrate(demo_model(), texts, options, stop));
  const auto refusal_of = [&](const eval::CalibrationOptions& other) {
    const auto refused = eval::calibrate(demo_model(), texts, other, stop);
    return refused.error();
  };
  eval::CalibrationOptions deeper = options;
  deeper.depth = 2;
  EXPECT_EQ(refusal_of(deeper).code, ErrorCode::kMismatch);
  EXPECT_THAT(refusal_of(deeper).message, HasSubstr("delete it to begin anew"));

  const Bytes good = read_all(options.checkpoint);
  const auto with = [&](Bytes bytes) {
    std::ofstream out(options.checkpoint, std::ios::binary | std::ios::trunc);
    out.write(reinterpret_cast<const char*>(bytes.data()),
              static_cast<std::streamsize>(bytes.size()));
    out.close();
    return refusal_of(options).code;
  };
  Bytes damaged = good;
  damaged[good.size() - 9] ^= std::byte{1};
  EXPECT_EQ(with(damaged), ErrorCode::kCorrupt);
  EXPECT_EQ(with(Bytes(good.begin(), good.end() - 8)), ErrorCode::kCorrupt);
  EXPECT_EQ(with(Bytes(good.begin(), good.begin() + 40)), ErrorCode::kCorrupt);
  EXPECT_EQ(with(good), ErrorCode::kInterrupted);
}

// Refused before any memory is taken for it.
TEST(Calibration, RefusesWhatTakesTooMuchMemory) {
  const auto model = must(model::load_model(TQCACHE_DEMO_MODEL "/tqcache-demo-17m.q8_0.gguf"));
  const auto refusal_of = [&](std::uint64_t memory) {
    eval::CalibrationOptions options = small_options();
    options.depth = 1;
    options.memory = MemoryBudget::of_user(memory);
    const auto refused = eval::calibrate(*model, {}, options, {});
    EXPECT_EQ(refused.error().code, ErrorCode::kTooLarge);
    return refused.error().message;
  };
  EXPECT_THAT(refusal_of(1 << 20), HasSubstr("the sums of the calibration: "));
  model->config.n_kv_heads = 16;
  model->config.head_dim = 128;
  model->config.n_layers = 48;
  EXPECT_THAT(refusal_of(std::uint64_t{1} << 62), HasSubstr("use fewer earlier layers"));
}

// Refused before any weight is read.
TEST(Calibration, RefusesWhatIsTooWideByName) {
  const auto model = must(model::load_model(TQCACHE_DEMO_MODEL "/tqcache-demo-17m.q8_0.gguf"));
  model->config.n_kv_heads = 8;
  model->config.head_dim = 128;
  const auto refusal_of = [&](std::int64_t depth) {
    eval::CalibrationOptions options = small_options();
    options.depth = depth;
    const auto refused = eval::calibrate(*model, {}, options, {});
    EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
    return refused.error().message;
  };
  EXPECT_THAT(refusal_of(4), HasSubstr("a predictor would have 9220 inputs, more than 8192"));
  model->config.n_kv_heads = 17;
  EXPECT_THAT(refusal_of(1), HasSubstr("2176 channels of keys; predictors have up to 2048"));
}

TEST(StepRate, FallsWithTheStep) {
  const predict::Profile profile = small_profile();
  for (const double rate : {0.1, 1.0, 3.0, 8.0}) {
    const double step = predict::step_of_rate(profile, rate);
    EXPECT_NEAR(predict::rate_of_step(profile, step), rate, rate * 1e-6);
    EXPECT_LT(predict::rate_of_step(profile, step * 1.1), rate);
  }
}

TEST(StepDivergence, GoesThroughThePointsOfTheCurve) {
  predict::Profile profile = small_profile();
  const double alone = predict::expected_divergence(profile, 0.1);
  EXPECT_GT(alone, 0);
  EXPECT_GT(predict::expected_divergence(profile, 0.2), alone);
  EXPECT_NEAR(must(predict::step_of_divergence(profile, alone)), 0.1, 1e-6);
  EXPECT_FALSE(predict::step_of_divergence(profile, 1e9));
  EXPECT_FALSE(predict::step_of_divergence(profile, 0));

  profile.curve = {{0.05f, 0.01f}, {0.1f, 0.05f}, {0.2f, 0.3f}};
  for (const predict::CurvePoint& point : profile.curve) {
    EXPECT_NEAR(predict::expected_divergence(profile, double{point.step}), double{point.kld},
                double{point.kld} * 1e-5);
    EXPECT_NEAR(must(predict::step_of_divergence(profile, double{point.kld})), double{point.step},
                double{point.step} * 1e-5);
  }
  EXPECT_GT(predict::expected_divergence(profile, 0.15), 0.05);
  EXPECT_LT(predict::expected_divergence(profile, 0.15), 0.3);
  EXPECT_TRUE(predict::step_of_divergence(profile, 0.005));
  EXPECT_THAT(predict::step_of_divergence(profile, 2),
              test::FailsWith(ErrorCode::kInvalidArgument, HasSubstr("2 nats")));
  const predict::Profile again = must(predict::parse_profile(predict::profile_bytes(profile)));
  ASSERT_EQ(again.curve.size(), 3u);
  EXPECT_EQ(again.curve[1].kld, 0.05f);

  for (const predict::CurvePoint wrong : {predict::CurvePoint{0.05f, 0.2f}, {0.15f, 0.01f}}) {
    profile.curve[1] = wrong;
    EXPECT_THAT(predict::parse_profile(predict::profile_bytes(profile)),
                test::FailsWith(ErrorCode::kCorrupt, HasSubstr("curve")));
  }
}

}  // namespace calibration_test
}  // namespace tqcache::test
