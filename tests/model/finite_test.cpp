// Values of a cache or of weights that overflow: an error that names layer and token, whatever the
// cache is made of, and a cache that stays as it was.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "model/fixture_model.h"
#include "model/tiny_model.h"
#include "tqcache/quantize.h"

namespace tqcache::model {
namespace finite_test {

using test::FixtureModel;
using test::must;
using test::TinyModel;
using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;

constexpr float kHuge = 3.38e38f;  // finite in f32 and bf16; infinity in f16
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Makes all values of the blocks that are not packed this one.
void fill(cache::Tensor& tensor, float value) {
  auto* turbo = std::get_if<cache::TurboTensor>(&tensor);
  cache::DenseTensor& dense = turbo != nullptr ? turbo->tail : std::get<cache::DenseTensor>(tensor);
  for (AlignedBytes& block : dense.blocks) {
    const std::vector<float> values(block.size() / dtype_size(dense.dtype), value);
    store_f32(dense.dtype, values, block.data());
  }
}

// Message: "layer 1: token 17: ...".
void expect_not_finite(const Error& error, const std::string& place) {
  EXPECT_EQ(error.code, ErrorCode::kCorrupt) << error.message;
  EXPECT_THAT(error.message, AllOf(HasSubstr(place), HasSubstr("not finite")));
}

// By one decode step, by a prompt of several tokens, and by the last token once more.
void expect_refused(const ModelConfig& config, const Weights& weights, cache::Cache cache,
                    const std::string& layer, bool keeps_windows = true) {
  const cache::Cache before = cache;
  const std::string next = layer + ": token " + std::to_string(cache.n_tokens());
  for (const std::vector<std::int32_t>& ids :
       {std::vector<std::int32_t>{1}, std::vector<std::int32_t>{1, 2, 3}}) {
    SCOPED_TRACE(ids.size());
    Decoder decoder(config, weights, 2);
    const auto logits = decoder.prefill(cache, ids);
    ASSERT_FALSE(logits.ok());
    expect_not_finite(logits.error(), next);
    EXPECT_EQ(cache.n_tokens(), before.n_tokens());
  }
  if (!keeps_windows) return;
  Decoder decoder(config, weights, 1);
  const auto again = decoder.last_logits(before);
  ASSERT_FALSE(again.ok());
  expect_not_finite(again.error(), layer + ": token " + std::to_string(before.n_tokens() - 1));
}

class FiniteValues : public testing::Test {
 protected:
  cache::Cache prefilled(std::int64_t n_tokens, Dtype dtype) const {
    cache::Cache cache = model_.make_cache(dtype);
    must(Decoder(model_.config, model_.weights, 1).prefill(cache, model_.prompt(n_tokens)));
    return cache;
  }
  static cache::AttentionLayer& last_layer(cache::Cache& cache) {
    return *cache::attention_of(cache.layers.back());
  }
  void expect_refused_by_last_layer(const cache::Cache& cache) const {
    expect_refused(model_.config, model_.weights, cache, "layer 1");
  }

  TinyModel model_;
};

// A file of such a cache passes `verify`: all of its values are finite.
TEST_F(FiniteValues, OfATurboCacheWithoutAPackedBlock) {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16, Dtype::kF16}) {
    cache::Cache cache = must(cache::convert(prefilled(10, dtype), {.n_threads = 1}));
    fill(last_layer(cache).k, kHuge);
    expect_refused_by_last_layer(cache);
  }
}

TEST_F(FiniteValues, OfATurboCacheWithPackedBlocks) {
  cache::Cache cache = must(cache::convert(prefilled(300, Dtype::kF16), {.n_threads = 1}));
  for (const float value : {kInfinity, kNan}) {
    for (const bool keys : {true, false}) {
      cache::Cache broken = cache;
      fill(keys ? last_layer(broken).k : last_layer(broken).v, value);
      expect_refused_by_last_layer(broken);
    }
  }
}

TEST_F(FiniteValues, OfADenseCache) {
  for (const float value : {kHuge, kInfinity, kNan}) {
    for (const bool keys : {true, false}) {
      cache::Cache cache = prefilled(10, Dtype::kF32);
      fill(keys ? last_layer(cache).k : last_layer(cache).v, value);
      expect_refused_by_last_layer(cache);
    }
  }
}

// An infinite key gives scores of plus or minus infinity. Minus infinity would become a weight of
// 0.
TEST_F(FiniteValues, OfScoresOfMinusInfinity) {
  const cache::Cache cache = prefilled(10, Dtype::kF32);
  for (std::size_t component = 0; component < 8; ++component) {
    for (const float value : {kInfinity, -kInfinity}) {
      cache::Cache broken = cache;
      auto& keys = std::get<cache::DenseTensor>(last_layer(broken).k);
      store_f32(Dtype::kF32, {&value, 1}, keys.blocks[0].data() + component * sizeof(float));
      expect_refused_by_last_layer(broken);
    }
  }
}

