#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "cache/random_cache.h"
#include "support/matchers.h"
#include "tqcache/quantize.h"

namespace tqcache::cache {
namespace plan_test {

using test::attention;
using testing::HasSubstr;

constexpr Rope kRope{RopeStyle::kHalfSplit, 64, 1e6};

// Attention layers of head_dim 64 with an arrays layer before each of them.
Cache hybrid_cache(std::size_t n_attention, std::int64_t n_tokens = 0) {
  Cache cache = test::random_cache(1, n_tokens, Dtype::kF16, {2, 64}, n_attention);
  cache.identity.rope = kRope;
  std::vector<Layer> layers;
  for (Layer& layer : cache.layers) {
    layers.emplace_back(StateLayer{});
    layers.push_back(std::move(layer));
  }
  cache.layers = std::move(layers);
  return cache;
}

std::vector<int> key_bits(const std::vector<TensorPlan>& plans) {
  std::vector<int> bits;
  for (std::size_t i = 0; i < plans.size(); i += 2) {
    bits.push_back(plans[i].dense ? 16 : plans[i].codec.bits);
  }
  return bits;
}

TEST(PlanLayers, SettlesHeadDimAndCenteringOfKeysAndValues) {
  const std::vector<TensorPlan> plans = plan_layers(describe(hybrid_cache(1)), {}).value();
  ASSERT_EQ(plans.size(), 4u);
  EXPECT_TRUE(plans[0].dense && plans[1].dense);  // an arrays layer
  EXPECT_FALSE(plans[2].dense || plans[3].dense);
  EXPECT_EQ(plans[2].codec.head_dim, 64);
  EXPECT_EQ(plans[2].center, Centering::kPreRope);
  EXPECT_EQ(plans[3].center, Centering::kPostRope);
}

// Layers 1 and 3 have attention, and one kv head fewer than two would give them 128 factors.
Calibration calibration_of(std::size_t n) {
  Calibration calibration;
  calibration.key_factors = {
      {}, std::vector<std::int8_t>(n, 4), {}, std::vector<std::int8_t>(n, 5)};
  return calibration;
}

ConvertOptions calibrated(std::string_view configuration, Calibration calibration) {
  ConvertOptions options = parse_configuration(configuration).value().options;
  options.calibration = std::make_shared<const Calibration>(std::move(calibration));
  return options;
}

TEST(PlanLayers, TakesTheFactorsOfACalibrationForKeysAlone) {
  const CacheDesc cache = describe(hybrid_cache(2));
  for (const char* const word : {"turbo4", "prod3", "turbo2.5", "center=post-rope"}) {
    const auto plans = plan_layers(cache, calibrated(word, calibration_of(128))).value();
    EXPECT_EQ(plans[2].factors, std::vector<std::int8_t>(128, 4)) << word;
    EXPECT_EQ(plans[6].factors, std::vector<std::int8_t>(128, 5)) << word;
    EXPECT_TRUE(plans[3].factors.empty() && plans[7].factors.empty());
  }
  for (const char* const word : {"affine4", "center=none", "k=trellis:0.25"}) {
    const auto plans = plan_layers(cache, calibrated(word, calibration_of(128))).value();
    EXPECT_TRUE(plans[2].factors.empty()) << word;
  }
}

TEST(PlanLayers, RefusesACalibrationOfAnotherModel) {
  const CacheDesc cache = describe(hybrid_cache(2));
  const auto expect_refused = [](const CacheDesc& of, const Calibration& by, const char* words) {
    EXPECT_THAT(plan_layers(of, calibrated("turbo4", by)),
                test::FailsWith(ErrorCode::kMismatch, HasSubstr(words)));
  };
  expect_refused(cache, calibration_of(64), "layer 1 of the cache has other heads");
  expect_refused(describe(hybrid_cache(1)), calibration_of(128), "it has 4 layers");
  Calibration named = calibration_of(128);
  named.weights_fingerprint.fill(std::byte{3});
  CacheDesc other = cache;
  other.identity.weights_fingerprint.fill(std::byte{4});
  expect_refused(other, named, "the weights fingerprint is 0303");
  // What a cache does not say is not compared.
  other.identity.weights_fingerprint = {};
  EXPECT_TRUE(plan_layers(other, calibrated("turbo4", named)).ok());
}

TEST(PlanLayers, KeepsPackedKeysWithTheirFactorsAlone) {
  Cache cache = hybrid_cache(2, 256);
  const auto with = calibrated("turbo4", calibration_of(128));
  const Cache packed = convert(cache, with).value();
  EXPECT_TRUE(plan_layers(describe(packed), with).ok());
  const auto without = plan_layers(describe(packed), preset("turbo4").value());
  ASSERT_FALSE(without.ok());
  EXPECT_THAT(without.error().message, HasSubstr("packed already"));
  EXPECT_NE(factors_digest(describe(packed).layers), Sha256{});
  EXPECT_EQ(factors_digest(describe(cache).layers), Sha256{});
}

TEST(PlanLayers, SaysWhenKeysCannotBeCenteredBeforeRope) {
  Cache cache = hybrid_cache(1);
  cache.identity.rope.style = RopeStyle::kNone;
  EXPECT_EQ(plan_layers(describe(cache), {}).value()[2].center, Centering::kPostRope);
}

TEST(PlanLayers, TakesAQuarterOfTheChannelsWhereNoNumberIsGiven) {
  ConvertOptions options = preset("turbo2.5").value();
  options.values.codec.outlier_channels = 24;
  const std::vector<TensorPlan> plans = plan_layers(describe(hybrid_cache(1)), options).value();
  EXPECT_EQ(plans[2].codec.outlier_channels, 16);
  EXPECT_EQ(plans[3].codec.outlier_channels, 24);
}

TEST(PlanLayers, GivesMoreBitsToTheFirstAndLastAttentionLayers) {
  ConvertOptions options = preset("turbo2").value();
  options.boundary = {1, 6};
  EXPECT_EQ(key_bits(plan_layers(describe(hybrid_cache(4)), options).value()),
            (std::vector<int>{16, 6, 16, 2, 16, 2, 16, 6}));
  options.boundary.n = 2;
  EXPECT_EQ(key_bits(plan_layers(describe(hybrid_cache(4)), options).value()),
            (std::vector<int>{16, 6, 16, 6, 16, 6, 16, 6}));
  options.boundary.n = 1000;
  EXPECT_EQ(key_bits(plan_layers(describe(hybrid_cache(3)), options).value()),
            (std::vector<int>{16, 6, 16, 6, 16, 6}));
}

TEST(PlanLayers, HasModeMseInBoundaryLayersAndDenseTensorsStayDense) {
  ConvertOptions options = preset("kfv4").value();
  options.values = preset("prod3").value().values;
  options.values.n_sinks = 4;
  options.values.codec.seed = 99;
  options.boundary = {1, 8};
  const std::vector<TensorPlan> plans = plan_layers(describe(hybrid_cache(3)), options).value();
  EXPECT_TRUE(plans[2].dense);
  EXPECT_EQ(plans[3].codec.mode, codec::Mode::kMse);
  EXPECT_EQ(plans[3].codec.bits, 8);
  EXPECT_EQ(plans[3].codec.scale, codec::ScaleRule::kUnbiased);
  EXPECT_EQ(plans[3].codec.seed, 99u);
  EXPECT_EQ(plans[3].n_sinks, 4);
  EXPECT_EQ(plans[7].codec.mode, codec::Mode::kProd);
}

ConvertOptions weighted(std::vector<float> keys, std::vector<float> values = {}) {
  ConvertOptions options;
  options.keys.codec = {.mode = codec::Mode::kTrellis, .step = 0.5f};
  options.values.codec = {.mode = codec::Mode::kTrellis, .step = 0.25f};
  options.weights = {std::move(keys), std::move(values)};
  return options;
}

TEST(PlanLayers, MultipliesStepsByTheWeightsOfTheirLayers) {
  // Of layers of arrays the weights mean nothing.
  const std::vector<TensorPlan> plans =
      plan_layers(describe(hybrid_cache(2)), weighted({1, 2, 8, 0.5f}, {1, 0.75f, 1, 0})).value();
  EXPECT_EQ(plans[2].codec.step, 1.0f);
  EXPECT_EQ(plans[3].codec.step, 0.1875f);
  EXPECT_EQ(plans[6].codec.step, 0.25f);
  EXPECT_TRUE(plans[7].dense);
  const std::vector<TensorPlan> keys =
      plan_layers(describe(hybrid_cache(2)), weighted({1, 2, 1, 2})).value();
  EXPECT_EQ(keys[3].codec.step, 0.25f);
  EXPECT_EQ(keys[7].codec.step, 0.25f);
}

TEST(PlanLayers, KeepsWeightedStepsWithinWhatStepsMayBe) {
  ConvertOptions options = weighted({1, 8, 1, 0.125f});
  options.keys.codec.step = 4;
  EXPECT_EQ(plan_layers(describe(hybrid_cache(2)), options).value()[2].codec.step, codec::kMaxStep);
  options.keys.codec.step = 0.02f;
  EXPECT_EQ(plan_layers(describe(hybrid_cache(2)), options).value()[6].codec.step, codec::kMinStep);
}

TEST(PlanLayers, WeighsNothingThatHasNoStep) {
  ConvertOptions options = weighted({1, 2, 1, 2}, {1, 2, 1, 2});
  options.boundary = {1, 8};
  options.values = preset("turbo3").value().values;
  const std::vector<TensorPlan> plans = plan_layers(describe(hybrid_cache(2)), options).value();
  EXPECT_EQ(plans[2].codec.mode, codec::Mode::kMse);
  EXPECT_EQ(plans[3].codec.bits, 8);
}

TEST(PlanLayers, IsWhatConvertDoes) {
  ConvertOptions options = preset("turbo3").value();
  options.boundary = {1, 8};
  options.keys.n_sinks = 2;
  const Cache dense = hybrid_cache(3, 300);
  const std::vector<TensorPlan> plans = plan_layers(describe(dense), options).value();
  const Cache turbo = convert(dense, options).value();
  EXPECT_TRUE(validate(turbo));
  for (const std::size_t layer : {1u, 3u, 5u}) {
    const auto& k = std::get<TurboTensor>(attention(turbo, layer).k);
    EXPECT_EQ(k.codec.parts()[0].bits, plans[2 * layer].codec.bits);
    EXPECT_EQ(k.codec.centering(), plans[2 * layer].center);
    EXPECT_EQ(k.codec.n_sinks(), 2);
  }
  EXPECT_TRUE(plan_layers(describe(turbo), options));  // the same again: as it is
  EXPECT_THAT(plan_layers(describe(turbo), {}).error().message,
              HasSubstr("layer 1 k: is packed already"));
  ConvertOptions kept;
  kept.keep_all = true;
  const std::vector<TensorPlan> none = plan_layers(describe(turbo), kept).value();
  EXPECT_TRUE(std::ranges::all_of(none, [](const TensorPlan& plan) { return plan.dense; }));
}

TEST(PlanLayers, RefusesWhatIsOutOfRange) {
  const auto refusal = [](auto change) {
    ConvertOptions options;
    change(options);
    const auto planned = plan_layers(describe(hybrid_cache(2)), options);
    EXPECT_FALSE(planned);
    return planned ? Error{ErrorCode::kIo, "none"} : planned.error();
  };
  const Error errors[] = {
      refusal([](ConvertOptions& o) { o.keys.codec.bits = 9; }),
      refusal([](ConvertOptions& o) { o.values.n_sinks = 257; }),
      refusal([](ConvertOptions& o) { o.values.n_sinks = -1; }),
      refusal([](ConvertOptions& o) { o.boundary.n = -1; }),
      refusal([](ConvertOptions& o) {
        o.boundary = {1, 16};
      }),
      refusal([](ConvertOptions& o) {
        o.weights.keys = {1, 1, 1};
      }),
      refusal([](ConvertOptions& o) {
        o.weights.values = {1, 1, 1, 9};
      }),
      refusal([](ConvertOptions& o) {
        o.weights.values = {1, 1, 1, -1};
      }),
      refusal([](ConvertOptions& o) {
        o.weights.values = {1, 1, 1, std::nanf("")};
      }),
  };
  for (const Error& error : errors) EXPECT_EQ(error.code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(errors[0].message, "keys: 9 bits");
  EXPECT_EQ(errors[1].message, "values: 257 sink tokens");
  EXPECT_EQ(errors[5].message, "3 weights of steps for 4 layers");
  EXPECT_THAT(errors[6].message, HasSubstr("times as wide"));
}

TEST(PlanLayers, KeepsHeadsThatAreTooSmallForACodecWhereThatIsWanted) {
  Cache cache = test::random_cache(1, 2, Dtype::kF16, {2, 31}, 1);
  cache.layers.push_back(test::random_cache(1, 2, Dtype::kF16, {2, 32}, 1).layers[0]);
  ConvertOptions options;
  EXPECT_THAT(
      plan_layers(describe(cache), options),
      test::FailsWith(ErrorCode::kUnsupported,
                      "layer 0 k: head_dim 31: outside 32 to 1024; it can stay dense (--bits 16)"));
  options.keys.keep_small_heads = options.values.keep_small_heads = true;
  const std::vector<TensorPlan> plans = plan_layers(describe(cache), options).value();
  EXPECT_TRUE(plans[0].dense && plans[1].dense);
  EXPECT_FALSE(plans[2].dense || plans[3].dense);
  options.values.keep_small_heads = false;
  EXPECT_THAT(plan_layers(describe(cache), options).error().message, HasSubstr("layer 0 v: "));
}

TEST(PlanLayers, NamesTheLayerWhoseSizesDoNotGoTogether) {
  const auto refusal = [](auto change) {
    ConvertOptions options;
    change(options.values.codec);
    const auto planned = plan_layers(describe(hybrid_cache(2)), options);
    EXPECT_FALSE(planned);
    return planned ? Error{ErrorCode::kIo, "none"} : planned.error();
  };
  for (const Error& error : {refusal([](codec::CodecSpec& spec) {
                               spec.mode = codec::Mode::kMixed;
                               spec.outlier_bits = 5;
                               spec.outlier_channels = 64;
                             }),
                             refusal([](codec::CodecSpec& spec) {
                               spec.mode = codec::Mode::kAffine;
                               spec.group_size = 128;
                             }),
                             refusal([](codec::CodecSpec& spec) {
                               spec.mode = codec::Mode::kProd;
                               spec.bits = 1;
                             })}) {
    EXPECT_EQ(error.code, ErrorCode::kUnsupported);
    EXPECT_THAT(error.message, HasSubstr("layer 1 v: "));
  }
}

TEST(KvTables, AreSharedByCodecs) {
  const KvTables tables(kRope);
  const auto make = [&](codec::BlockOrder order) {
    return make_codec({}, order, {2, 64}, Dtype::kF16, tables).value();
  };
  const KvCodec a = make(codec::BlockOrder::kKeys), b = make(codec::BlockOrder::kKeys);
  EXPECT_NE(a.state().mean.rope, nullptr);
  EXPECT_EQ(a.state().mean.rope, b.state().mean.rope);
  EXPECT_EQ(a.parts().data(), b.parts().data());
  const KvCodec values = make(codec::BlockOrder::kValues);
  EXPECT_EQ(values.order(), codec::BlockOrder::kValues);
  EXPECT_EQ(values.state().mean.rope, nullptr);
  // A description gives the same tables as a plan.
  const KvCodec described =
      KvCodec::make(a.describe(), a.shape(), codec::BlockOrder::kKeys, tables).value();
  EXPECT_EQ(described.parts().data(), a.parts().data());
  EXPECT_EQ(described.state().mean.rope, a.state().mean.rope);
}

}  // namespace plan_test
}  // namespace tqcache::cache
