#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "cache/random_cache.h"
#include "model/tiny_model.h"
#include "support/demo_model.h"
#include "tqcache/cache.h"
#include "tqcache/decoder.h"
#include "tqcache/eval.h"
#include "tqcache/eval/attention_error.h"
#include "tqcache/quantize.h"

namespace tqcache::eval {
namespace cache_error_test {

using test::demo_model;
using test::must;
using test::TinyModel;

// One kv head, head_dim 32, of which only the first component counts.
cache::AttentionLayer layer_of(const std::vector<float>& keys, const std::vector<float>& values) {
  cache::AttentionLayer layer{
      {1, 32}, cache::DenseTensor{Dtype::kF32, {}}, cache::DenseTensor{Dtype::kF32, {}}};
  for (std::size_t i = 0; i < keys.size(); ++i) {
    std::vector<float> k(32), v(32);
    k[0] = keys[i];
    v[0] = values[i];
    cache::append(layer.k, layer.shape, static_cast<std::int64_t>(i), k);
    cache::append(layer.v, layer.shape, static_cast<std::int64_t>(i), v);
  }
  return layer;
}

AttentionError error_of(const cache::AttentionLayer& a, const cache::AttentionLayer& b,
                        std::int64_t n_tokens, const std::vector<float>& q, std::int64_t n) {
  std::vector<float> queries(static_cast<std::size_t>(n) * 32);
  for (std::int64_t i = 0; i < n; ++i) {
    // The score is q * key.
    queries[static_cast<std::size_t>(i) * 32] = q[static_cast<std::size_t>(i)] * std::sqrt(32.0f);
  }
  return attention_errors({a, n_tokens, b, n_tokens}, {n_tokens - n, n, queries}, 1).at(0);
}

TEST(AttentionErrors, AreThoseOfSoftmaxByHand) {
  const double ln3 = std::log(3.0);
  const auto a = layer_of({0, 0}, {1, 2});
  const auto b = layer_of({0, static_cast<float>(ln3)}, {1, 2});  // weights 1/4 and 3/4
  const AttentionError error = error_of(a, b, 2, {1}, 1);
  EXPECT_NEAR(error.weights_kl, 0.5 * std::log(0.5 / 0.25) + 0.5 * std::log(0.5 / 0.75), 1e-6);
  EXPECT_NEAR(error.output_error, 0.25 * 0.25 / (1.5 * 1.5), 1e-6);
  EXPECT_EQ(error.n_queries, 1);
}

TEST(AttentionErrors, OfValuesAloneLeaveTheWeights) {
  const auto a = layer_of({1, 2, 3}, {1, 1, 1});
  const auto b = layer_of({1, 2, 3}, {1.1f, 1.1f, 1.1f});
  const AttentionError error = error_of(a, b, 3, {1}, 1);
  EXPECT_NEAR(error.weights_kl, 0, 1e-12);
  EXPECT_NEAR(error.output_error, 0.01, 1e-6);
}

TEST(AttentionErrors, AreZeroForTheSameCache) {
  const auto a = layer_of({1, -2, 30}, {1, 5, -3});
  const AttentionError error = error_of(a, a, 3, {1, 7}, 2);
  EXPECT_EQ(error.weights_kl, 0);
  EXPECT_EQ(error.output_error, 0);
  EXPECT_EQ(error.n_queries, 2);
}

TEST(AttentionErrors, LookNoFurtherThanTheQuery) {
  const auto a = layer_of({1, 2, 3}, {1, 5, -3});
  const auto b = layer_of({1, 2, 9}, {1, 5, 9});
  std::vector<float> queries(2 * 32, 1.0f);
  const auto errors = attention_errors({a, 3, b, 3}, {0, 2, queries}, 1);
  EXPECT_EQ(errors.at(0).weights_kl, 0);
  EXPECT_EQ(errors.at(0).output_error, 0);
}

TEST(AttentionErrors, HoldLargeScores) {
  const auto a = layer_of({500, -500}, {1, 2});
  const auto b = layer_of({500, 499}, {1, 2});
  const AttentionError error = error_of(a, b, 2, {2}, 1);
  EXPECT_NEAR(error.weights_kl, std::log(1 + std::exp(-2.0)), 1e-5);
}

TEST(Queries, AreThoseThatTheDecoderAskedWhenItAppended) {
  const TinyModel model;
  model::Decoder decoder(model.config, model.weights, 1);
  cache::Cache cache = model.make_cache(Dtype::kF32);
  const auto ids = model.prompt(300);
  must(decoder.prefill(cache, ids));
  std::vector<std::vector<float>> all, last;
  const auto keep_in = [](std::vector<std::vector<float>>& to) {
    return [&to](std::int64_t, std::span<const float> q) -> Result<void> {
      to.emplace_back(q.begin(), q.end());
      return {};
    };
  };
  must(decoder.queries(cache, 256, 44, keep_in(all)));
  must(decoder.queries(cache, 299, 1, keep_in(last)));
  ASSERT_EQ(all.size(), 2u);
  const std::size_t row = static_cast<std::size_t>(model.config.n_heads * model.config.head_dim);
  for (std::size_t layer = 0; layer < 2; ++layer) {
    ASSERT_EQ(all[layer].size(), 44 * row);
    ASSERT_EQ(last[layer].size(), row);
    for (std::size_t i = 0; i < row; ++i) {
      EXPECT_NEAR(all[layer][43 * row + i], last[layer][i], 2e-4);
    }
  }
  EXPECT_EQ(cache.n_tokens(), 300);
}

TEST(Queries, EndWithTheErrorOfWhoTakesThem) {
  const TinyModel model;
  model::Decoder decoder(model.config, model.weights, 1);
  cache::Cache cache = model.make_cache();
  must(decoder.prefill(cache, model.prompt(20)));
  const auto done = decoder.queries(cache, 10, 10, [](std::int64_t, std::span<const float>) {
    return Result<void>(Error{ErrorCode::kInterrupted, "enough"});
  });
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().message, "enough");
}

TEST(Queries, NeedTheTokens) {
  const TinyModel model;
  model::Decoder decoder(model.config, model.weights, 1);
  cache::Cache cache = model.make_cache();
  must(decoder.prefill(cache, model.prompt(20)));
  cache::hide_tokens(cache);
  const auto done = decoder.queries(cache, 10, 10, {});
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().code, ErrorCode::kUnsupported);
}

