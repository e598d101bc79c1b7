#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>

#include "cache/random_cache.h"
#include "tqcache/quantize.h"

namespace tqcache::cache {
namespace presets_test {

using test::attention;

constexpr HeadShape kShape{2, 128};

TEST(Presets, HaveNamesAndADescriptionOfOneLine) {
  const std::vector<std::string_view> names = preset_names();
  EXPECT_EQ(names.front(), kDefaultPreset);
  EXPECT_EQ(std::set(names.begin(), names.end()).size(), names.size());
  for (const std::string_view name : names) {
    EXPECT_TRUE(preset(name)) << name;
    EXPECT_FALSE(preset_description(name).empty()) << name;
    EXPECT_EQ(preset_description(name).find('\n'), std::string_view::npos);
  }
}

TEST(Presets, KeepTheFirstTokensDense) {
  for (const auto& names : {preset_names(), goal_names()}) {
    for (const std::string_view name : names) {
      const ConvertOptions options = preset(name).value();
      for (const TensorPlan& plan : {options.keys, options.values}) {
        EXPECT_TRUE(plan.dense || plan.n_sinks == kDefaultSinks) << name;
      }
    }
  }
  TensorPlan bare = preset(kDefaultPreset).value().keys;
  bare.n_sinks = 0;
  EXPECT_EQ(bare, ConvertOptions{}.keys);
}

// Below 4 bits a scale that keeps inner products unbiased costs more than it gives.
TEST(Presets, KeepLengthsBelowFourBits) {
  const auto scale = [](std::string_view name) { return preset(name).value().values.codec.scale; };
  for (const std::string_view name : {"turbo2", "turbo2.5", "turbo3", "turbo3.5", "k4v3"}) {
    EXPECT_EQ(scale(name), codec::ScaleRule::kNorm) << name;
  }
  for (const std::string_view name : {"turbo4", "k8v4", "kfv4"}) {
    EXPECT_EQ(scale(name), codec::ScaleRule::kUnbiased) << name;
  }
  EXPECT_EQ(scale("prod3"), codec::ScaleRule::kRaw);
  EXPECT_EQ(preset("k4v3").value().keys.codec.scale, codec::ScaleRule::kUnbiased);
}

TEST(Goals, AreSettingsOfPresets) {
  const auto expect_same = [](std::string_view word, std::string_view configuration) {
    const ConvertOptions options = parse_configuration(configuration).value().options;
    EXPECT_EQ(preset(word).value().keys, options.keys) << word;
    EXPECT_EQ(preset(word).value().values, options.values) << word;
    EXPECT_EQ(parse_configuration(word).value().is_archive, word == "archive");
  };
  expect_same("high", "k=mse:6,v=mse:5");
  expect_same("balanced", "turbo4");
  expect_same("small", "turbo3");
  expect_same("turbo", "turbo4,sink=4");
  expect_same("archive", "k=trellis:0.25,v=trellis:0.25");
  EXPECT_THAT(goal_names(), testing::ElementsAre("high", "balanced", "small", "turbo", "archive"));
}

TEST(Presets, RefuseANameThatIsNotKnownAndTellThoseThatAre) {
  const auto found = preset("turbo5");
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(found.error().message, testing::HasSubstr("\"turbo5\": not one of high, "));
  EXPECT_THAT(found.error().message, testing::HasSubstr(", turbo4, "));
  EXPECT_EQ(preset_description("turbo5"), "");
}

// Bits a value of the packed blocks, scales and all.
double bits_of(const Tensor& tensor) {
  const auto* const turbo = std::get_if<TurboTensor>(&tensor);
  if (turbo == nullptr) return 16;
  return 8.0 * static_cast<double>(turbo->packed[0].bytes.size()) / (2 * 256 * 128);
}

TEST(Presets, TakeTheBitsThatTheyAreNamedFor) {
  const std::map<std::string_view, std::pair<double, double>> expected = {
      {"turbo4", {4.125, 4.125}}, {"turbo3", {3.125, 3.125}}, {"turbo2", {2.125, 2.125}},
      {"turbo3.5", {3.5, 3.5}},   {"turbo2.5", {2.5, 2.5}},   {"k8v4", {8.125, 4.125}},
      {"k4v3", {4.125, 3.125}},   {"kfv4", {16, 4.125}},      {"prod4", {4.25, 4.25}},
      {"prod3", {3.25, 3.25}},    {"prod2", {2.25, 2.25}},    {"affine4", {4.5, 4.5}},
      {"affine8", {8.5, 8.5}},
  };
  const Cache dense = test::random_cache(1, 300, Dtype::kF16, kShape, 1);
  ASSERT_EQ(expected.size(), preset_names().size());
  for (const auto& [name, bits] : expected) {
    ConvertOptions options = preset(name).value();
    options.keys.n_sinks = options.values.n_sinks = 0;
    const Cache turbo = convert(dense, options).value();
    EXPECT_EQ(bits_of(attention(turbo, 0).k), bits.first) << name;
    EXPECT_EQ(bits_of(attention(turbo, 0).v), bits.second) << name;
  }
}

}  // namespace presets_test
}  // namespace tqcache::cache