// What would become infinite in the cache never gets there.
TEST_F(FiniteValues, OfKeysAndValuesTooLargeForTheCache) {
  for (const bool keys : {true, false}) {
    const KvFilter enlarge = [&](std::int64_t layer, std::int64_t, std::span<float> k,
                                 std::span<float> v) -> Result<void> {
      if (layer == 1) (keys ? k : v).back() = 65520.0f;
      return {};
    };
    const LogitsSink sink = [](std::int64_t, std::int64_t, std::span<const float>) {};
    Decoder decoder(model_.config, model_.weights, 1);
    cache::Cache f16 = model_.make_cache(Dtype::kF16);
    const auto refused = decoder.prefill_all_logits(f16, model_.prompt(3), sink, {}, enlarge);
    ASSERT_FALSE(refused.ok());
    expect_not_finite(refused.error(),
                      keys ? "layer 1: token 1: its keys" : "layer 1: token 1: its values");
    EXPECT_EQ(test::difference(f16, model_.make_cache(Dtype::kF16)), "");
    cache::Cache bf16 = model_.make_cache(Dtype::kBF16);
    must(decoder.prefill_all_logits(bf16, model_.prompt(3), sink, {}, enlarge));
  }
}

TEST(FiniteWindows, AreRefusedOtherwise) {
  for (const char* name : {"mistral", "gemma2", "gemma3"}) {
    SCOPED_TRACE(name);
    const FixtureModel model(name);
    for (const bool turbo : {false, true}) {
      cache::Cache cache = model.make_cache();
      must(model.decoder().prefill(cache, model.ids()));
      if (turbo) {
        cache = must(cache::convert(std::move(cache),
                                    {.n_threads = 1, .windows = cache::WindowMode::kTurbo}));
      }
      for (const float value : {kNan, kInfinity, -kInfinity}) {
        cache::Cache broken = cache;
        fill(cache::attention_of(broken.layers.front())->k, value);
        expect_refused(model.config, model.weights, broken, "layer 0");
      }
    }
  }
}

TEST(FiniteStates, AreRefusedOtherwise) {
  for (const char* name : {"qwen3_next", "qwen3_5"}) {
    SCOPED_TRACE(name);
    const FixtureModel model(name);
    for (const float value : {kInfinity, kNan}) {
      for (const std::size_t i : {0u, 1u}) {
        cache::Cache cache = model.make_cache();
        must(model.decoder().prefill(cache, model.ids()));
        auto& state = std::get<cache::StateLayer>(cache.layers.front());
        const std::vector<float> values(state.arrays[i].data.size() / sizeof(float), value);
        store_f32(Dtype::kF32, values, state.arrays[i].data.data());
        expect_refused(model.config, model.weights, cache, "layer 0", false);
      }
    }
  }
}

// Every tensor of every family, with one value or with all values broken.
TEST(FiniteWeights, AreRefusedOtherwise) {
  for (const std::string& name : test::kFixtures) {
    const FixtureModel model(name);
    for (const auto& [tensor, view] : model.tensors.by_name) {
      SCOPED_TRACE(name + " " + tensor);
      Tensors tensors = model.tensors.by_name;
      // 0xff is NaN in every type of these files.
      Bytes broken(view.bytes.size(), std::byte{0xff});
      tensors[tensor].bytes = broken;
      auto weights = read_weights(tensors, model.config);
      if (!weights) continue;
      cache::Cache cache = model.make_cache(Dtype::kF16);
      Decoder decoder(model.config, *weights, 2);
      const auto logits = decoder.prefill(cache, model.ids());
      if (logits.ok()) {
        // Parts that these tokens do not use.
        EXPECT_THAT(tensor, AnyOf(HasSubstr("rope"), HasSubstr("exp")));
        EXPECT_TRUE(std::ranges::all_of(*logits, [](float x) { return std::isfinite(x); }));
        continue;
      }
      expect_not_finite(logits.error(), ": token ");
      const auto next = decoder.decode_step(cache, 1);  // may use other experts
      if (next.ok()) {
        EXPECT_THAT(tensor, HasSubstr("ffn_"));
        EXPECT_TRUE(std::ranges::all_of(*next, [](float x) { return std::isfinite(x); }));
      }
    }
  }
}

}  // namespace finite_test
}  // namespace tqcache::model