// Of the bundled model, over the beginning of its text.
class CacheError : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    model::Decoder decoder(demo_model(), 2);
    dense_ = must(model::make_cache(demo_model(), Dtype::kF16));
    auto ids = test::encode(test::excerpt_text());
    ids.resize(600);
    must(decoder.prefill(dense_, ids));
  }
  static cache::Cache packed(std::string_view preset) {
    return must(cache::convert(dense_, must(cache::preset(preset))));
  }
  static std::vector<LayerAttentionError> errors(const cache::Cache& b) {
    return must(attention_errors(demo_model(), dense_, b, 16, 2));
  }
  static double mean_of(const std::vector<LayerAttentionError>& layers,
                        double AttentionError::*field) {
    double sum = 0;
    for (const LayerAttentionError& layer : layers) {
      for (const AttentionError& head : layer.heads) sum += head.*field;
    }
    return sum;
  }

  inline static cache::Cache dense_;
};

TEST_F(CacheError, GrowsAsBitsGetFewer) {
  const auto four = errors(packed("turbo4"));
  const auto two = errors(packed("turbo2"));
  ASSERT_EQ(four.size(), 8u);
  EXPECT_EQ(four[3].layer, 3);
  ASSERT_EQ(four[3].heads.size(), 4u);
  EXPECT_EQ(four[3].heads[0].n_queries, 16);
  for (double AttentionError::*const field :
       {&AttentionError::weights_kl, &AttentionError::output_error}) {
    EXPECT_GT(mean_of(four, field), 0);
    EXPECT_GT(mean_of(two, field), 3 * mean_of(four, field));
  }
}

TEST_F(CacheError, IsZeroBetweenACacheAndItself) {
  const auto none = errors(dense_);
  EXPECT_EQ(mean_of(none, &AttentionError::weights_kl), 0);
  EXPECT_EQ(mean_of(none, &AttentionError::output_error), 0);
}

TEST_F(CacheError, ComparesTheCommonTokens) {
  const cache::Cache shorter = must(cache::truncate(dense_, 500));
  EXPECT_EQ(mean_of(errors(shorter), &AttentionError::output_error), 0);
  const cache::Cache at_border = must(cache::truncate(dense_, 257));
  EXPECT_EQ(errors(at_border)[0].heads[0].n_queries, 16);
}

TEST_F(CacheError, NeedsTheModelOfTheReference) {
  cache::Cache other = dense_;
  other.identity.weights_fingerprint[0] ^= std::byte{1};
  const auto refused = attention_errors(demo_model(), other, dense_, 16, 2);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kMismatch);
}

TEST_F(CacheError, NeedsTheTokensOfTheReference) {
  cache::Cache hidden = dense_;
  cache::hide_tokens(hidden);
  EXPECT_EQ(attention_errors(demo_model(), hidden, dense_, 16, 2).error().code,
            ErrorCode::kUnsupported);
  EXPECT_TRUE(attention_errors(demo_model(), dense_, hidden, 16, 2));
}

TEST_F(CacheError, NeedsTwoCommonTokens) {
  const cache::Cache one = must(cache::truncate(dense_, 1));
  const auto refused = attention_errors(demo_model(), dense_, one, 16, 2);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
}

TEST_F(CacheError, StopsWhenInterrupted) {
  const auto stopped = attention_errors(demo_model(), dense_, dense_, 16, 2,
                                        [](std::uint64_t, std::uint64_t) { return false; });
  ASSERT_FALSE(stopped);
  EXPECT_EQ(stopped.error().code, ErrorCode::kInterrupted);
}

TEST_F(CacheError, IsReportedByLayerAndHead) {
  const cache::Cache turbo = packed("turbo4");
  const cache::CacheDifference diff = must(cache::diff(dense_, turbo, 2));
  const Report without = cache_report(diff, {});
  EXPECT_EQ(without.figures.size(), 4u);
  const auto attention = errors(turbo);
  const Report report = cache_report(diff, attention);
  ASSERT_EQ(report.figures.size(), 7u);
  EXPECT_EQ(std::get<Table>(report.figures[0]).rows.size(), 9u);
  EXPECT_EQ(std::get<Table>(report.figures[1]).rows.size(), 16u);
  const HeatMap& keys = std::get<HeatMap>(report.figures[2]);
  EXPECT_EQ(keys.values[5][1], diff.layers[5].k_heads[1].relative_mse);
  const HeatMap& outputs = std::get<HeatMap>(report.figures[6]);
  EXPECT_EQ(outputs.columns.size(), 4u);
  EXPECT_EQ(outputs.values[7][3], attention[7].heads[3].output_error);
}

}  // namespace cache_error_test
}  // namespace tqcache::eval
