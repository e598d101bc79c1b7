#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "model/tiny_model.h"
#include "support/matchers.h"
#include "tqcache/decoder.h"
#include "tqcache/eval.h"
#include "tqcache/eval/divergence.h"
#include "tqcache/quantize.h"

namespace tqcache::eval {
namespace predictions_test {

using cache::Configuration;
using test::must;
using testing::HasSubstr;

class Predictions : public testing::Test {
 protected:
  Predictions() {
    model_.config.rope = {cache::RopeStyle::kHalfSplit, 32, 1e4};
    identity_.rope = model_.config.rope;
  }

  Result<PredictionCosts> try_measure(const std::string& configurations,
                                      const PredictionOptions& options, std::int64_t n_tokens,
                                      const Progress& progress = {}) {
    return measure_predictions(model_.config, model_.weights, identity_, model_.prompt(n_tokens),
                               must(cache::parse_configurations(configurations)), options,
                               progress);
  }
  PredictionCosts measure(const std::string& configurations,
                          const PredictionOptions& options = {.window = 300},
                          std::int64_t n_tokens = 700) {
    return must(try_measure(configurations, options, n_tokens));
  }
  void expect_refusal(const std::string& configurations, const PredictionOptions& options,
                      std::int64_t n_tokens, ErrorCode code, const std::string& words) {
    EXPECT_THAT(try_measure(configurations, options, n_tokens),
                test::FailsWith(code, HasSubstr(words)));
  }

  // All logits of some tokens, [n, vocab_size].
  std::vector<float> logits_of(std::span<const std::int32_t> ids, cache::Cache cache,
                               const model::KvFilter& filter = {}) {
    model::Decoder decoder(model_.config, model_.weights, 1);
    std::vector<float> logits;
    must(decoder.prefill_all_logits(
        cache, ids,
        [&](std::int64_t, std::int64_t, std::span<const float> rows) {
          logits.insert(logits.end(), rows.begin(), rows.end());
        },
        {}, filter));
    return logits;
  }
  cache::Cache empty() const {
    cache::Cache cache = model_.make_cache(Dtype::kF32);
    cache.identity = identity_;
    return cache;
  }
  std::span<const float> row(const std::vector<float>& logits, std::size_t i) const {
    const auto n = static_cast<std::size_t>(model_.config.vocab_size);
    return std::span(logits).subspan(i * n, n);
  }

