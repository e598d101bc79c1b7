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

TEST(Presets, TheDefaultIsThatOfConvertOptions) {
  const ConvertOptions options = preset(kDefaultPreset).value();
  EXPECT_EQ(options.keys, ConvertOptions{}.keys);
  EXPECT_EQ(options.values, ConvertOptions{}.values);
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

TEST(Qualities, AreSixAndFiveBitsTheDefaultAndThreeWithSinks) {
  const auto expect_same = [](std::string_view word, std::string_view configuration) {
    const ConvertOptions options = parse_configuration(configuration).value().options;
    EXPECT_EQ(quality(word).value().keys, options.keys) << word;
    EXPECT_EQ(quality(word).value().values, options.values) << word;
  };
  expect_same("high", "k=mse:6,v=mse:5,sink=4");
  expect_same("balanced", "turbo4,sink=4");
  expect_same("small", "turbo3,sink=4");
  EXPECT_EQ(kDefaultConfiguration, "turbo4,sink=" + std::to_string(kDefaultSinks));
  EXPECT_THAT(quality_words(), testing::ElementsAre("high", "balanced", "small"));
}

TEST(Qualities, RefuseAWordThatIsNotKnownAndTellThoseThatAre) {
  const auto found = quality("best");
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(found.error().message, "quality \"best\": not one of high, balanced, small");
}

TEST(Presets, RefuseANameThatIsNotKnownAndTellThoseThatAre) {
  const auto found = preset("turbo5");
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(found.error().message, testing::HasSubstr("\"turbo5\": not one of turbo4, "));
  EXPECT_EQ(preset_description("turbo5"), "");
}

// Bits a value of the packed blocks, scales and all.
double bits_of(const Side& side) {
  const auto* const turbo = std::get_if<TurboSide>(&side);
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
    const Cache turbo = convert(dense, preset(name).value()).value();
    EXPECT_EQ(bits_of(attention(turbo, 0).k), bits.first) << name;
    EXPECT_EQ(bits_of(attention(turbo, 0).v), bits.second) << name;
  }
}

}  // namespace presets_test
}  // namespace tqcache::cache
