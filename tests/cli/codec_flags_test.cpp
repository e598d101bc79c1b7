// The flags of `convert` that choose a codec: what they make, and what does not go together.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cache/random_cache.h"
#include "cli/demo.h"
#include "tqcache/quantize.h"
#include "tqcache/tqkv.h"

namespace tqcache::test {
namespace codec_flags_test {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

// Four layers of two blocks and a tail, of a model that says how it turns keys.
std::string write_dense(const TempDir& dir) {
  cache::Cache cache = random_cache(1, 600, Dtype::kF16, {2, 128}, 4);
  cache.identity.rope = {cache::RopeStyle::kHalfSplit, 128, 10000.0};
  const std::string path = (dir / "dense.kv").string();
  const auto written = format::write_cache_file(cache, path, {});
  if (!written) throw std::runtime_error(written.error().message);
  return path;
}

// What `info` says of the layers of a cache converted with these flags: groups of equal layers.
json layers_of(const std::vector<std::string>& flags) {
  const TempDir dir;
  const std::string packed = pack(write_dense(dir), flags);
  must({"verify", packed});
  return json::parse(must({"info", packed, "--json"}).out)["layers"];
}

json keys_of(const std::vector<std::string>& flags) { return layers_of(flags)[0]["k"]; }

void expect_usage_error(const std::vector<std::string>& flags,
                        const std::vector<std::string>& names) {
  const TempDir dir;
  std::vector<std::string> args = {"convert", "in.kv", (dir / "out.tqkv").string()};
  args.insert(args.end(), flags.begin(), flags.end());
  const Output output = tqcache(args);
  EXPECT_EQ(output.exit_code, 2) << output.err;
  EXPECT_THAT(output.err, StartsWith("tqcache: "));
  for (const std::string& name : names) EXPECT_THAT(output.err, HasSubstr(name));
  EXPECT_EQ(dir.entry_count(), 0u);
}

TEST(CodecFlags, DefaultIsFourBitsWithTheMeanTakenOutBeforeRope) {
  const json layers = layers_of({});
  ASSERT_EQ(layers.size(), 1u);
  for (const char* tensor : {"k", "v"}) {
    EXPECT_EQ(layers[0][tensor]["cache_type_id"], "tqcache.turbo_mse.v1");
    EXPECT_EQ(layers[0][tensor]["bits"], 4.0);
  }
  EXPECT_EQ(layers[0]["k"]["centring"], "pre_rope.v1");
  EXPECT_EQ(layers[0]["v"]["centring"], "post_rope.v1");
}

TEST(CodecFlags, EveryNameConverts) {
  for (const auto& names : {cache::preset_names(), cache::goal_names()}) {
    for (const std::string_view name : names) {
      SCOPED_TRACE(name);
      const json layers = layers_of({"--config", std::string(name)});
      EXPECT_EQ(layers.size(), 1u);
    }
  }
}

TEST(CodecFlags, TheDefaultIsTurbo4AndBits4AndBalanced) {
  const json usual = layers_of({});
  EXPECT_EQ(usual[0]["k"]["sink_tokens"], 4);
  for (const char* name : {"turbo4", "turbo", "balanced", "k=mse:4", "sink=4"}) {
    EXPECT_EQ(layers_of({"--config", name}), usual) << name;
  }
  EXPECT_EQ(layers_of({"--bits", "4"}), usual);
  EXPECT_EQ(layers_of({"--bits", "4,4"}), usual);
  EXPECT_EQ(layers_of({"--config", "small"}), layers_of({"--bits", "3"}));
  EXPECT_EQ(layers_of({"--config", "high"}), layers_of({"--bits", "6,5"}));
  EXPECT_EQ(layers_of({"--config", "turbo4,sink=0"})[0]["k"]["sink_tokens"], 0);
}

TEST(CodecFlags, BitsOfKeysAndValuesApart) {
  const json k8v4 = layers_of({"--config", "k8v4"})[0];
  EXPECT_EQ(k8v4["k"]["bits"], 8.0);
  EXPECT_EQ(k8v4["v"]["bits"], 4.0);
  EXPECT_EQ(layers_of({"--bits", "8,4"})[0], k8v4);
  const json kfv4 = layers_of({"--config", "kfv4"})[0];
  EXPECT_EQ(kfv4["k"]["cache_type_id"], "tqcache.dense.v1");
  EXPECT_EQ(kfv4["v"]["bits"], 4.0);
  EXPECT_EQ(layers_of({"--bits", "16,4"})[0], kfv4);
}

TEST(CodecFlags, OneNumberOfBitsLeavesWhatTheConfigurationKeepsDense) {
  const json both = layers_of({"--config", "kfv4", "--bits", "3"})[0];
  EXPECT_EQ(both["k"]["cache_type_id"], "tqcache.dense.v1");
  EXPECT_EQ(both["v"]["bits"], 3.0);
  const json own = layers_of({"--config", "kfv4", "--bits", "6,4"})[0];
  EXPECT_EQ(own["k"]["bits"], 6.0);
}

TEST(CodecFlags, TwoAndAHalfBitsAreAQuarterOfTheChannelsAtThree) {
  const json keys = keys_of({"--config", "turbo2.5"});
  EXPECT_EQ(keys["cache_type_id"], "tqcache.turbo_mixed.v1");
  ASSERT_EQ(keys["parts"].size(), 2u);
  EXPECT_EQ(keys["parts"][0]["size"], 32);
  EXPECT_EQ(keys["parts"][0]["bits"], 3);
  EXPECT_EQ(keys["parts"][1]["size"], 96);
  EXPECT_EQ(keys["parts"][1]["bits"], 2);
}

TEST(CodecFlags, ModesOfKeysAndValuesApart) {
  const json layer = layers_of({"--config", "k=prod:3,k.residual=orthogonal,v=affine:8:32"})[0];
  EXPECT_EQ(layer["k"]["cache_type_id"], "tqcache.turbo_prod.v1");
  EXPECT_EQ(layer["k"]["parts"][1]["rotation"], "dense_qr.v1");
  EXPECT_EQ(layer["k"]["parts"][0]["scale"], "raw.v1");
  EXPECT_EQ(layer["v"]["cache_type_id"], "tqcache.affine.v1");
  EXPECT_EQ(layer["v"]["parts"].size(), 4u);
  EXPECT_EQ(layer["v"]["bits"], 8.0);
}

TEST(CodecFlags, MixedTakesItsOwnNumbers) {
  const json keys = keys_of({"--config", "k=mixed:3:40:5"});
  EXPECT_EQ(keys["parts"][0]["size"], 40);
  EXPECT_EQ(keys["parts"][0]["bits"], 5);
  EXPECT_EQ(keys["parts"][1]["bits"], 3);
}

TEST(CodecFlags, BitsDecideWhatScalesPreserveUnlessTheConfigurationDoes) {
  const auto scale = [](const std::vector<std::string>& flags) -> std::string {
    return keys_of(flags)["parts"][0]["scale"];
  };
  EXPECT_EQ(scale({"--bits", "4"}), "unbiased.v1");
  EXPECT_EQ(scale({"--bits", "3"}), "norm.v1");
  EXPECT_EQ(scale({"--bits", "3", "--config", "scale=raw"}), "raw.v1");
  EXPECT_EQ(scale({"--config", "turbo3,scale=unbiased"}), "unbiased.v1");
  EXPECT_EQ(scale({"--config", "turbo2", "--bits", "5"}), "unbiased.v1");
  EXPECT_EQ(scale({"--config", "k=mixed:2"}), "norm.v1");
  EXPECT_EQ(scale({"--config", "k=prod:3"}), "raw.v1");
}

TEST(CodecFlags, RotationScaleSeedAndCentering) {
  const json keys =
      keys_of({"--config", "rounds=3,scale=norm,seed=7,center=none,v.rotation=dense,v.rounds=1"});
  EXPECT_EQ(keys["parts"][0]["rounds"], 3);
  EXPECT_EQ(keys["parts"][0]["scale"], "norm.v1");
  EXPECT_EQ(keys["parts"][0]["seed"], "0000000000000007");
  EXPECT_EQ(keys["centring"], "none");
}

TEST(CodecFlags, BoundaryLayersAndSinkTokens) {
  const json layers = layers_of({"--config", "boundary=1:6,sink=7"});
  ASSERT_EQ(layers.size(), 3u);
  EXPECT_EQ(layers[0]["k"]["bits"], 6.0);
  EXPECT_EQ(layers[1]["v"]["bits"], 4.0);
  EXPECT_EQ(layers[2]["v"]["bits"], 6.0);
  for (const json& layer : layers) EXPECT_EQ(layer["k"]["sink_tokens"], 7);
  EXPECT_EQ(layers_of({"--config", "boundary=1"})[0]["k"]["bits"], 8.0);
}

TEST(CodecFlags, NamesWhatDoesNotGoTogether) {
  expect_usage_error({"--config", "k=prod:4", "--bits", "1"}, {"--bits 1", "prod"});
  expect_usage_error({"--config", "k=mixed:3", "--bits", "3"}, {"--bits", "mode mixed"});
  expect_usage_error({"--config", "k=trellis:0.25", "--bits", "3"}, {"--bits", "mode trellis"});
  expect_usage_error({"--config", "k=affine:4,v=affine:4,rounds=2"}, {"rounds=2"});
  expect_usage_error({"--config", "residual=gaussian"}, {"residual=gaussian"});
  expect_usage_error({"--config", "rotation=dense,rounds=2"}, {"rotation=dense"});
  expect_usage_error({"--config", "turbo3,turbo4"}, {"turbo4", "a name stands first"});
}

TEST(CodecFlags, NumbersAndWordsOutOfRange) {
  expect_usage_error({"--bits", "9"}, {"--bits", "9"});
  expect_usage_error({"--bits", "4,0"}, {"--bits", "0"});
  expect_usage_error({"--bits", "4,3,2"}, {"--bits", "3,2"});
  expect_usage_error({"--bits", "2.5"}, {"--bits", "2.5", "--config archive"});
  expect_usage_error({"--bits", ""}, {"--bits"});
  expect_usage_error({"--config", "rounds=4"}, {"rounds=4"});
  expect_usage_error({"--config", "k=affine:4:48"}, {"affine:4:48"});
  expect_usage_error({"--config", "sink=257"}, {"sink=257"});
  expect_usage_error({"--config", "boundary=two"}, {"boundary=two"});
  expect_usage_error({"--config", "boundary=2:16"}, {"boundary=2:16"});
  expect_usage_error({"--config", "fit=all"}, {"fit=all"});
  expect_usage_error({"--config", "turbo9"}, {"--config", "turbo9", "turbo4", "archive", "f32"});
}

TEST(CodecFlags, WhatTheHeadsCannotTakeNamesTheLayer) {
  const TempDir dir;
  const std::string dense = write_dense(dir);
  const Output output =
      tqcache({"convert", dense, (dir / "out.tqkv").string(), "--config", "k=mixed:2:125:3"});
  EXPECT_NE(output.exit_code, 0);
  EXPECT_THAT(output.err, AllOf(HasSubstr("layer 0 k"), HasSubstr("125")));
  EXPECT_EQ(dir.entry_count(), 1u);
}

TEST(CodecFlags, HeadsThatAreTooSmallStayDenseUnlessBitsAreAskedFor) {
  const TempDir dir;
  const std::string dense = (dir / "dense.kv").string();
  ASSERT_TRUE(
      format::write_cache_file(random_cache(1, 600, Dtype::kF16, {2, 16}, 3), dense, {}).ok());
  const auto path = [&](const char* name) { return (dir / name).string(); };
  EXPECT_THAT(must({"convert", dense, path("a.tqkv")}).err,
              AllOf(HasSubstr("3 layers stayed dense: only a head_dim of 32 or more is quantized"),
                    testing::Not(HasSubstr("RoPE"))));
  const json diff = json::parse(must({"diff", dense, path("a.tqkv"), "--json"}).out);
  EXPECT_EQ(diff["k"]["max_abs"], 0);
  EXPECT_EQ(diff["v"]["max_abs"], 0);
  for (const std::vector<std::string>& flags : {std::vector<std::string>{"--bits", "4"},
                                                {"--config", "turbo4"},
                                                {"--config", "balanced"},
                                                {"--bits", "16,4"}}) {
    std::vector<std::string> args = {"convert", dense, path("b.tqkv")};
    args.insert(args.end(), flags.begin(), flags.end());
    const Output output = tqcache(args);
    EXPECT_EQ(output.exit_code, 21) << flags[0];
    EXPECT_THAT(output.err,
                AllOf(HasSubstr("layer 0 "), HasSubstr("head_dim 16"), HasSubstr("--bits 16")));
  }
  must({"convert", dense, path("b.tqkv"), "--bits", "16"});
}

TEST(CodecFlags, SaysWhenKeysCannotBeCenteredBeforeRope) {
  const TempDir dir;
  const std::string path = (dir / "a.kv").string();
  ASSERT_TRUE(format::write_cache_file(random_cache(1, 300), path, {}).ok());
  EXPECT_THAT(must({"convert", path, path + ".tqkv"}).err, HasSubstr("centered after RoPE"));
  EXPECT_THAT(must({"convert", path, path + ".2", "--config", "center=none"}).err,
              testing::Not(HasSubstr("RoPE")));
}

TEST(CodecFlags, MaxMemoryIsALimitOfProfilesToo) {
  const TempDir dir;
  const std::string golden = TQCACHE_GOLDEN_V2_FILES;
  const Output output =
      tqcache({"convert", golden + "/dense.tqkv", (dir / "b.tqkv").string(), "--profile",
               golden + "_predicted/small.tqprofile", "--max-memory", "100KB"});
  EXPECT_EQ(output.exit_code, 21);
  EXPECT_THAT(output.err, HasSubstr("the profile: 158566 bytes of memory, 100000 are allowed"));
}

}  // namespace codec_flags_test
}  // namespace tqcache::test