  test::TinyModel model_;
  cache::Identity identity_;
};

// Both windows by hand: one run of the decoder each, and sums in doubles.
TEST_F(Predictions, HaveThePerplexityOfTheTokensThatFollow) {
  const PredictionCosts costs = measure("f32");
  EXPECT_EQ(costs.n_tokens, 700);
  EXPECT_EQ(costs.n_windows, 2);
  EXPECT_EQ(costs.n_predictions(), 600);
  const std::vector<std::int32_t> ids = model_.prompt(700);
  double sum = 0;
  for (const std::size_t window : {0u, 300u}) {
    const auto logits = logits_of(std::span(ids).subspan(window, 300), empty());
    std::vector<float> scratch;
    for (std::size_t i = 0; i < 300; ++i) {
      sum += negative_log_likelihood(row(logits, i), softmax_of(row(logits, i), scratch),
                                     ids[window + i + 1]);
    }
  }
  EXPECT_NEAR(costs.dense_perplexity, std::exp(sum / 600), 1e-6 * costs.dense_perplexity);
}

// The begin token replaces the first token of each window, which is still predicted.
TEST_F(Predictions, BeginEachWindowWithTheTokenThatTextsBeginWith) {
  const PredictionCosts costs = measure("f32", {.window = 300, .begin_token = 7});
  EXPECT_EQ(costs.begin_token, 7);
  EXPECT_EQ(costs.n_predictions(), 600);
  const std::vector<std::int32_t> ids = model_.prompt(700);
  double sum = 0;
  for (const std::size_t window : {0u, 300u}) {
    std::vector<std::int32_t> read(ids.begin() + static_cast<std::ptrdiff_t>(window),
                                   ids.begin() + static_cast<std::ptrdiff_t>(window) + 300);
    read[0] = 7;
    const auto logits = logits_of(read, empty());
    std::vector<float> scratch;
    for (std::size_t i = 0; i < 300; ++i) {
      sum += negative_log_likelihood(row(logits, i), softmax_of(row(logits, i), scratch),
                                     ids[window + i + 1]);
    }
  }
  EXPECT_NEAR(costs.dense_perplexity, std::exp(sum / 600), 1e-6 * costs.dense_perplexity);
  EXPECT_NE(costs.dense_perplexity, measure("f32").dense_perplexity);
}

TEST_F(Predictions, OfTheDenseConfigurationAreTheDenseOnes) {
  const PredictionCost way = measure("f32").ways[0];
  EXPECT_EQ(way.perplexity, measure("f32").dense_perplexity);
  EXPECT_EQ(way.kld_mean, 0);
  EXPECT_EQ(way.kld_max, 0);
  EXPECT_EQ(way.top1, 1);
  EXPECT_EQ(way.errors.n_layers(), 0u);
  EXPECT_EQ(way.size.bits_per_value, 32);
  EXPECT_EQ(way.size.bits_per_packed_value, 0);
}

// The first window by hand: every key and value coded with the means of its dense run.
TEST_F(Predictions, DivergeByWhatCodingEveryKeyAndValueDoes) {
  const PredictionCosts costs = measure("turbo2", {.window = 300, .max_windows = 1});
  ASSERT_EQ(costs.n_windows, 1);
  const std::vector<std::int32_t> ids = model_.prompt(300);
  cache::Cache dense = empty();
  model::Decoder decoder(model_.config, model_.weights, 1);
  std::vector<float> p;
  must(decoder.prefill_all_logits(dense, ids,
                                  [&](std::int64_t, std::int64_t, std::span<const float> rows) {
                                    p.insert(p.end(), rows.begin(), rows.end());
                                  }));
  const cache::Cache coded =
      must(cache::convert(dense, must(cache::parse_configuration("turbo2")).options));
  const auto q = logits_of(ids, empty(), model::coding_filter(coded));
  double sum = 0, max = 0;
  int n_same = 0;
  std::vector<float> scratch;
  for (std::size_t i = 0; i < 300; ++i) {
    const Softmax of_p = softmax_of(row(p, i), scratch);
    const Softmax of_q = softmax_of(row(q, i), scratch);
    const double kld = divergence(row(p, i), of_p, row(q, i), of_q, scratch);
    sum += kld;
    max = std::max(max, kld);
    n_same += most_probable(row(p, i), of_p) == most_probable(row(q, i), of_q) ? 1 : 0;
  }
  const PredictionCost& way = costs.ways[0];
  EXPECT_NEAR(way.kld_mean, sum / 300, 1e-9);
  EXPECT_NEAR(way.kld_max, max, 1e-9);
  EXPECT_EQ(way.top1, n_same / 300.0);
  EXPECT_GT(way.kld_mean, 0);
  EXPECT_LT(way.kld_median, way.kld_mean);
  EXPECT_GT(way.kld_p99, way.kld_mean);
  EXPECT_LT(way.kld_p99, way.kld_max);
}

TEST_F(Predictions, GetWorseWithFewerBits) {
  const PredictionCosts costs = measure("turbo2,turbo4");
  EXPECT_GT(costs.ways[0].kld_mean, 3 * costs.ways[1].kld_mean);
}

TEST_F(Predictions, CountTheErrorOfEveryLayerTensorAndHead) {
  constexpr double kDistortion = 0.0084;  // of 4 bits and 32 components, of some 100 vectors
  const PredictionCosts costs = measure("turbo4,turbo4,center=none,kfv4");
  for (const PredictionCost& way : costs.ways) {
    SCOPED_TRACE(way.configuration.name);
    ASSERT_EQ(way.errors.n_layers(), 2u);
    ASSERT_EQ(way.errors.n_kv_heads(), 2u);
    const bool codes_keys = way.configuration.name != "kfv4";
    for (std::size_t layer = 0; layer < 2; ++layer) {
      for (std::size_t kv_head = 0; kv_head < 2; ++kv_head) {
        const CodingError& k = way.errors.at(layer, 0, kv_head);
        const CodingError& v = way.errors.at(layer, 1, kv_head);
        EXPECT_NEAR(v.relative_to_variance(), kDistortion, 0.0008);
        if (codes_keys) {
          EXPECT_NEAR(k.relative_to_variance(), kDistortion, 0.0008);
        } else {
          EXPECT_EQ(k.energy, 0);
        }
        EXPECT_LE(v.variance, v.energy);
      }
    }
  }
  // Without a mean taken out both are the same.
  const CodingError plain = costs.ways[1].errors.total(0);
  EXPECT_EQ(plain.energy, plain.variance);
  EXPECT_LT(costs.ways[0].errors.total(0).variance, 0.99 * plain.variance);
}

TEST_F(Predictions, LeaveSinkTokensOutOfTheError) {
  const PredictionCosts costs = measure("turbo4,sink=256,turbo4", {.window = 256}, 257);
  EXPECT_EQ(costs.ways[0].errors.total(0).energy, 0);
  EXPECT_EQ(costs.ways[0].kld_mean, 0);
  EXPECT_GT(costs.ways[1].errors.total(0).energy, 0);
}

// 32 components: 4 bits each and an f16 scale are 4.5 bits per value; sinks stay f16.
TEST_F(Predictions, ReportTheMemoryOfAWindow) {
  const PredictionCosts costs =
      measure("turbo4,sink=0,kfv4,sink=0,turbo4,sink=16", {.window = 512}, 513);
  constexpr double kValues = 512 * 2 * 2 * 32;  // of one tensor: tokens, layers, kv heads, head_dim
  const WindowSize& both = costs.ways[0].size;
  EXPECT_EQ(both.bits_per_packed_value, 4.5);
  EXPECT_EQ(both.bits_per_value, 4.5);
  EXPECT_EQ(both.k_bits, 4.5);
  EXPECT_EQ(both.v_bits, 4.5);
  EXPECT_EQ(static_cast<double>(both.k_bytes), kValues * 4.5 / 8);
  EXPECT_EQ(both.k_bytes, both.v_bytes);
  const WindowSize& half = costs.ways[1].size;
  EXPECT_EQ(half.bits_per_packed_value, 4.5);
  EXPECT_EQ(half.bits_per_value, (16 + 4.5) / 2);
  EXPECT_EQ(half.k_bits, 0);
  EXPECT_EQ(static_cast<double>(half.k_bytes), kValues * 2);
  EXPECT_EQ(costs.ways[2].size.bits_per_packed_value, 4.5 + 16.0 * 16 / 512);
}

TEST_F(Predictions, CountTheIncompleteTokenBlockAsDense) {
  const WindowSize size = measure("turbo4,sink=0", {.window = 300}).ways[0].size;
  EXPECT_EQ(size.bits_per_packed_value, 4.5);
  EXPECT_NEAR(size.bits_per_value, (256 * 4.5 + 44 * 16) / 300, 1e-12);
}

// By hand: a cache that is filled as generation fills it.
TEST_F(Predictions, AsServedAreThoseOfARealCache) {
  const PredictionCosts costs = measure("turbo2", {.window = 600, .as_served = true}, 601);
  const std::vector<std::int32_t> ids = model_.prompt(600);
  const auto p = logits_of(ids, empty());
  const auto q = logits_of(
      ids, must(cache::convert(empty(), must(cache::parse_configuration("turbo2")).options)));
  double sum = 0;
  std::vector<float> scratch;
  for (std::size_t i = 0; i < 600; ++i) {
    sum += divergence(row(p, i), softmax_of(row(p, i), scratch), row(q, i),
                      softmax_of(row(q, i), scratch), scratch);
  }
  EXPECT_TRUE(costs.as_served);
  EXPECT_GT(costs.ways[0].kld_mean, 0);
  EXPECT_NEAR(costs.ways[0].kld_mean, sum / 600, 1e-9);
  EXPECT_EQ(costs.ways[0].errors.n_layers(), 0u);
}

TEST_F(Predictions, AsServedCostNothingWhereNothingIsPackedYet) {
  const PredictionCost served = measure("turbo2", {.window = 256, .as_served = true}, 257).ways[0];
  EXPECT_EQ(served.kld_max, 0);
  EXPECT_GT(measure("turbo2", {.window = 256}, 257).ways[0].kld_mean, 0);
}

TEST_F(Predictions, AreTheSameForAnyNumberOfThreads) {
  const PredictionCost one = measure("turbo3", {.window = 300, .n_threads = 1}).ways[0];
  const PredictionCost three = measure("turbo3", {.window = 300, .n_threads = 3}).ways[0];
  EXPECT_EQ(one.kld_mean, three.kld_mean);
  EXPECT_EQ(one.kld_p99, three.kld_p99);
  EXPECT_EQ(one.perplexity, three.perplexity);
  EXPECT_EQ(one.errors.total(0).error, three.errors.total(0).error);
}

TEST_F(Predictions, ReportTheirProgress) {
  std::uint64_t last = 0;
  const auto progress = [&](std::uint64_t done, std::uint64_t total) {
    EXPECT_EQ(total, 2u * 300 * 3);
    EXPECT_GE(done, last);
    last = done;
    return true;
  };
  must(try_measure("f32,turbo4,turbo3", {.window = 300}, 700, progress));
  EXPECT_EQ(last, 2u * 300 * 3);
}

TEST_F(Predictions, StopWhenAsked) {
  int n_calls = 0;
  const auto stop = [&](std::uint64_t, std::uint64_t) { return ++n_calls < 5; };
  const auto measured = try_measure("turbo4", {.window = 300}, 700, stop);
  ASSERT_FALSE(measured);
  EXPECT_EQ(measured.error().code, ErrorCode::kInterrupted);
}

TEST_F(Predictions, RefuseWindowsThatDoNotFit) {
  using enum ErrorCode;
  expect_refusal("f32", {.window = 0}, 700, kInvalidArgument, "a window of 0 tokens");
  expect_refusal("turbo4", {.window = 255}, 700, kInvalidArgument, "at least 256");
  expect_refusal("f32", {.window = 601}, 700, kInvalidArgument, "context has 600");
  expect_refusal("f32", {.window = 300}, 300, kInvalidArgument, "the text has 300 tokens");
  expect_refusal("f32", {.window = 300}, 0, kInvalidArgument, "need 301");
  EXPECT_TRUE(try_measure("f32", {.window = 255}, 700));
  EXPECT_TRUE(try_measure("turbo4", {.window = 300}, 301));
}

TEST_F(Predictions, RefuseLogitsBeyondEveryMemory) {
  model_.config.context_length = 1 << 20;
  model_.config.vocab_size = 1 << 20;
  expect_refusal("turbo4", {.window = 65536}, 65537, ErrorCode::kTooLarge, "logits take");
}

TEST_F(Predictions, RefuseTokensThatAreNotTheModels) {
  for (const std::int32_t id : {-1, 100}) {
    std::vector<std::int32_t> ids = model_.prompt(301);
    ids.back() = id;
    EXPECT_THAT(
        measure_predictions(model_.config, model_.weights, identity_, ids,
                            must(cache::parse_configurations("f32")), {.window = 300}),
        test::FailsWith(ErrorCode::kInvalidArgument, HasSubstr("token id " + std::to_string(id))));
    expect_refusal("f32", {.window = 300, .begin_token = id}, 301, ErrorCode::kInvalidArgument,
                   "token id " + std::to_string(id));
  }
}

// Groups of 64 channels do not fit into 32.
TEST_F(Predictions, RefuseAConfigurationThatTheModelCannotHave) {
  expect_refusal("turbo4,affine4", {.window = 300}, 700, ErrorCode::kUnsupported,
                 "affine4: layer 0 k");
}

TEST_F(Predictions, RefuseAModelThatPredictsNothing) {
  for (float& weight : model_.weights.output_norm) weight = std::nanf("");
  expect_refusal("f32", {.window = 300}, 700, ErrorCode::kCorrupt, "not finite");
}

}  // namespace predictions_test
}  // namespace tqcache::eval
