#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "support/cache_builder.h"
#include "tqcache/quantize.h"

namespace tqcache::cache {
namespace configuration_test {

using codec::Mode;
using codec::ScaleRule;
using codec::TransformKind;
using test::must;
using testing::ElementsAre;
using testing::HasSubstr;

ConvertOptions parse(const std::string& text) { return must(parse_configuration(text)).options; }

// What counts of options, and nothing else: dense tensors are all alike.
void expect_same(const ConvertOptions& a, const ConvertOptions& b) {
  EXPECT_EQ(a.keys.dense, b.keys.dense);
  EXPECT_EQ(a.values.dense, b.values.dense);
  if (!a.keys.dense) {
    EXPECT_EQ(a.keys, b.keys);
  }
  if (!a.values.dense) {
    EXPECT_EQ(a.values, b.values);
  }
  EXPECT_EQ(a.weights, b.weights);
  EXPECT_EQ(a.windows, b.windows);
  EXPECT_EQ(a.boundary.n, b.boundary.n);
  if (a.boundary.n > 0) {
    EXPECT_EQ(a.boundary.bits, b.boundary.bits);
  }
}

void expect_text(const ConvertOptions& options, const std::string& text) {
  EXPECT_EQ(configuration_text(options), text);
  SCOPED_TRACE(text);
  expect_same(parse(text), options);
}

TEST(Configuration, IsAPreset) {
  for (const std::string_view name : preset_names()) {
    SCOPED_TRACE(name);
    const Configuration parsed = must(parse_configuration(name));
    EXPECT_EQ(parsed.name, name);
    expect_same(parsed.options, must(preset(name)));
    EXPECT_FALSE(parsed.is_dense());
    expect_text(parsed.options, std::string(name));
  }
}

TEST(Configuration, F32LeavesAllDense) {
  const Configuration parsed = must(parse_configuration("f32"));
  EXPECT_TRUE(parsed.is_dense());
  EXPECT_TRUE(parsed.options.keys.dense);
  EXPECT_TRUE(parsed.options.values.dense);
  expect_text(parsed.options, "f32");
}

TEST(Configuration, WithoutAPresetChangesTheDefault) {
  const ConvertOptions options = parse("v=mse:3");
  EXPECT_EQ(options.keys, must(preset(kDefaultPreset)).keys);
  EXPECT_EQ(options.values.codec.bits, 3);
}

TEST(Configuration, SaysWhatATensorIs) {
  const ConvertOptions plain = parse("k=mse:8,v=dense");
  EXPECT_EQ(plain.keys.codec.mode, Mode::kMse);
  EXPECT_EQ(plain.keys.codec.bits, 8);
  EXPECT_TRUE(plain.values.dense);

  const ConvertOptions prod = parse("k=prod:3");
  EXPECT_EQ(prod.keys, must(preset("prod3")).keys);
  const ConvertOptions mixed = parse("k=mixed:3,v=mixed:2:32:4");
  EXPECT_EQ(mixed.keys, must(preset("turbo3.5")).keys);
  EXPECT_EQ(mixed.values.codec.bits, 2);
  EXPECT_EQ(mixed.values.codec.outlier_channels, 32);
  EXPECT_EQ(mixed.values.codec.outlier_bits, 4);
  const ConvertOptions affine = parse("k=affine:8,v=affine:4:32");
  EXPECT_EQ(affine.keys, must(preset("affine8")).keys);
  EXPECT_EQ(affine.values.codec.group_size, 32);
  EXPECT_EQ(affine.values.center, Centering::kNone);
  const ConvertOptions archive = parse("k=trellis:0.25:map,v=trellis:1,sink=4");
  EXPECT_EQ(archive.keys.codec.mode, codec::Mode::kTrellis);
  EXPECT_EQ(archive.keys.codec.step, 0.25f);
  EXPECT_TRUE(archive.keys.fit_transforms);
  EXPECT_EQ(archive.values.codec.step, 1.0f);
  EXPECT_FALSE(archive.values.fit_transforms);
  EXPECT_EQ(archive.values.n_sinks, 4);
}

TEST(Configuration, SaysWhatIsAroundTheTensors) {
  const ConvertOptions options = parse(
      "k=mse:4,v=mixed:3,boundary=2:6,sink=4,center=post-rope,rounds=2,seed=7,scale=norm,"
      "fit=prompt");
  EXPECT_EQ(options.boundary.n, 2);
  EXPECT_EQ(options.boundary.bits, 6);
  for (const TensorPlan& tensor : {options.keys, options.values}) {
    EXPECT_EQ(tensor.n_sinks, 4);
    EXPECT_EQ(tensor.center, Centering::kPostRope);
    EXPECT_EQ(tensor.codec.rounds, 2);
    EXPECT_EQ(tensor.codec.seed, 7u);
    EXPECT_EQ(tensor.codec.scale, ScaleRule::kNorm);
  }
  EXPECT_EQ(options.fit, Fit::kPrompt);
  EXPECT_EQ(parse("turbo4").fit, Fit::kFirstBlock);
  EXPECT_EQ(parse("turbo4,fit=first").fit, Fit::kFirstBlock);
  EXPECT_EQ(parse("boundary=3").boundary.bits, 8);
  EXPECT_EQ(options.windows, WindowMode::kAsTheyAre);
  EXPECT_EQ(parse("windows=keep").windows, WindowMode::kAsTheyAre);
  EXPECT_EQ(parse("k8v4,windows=turbo").windows, WindowMode::kTurbo);
  EXPECT_EQ(parse("windows=turbo:center").windows, WindowMode::kTurboCentered);
  EXPECT_EQ(parse("turbo4,rotation=dense").keys.codec.rotation, TransformKind::kDenseQr);
  EXPECT_EQ(parse("prod4,residual=orthogonal").values.codec.residual, TransformKind::kDenseQr);
}

TEST(Configuration, ChangesOneTensor) {
  const ConvertOptions options = parse("turbo4,k.center=none,v.sink=8");
  EXPECT_EQ(options.keys.center, Centering::kNone);
  EXPECT_EQ(options.values.center, Centering::kPreRope);
  EXPECT_EQ(options.keys.n_sinks, kDefaultSinks);
  EXPECT_EQ(options.values.n_sinks, 8);
}

TEST(Configuration, DoesNotDependOnTheOrderOfItems) {
  const ConvertOptions options = parse("k=affine:4,center=post-rope,k.center=pre-rope");
  EXPECT_EQ(options.keys.center, Centering::kPreRope);
  EXPECT_EQ(options.values.center, Centering::kPostRope);
  expect_same(parse("k.center=pre-rope,center=post-rope,k=affine:4"), options);
}

// As the flags of convert have it: what is said of both is said of the tensor that can have it.
TEST(Configuration, LeavesATensorAloneThatCannotHaveAnItem) {
  const ConvertOptions half_dense = parse("kfv4,sink=4");
  EXPECT_TRUE(half_dense.keys.dense);
  EXPECT_EQ(half_dense.values.n_sinks, 4);
  const ConvertOptions half_affine = parse("k=mse:4,v=affine:4,rounds=3");
  EXPECT_EQ(half_affine.keys.codec.rounds, 3);
  EXPECT_EQ(half_affine.values.codec.rounds, 1);
}

TEST(Configuration, RefusesWhatItDoesNotKnow) {
  const std::vector<std::pair<std::string, std::vector<std::string>>> refused = {
      {"", {"without a word"}},
      {"turbo5", {"\"turbo5\"", "turbo4", "f32"}},
      {"turbo4,", {"\"\"", "NAME=VALUE"}},
      {"sink=4,turbo4", {"\"turbo4\"", "a name stands first"}},
      {"turbo4,turbo3", {"\"turbo3\"", "a name stands first"}},
      {"turbo4;turbo3", {"turbo4;turbo3", "several"}},
      {"skin=4", {"skin=4: not one of k, v, boundary, sink"}},
      {"k.boundary=2", {"k.boundary=2: not one of"}},
      {"sink=4,sink=5", {"sink=5: given twice"}},
      {"k=mse:4,k=mse:4", {"k=mse:4: given twice"}},
      {"k=", {"k=:  is none of dense, mse:1"}},
      {"k=mse", {"k=mse: mse is none of"}},
      {"k=mse:0", {"mse:0 is none of"}},
      {"k=trellis", {"trellis is none of"}},
      {"k=trellis:0", {"trellis:0 is none of"}},
      {"k=trellis:9", {"trellis:9 is none of"}},
      {"k=trellis:nan", {"trellis:nan is none of"}},
      {"k=trellis:1:maps", {"trellis:1:maps is none of"}},
      {"k=mse:9", {"mse:9 is none of"}},
      {"k=mse:4:4", {"mse:4:4 is none of"}},
      {"k=mse:4x", {"mse:4x is none of"}},
      {"k=mse:-4", {"mse:-4 is none of"}},
      {"k=mean:4", {"mean:4 is none of"}},
      {"k=prod:1", {"prod:1 is none of"}},
      {"k=prod:3:1", {"prod:3:1 is none of"}},
      {"k=mixed:8", {"mixed:8 is none of"}},
      {"k=mixed:3:32", {"mixed:3:32 is none of"}},
      {"k=mixed:3:32:3", {"mixed:3:32:3 is none of"}},
      {"k=mixed:3:2000:4", {"mixed:3:2000:4 is none of"}},
      {"k=affine:4:48", {"affine:4:48 is none of"}},
      {"k=affine:4:64:2", {"affine:4:64:2 is none of"}},
      {"k=dense:4", {"dense:4 is none of"}},
      {"boundary=x", {"boundary=x", "number of layers"}},
      {"weights=1", {"weights=1", "of keys or of values"}},
      {"k.weights=1", {"k.weights=1", "not of mode trellis"}},
      {"k=dense,k.weights=1", {"k.weights=1", "not of mode trellis"}},
      {"k=trellis:1,k.weights=1:x", {"\"x\" is not 0, nor from 0.125 to 8"}},
      {"k=trellis:1,k.weights=", {"\"\" is not 0"}},
      {"k=trellis:1,k.weights=1:0.1", {"\"0.1\" is not 0"}},
      {"k=trellis:1,k.weights=9", {"\"9\" is not 0"}},
      {"k=trellis:1,k.weights=nan", {"\"nan\" is not 0"}},
      {"k=trellis:1,k.weights=-1", {"\"-1\" is not 0"}},
      {"boundary=2:9", {"boundary=2:9"}},
      {"boundary=2:", {"boundary=2:"}},
      {"boundary=2000", {"boundary=2000"}},
      {"windows=dense", {"windows=dense", "dense is none of keep, turbo, turbo:center"}},
      {"k.windows=turbo", {"k.windows=turbo: not one of"}},
      {"sink=257", {"sink=257: 257 is not 0 to 256"}},
      {"sink=-1", {"sink=-1: -1 is not 0 to 256"}},
      {"center=mean", {"mean is none of pre-rope, post-rope, none"}},
      {"rotation=none", {"none is none of hadamard, dense"}},
      {"rounds=4", {"4 is not 1 to 3"}},
      {"rotation=dense,rounds=2", {"rounds do not go with rotation=dense"}},
      {"seed=18446744073709551616", {"not a number below 2^64"}},
      {"scale=peak", {"peak is none of unbiased, norm, raw"}},
      {"prod4,residual=hadamard", {"hadamard is none of gaussian, orthogonal"}},
      {"turbo3.5,fit=all", {"all is none of first, prompt"}},
      {"turbo3.5,k.fit=prompt", {"k.fit=prompt: not one of", "fit"}},
      {"f32,sink=4", {"sink=4: nothing of this configuration has that"}},
      {"turbo4,residual=gaussian", {"residual=gaussian: nothing"}},
      {"affine4,rounds=2", {"rounds=2: nothing"}},
      {"kfv4,k.sink=2", {"k.sink=2: nothing"}},
  };
  for (const auto& [text, words] : refused) {
    SCOPED_TRACE(text);
    const auto parsed = parse_configuration(text);
    ASSERT_FALSE(parsed);
    EXPECT_EQ(parsed.error().code, ErrorCode::kInvalidArgument);
    for (const std::string& word : words) EXPECT_THAT(parsed.error().message, HasSubstr(word));
  }
}

std::vector<std::string> names_of(const std::string& text) {
  std::vector<std::string> names;
  for (const Configuration& each : must(parse_configurations(text))) names.push_back(each.name);
  return names;
}

TEST(Configurations, BeginWithAName) {
  EXPECT_THAT(names_of("turbo4"), ElementsAre("turbo4"));
  EXPECT_THAT(names_of("f32,turbo4,kfv4"), ElementsAre("f32", "turbo4", "kfv4"));
  EXPECT_THAT(names_of("f32,turbo4,sink=4,center=none,kfv4"),
              ElementsAre("f32", "turbo4,sink=4,center=none", "kfv4"));
  EXPECT_THAT(names_of("k=mse:4,v=mse:3,turbo3"), ElementsAre("k=mse:4,v=mse:3", "turbo3"));
}

TEST(Configurations, ArePartedBySemicolonsIfThereIsOne) {
  EXPECT_THAT(names_of("k=mse:4;k=mse:3,v=mse:3;turbo4,sink=2"),
              ElementsAre("k=mse:4", "k=mse:3,v=mse:3", "turbo4,sink=2"));
}

TEST(Configurations, RefuseEveryWrongOne) {
  for (const std::string text : {"", "turbo4,,turbo3", "turbo4;", ";", "turbo4,turbo5",
                                 "turbo4;turbo3,turbo2", "turbo4,sink=4,sink=4"}) {
    SCOPED_TRACE(text);
    const auto parsed = parse_configurations(text);
    ASSERT_FALSE(parsed);
    EXPECT_EQ(parsed.error().code, ErrorCode::kInvalidArgument);
  }
}

TEST(ConfigurationText, IsTheShortestThatMeansTheSame) {
  expect_text({}, "sink=0");
  expect_text(parse("turbo4"), "turbo4");
  expect_text(parse("turbo"), "turbo4");
  expect_text(parse("high"), "k=mse:6,v=mse:5");
  expect_text(parse("archive"), "k=trellis:0.25,v=trellis:0.25");
  EXPECT_EQ(configuration_text(parse("lossless")), "lossless");
  expect_text(parse("turbo4,v=mse:3"), "k4v3");
  expect_text(parse("k=mse:3,v=mse:3"), "turbo3");
  expect_text(parse("k=mse:3,v=mse:3,scale=unbiased"), "turbo3,scale=unbiased");
  expect_text(parse("k=mixed:2,v=mixed:2"), "turbo2.5");
  expect_text(parse("k=dense"), "kfv4");
  expect_text(parse("k=mse:4,v=dense"), "v=dense");
  expect_text(parse("turbo4,k.sink=0,v.sink=0"), "sink=0");
  expect_text(parse("turbo4,k.sink=4,v.sink=4"), "turbo4");
  expect_text(parse("kfv4,center=none"), "kfv4,center=none");
  expect_text(parse("turbo3,center=none,boundary=2"), "turbo3,boundary=2,center=none");
  expect_text(parse("boundary=1:6"), "boundary=1:6");
  expect_text(parse("boundary=0:6"), "turbo4");
  expect_text(parse("windows=keep"), "turbo4");
  expect_text(parse("turbo4,sink=3,windows=turbo"), "windows=turbo,sink=3");
  expect_text(parse("turbo4,k.center=none"), "k.center=none");
}

TEST(ConfigurationText, IsReadToTheSameOptions) {
  for (const std::string text :
       {"k=mixed:3:32:5,v=affine:4:32,fit=prompt", "prod3,residual=orthogonal",
        "turbo2,rotation=dense,seed=18446744073709551615", "k=mse:1,v=prod:8,scale=norm",
        "k=affine:3:128,v=dense,boundary=1024:1,windows=turbo:center",
        "k8v4,k.rounds=3,v.scale=raw,sink=256", "k=trellis:0.2333:map,v=trellis:0.5,v.rounds=2",
        "k=trellis:0.25:map,v=trellis:0.25:map,sink=4,k.weights=0.8:1.25,v.weights=1:0",
        "k=trellis:0.25,v=dense,k.weights=0.333", "turbo2.5,fit=prompt,v.seed=0",
        "affine4,center=pre-rope", "prod4,scale=unbiased,k.center=none,v.center=post-rope"}) {
    SCOPED_TRACE(text);
    const ConvertOptions options = parse(text);
    const std::string again = configuration_text(options);
    EXPECT_LE(again.size(), text.size());
    expect_text(options, again);
  }
}

}  // namespace configuration_test
}  // namespace tqcache::cache
