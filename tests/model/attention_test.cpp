#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "support/cache_builder.h"
#include "support/gaussian.h"
#include "tqcache/model/attention/chunk_attention.h"
#include "tqcache/model/attention/rope_table.h"
#include "tqcache/model/attention/step_attention.h"
#include "tqcache/quantize.h"

namespace tqcache::model {
namespace attention_test {

constexpr cache::HeadShape kShape = {2, 64};
constexpr std::int64_t kHeads = 6;  // three to a kv head
constexpr std::int64_t kRow = kHeads * kShape.head_dim;

std::size_t to_size(std::int64_t n) { return static_cast<std::size_t>(n); }

const cache::Rope kRope = {cache::RopeStyle::kHalfSplit, 64, 1e6};  // CacheBuilder's

constexpr ScoreParams kScores = {0.125f};  // 1 / sqrt(64)

using test::must;

cache::TensorPlan dense_plan() {
  cache::TensorPlan plan;
  plan.dense = true;
  return plan;
}

cache::TensorPlan turbo_plan(int bits, cache::Centering center = cache::Centering::kPreRope) {
  cache::TensorPlan plan;
  plan.codec.bits = bits;
  plan.center = center;
  return plan;
}

cache::TensorPlan with_sinks(cache::TensorPlan plan, std::int64_t n_sinks) {
  plan.n_sinks = n_sinks;
  return plan;
}

cache::TensorPlan mapped_plan(cache::Centering center) {
  cache::TensorPlan plan;
  plan.codec = {.mode = codec::Mode::kTrellis, .step = 0.3f};
  plan.center = center;
  plan.fit_transforms = true;
  return plan;
}

// Keys have factors from 2^-1.5 to 2^1.5; values have none.
cache::TensorPlan factor_plan(cache::Centering center) {
  cache::TensorPlan plan = turbo_plan(4, center);
  for (int i = 0; i < kShape.n_kv_heads * kShape.head_dim; ++i) {
    plan.factors.push_back(static_cast<std::int8_t>(i * 7 % 25 - 12));
  }
  return plan;
}

// One plan for each mode of the codec.
std::vector<cache::TensorPlan> all_modes() {
  const auto plan = [](codec::CodecSpec spec) {
    cache::TensorPlan tensor;
    tensor.codec = spec;
    return tensor;
  };
  return {plan({.mode = codec::Mode::kMse, .bits = 3}),
          plan({.mode = codec::Mode::kProd, .bits = 3}),
          plan({.mode = codec::Mode::kMixed, .bits = 2, .outlier_channels = 16, .outlier_bits = 3}),
          plan({.mode = codec::Mode::kAffine, .bits = 4, .group_size = 32}),
          plan({.mode = codec::Mode::kTrellis, .step = 0.3f}),
          mapped_plan(cache::Centering::kPreRope),
          mapped_plan(cache::Centering::kPostRope),
          factor_plan(cache::Centering::kPreRope),
          factor_plan(cache::Centering::kPostRope)};
}

// Random keys and values, converted.
cache::AttentionLayer random_layer(std::int64_t n_tokens, const cache::TensorPlan& keys,
                                   const cache::TensorPlan& values, Dtype dtype = Dtype::kF16) {
  cache::Cache cache = test::CacheBuilder(n_tokens).dense(kShape, dtype).build();
  cache = must(cache::convert(std::move(cache), {.keys = keys, .values = values, .n_threads = 1}));
  return std::get<cache::AttentionLayer>(cache.layers.front());
}

cache::AttentionLayer dense_layer(std::int64_t n_tokens, Dtype dtype = Dtype::kF16) {
  return random_layer(n_tokens, dense_plan(), dense_plan(), dtype);
}

cache::AttentionLayer turbo_layer(std::int64_t n_tokens, int bits) {
  return random_layer(n_tokens, turbo_plan(bits), turbo_plan(bits));
}

// All head vectors [n_tokens, head_dim] of one kv head.
std::vector<float> read_head(const cache::Tensor& tensor, std::int64_t n_tokens,
                             std::int64_t kv_head) {
  std::vector<float> rows(to_size(n_tokens * kShape.head_dim));
  for (std::int64_t block = 0; block < cache::block_count(n_tokens); ++block) {
    const std::int64_t n = cache::tokens_in_block(n_tokens, block);
    cache::read_block(tensor, kShape, n_tokens, block, kv_head,
                      std::span(rows).subspan(to_size(block * cache::kTokenBlock * kShape.head_dim),
                                              to_size(n * kShape.head_dim)));
  }
  return rows;
}

double dot(const float* a, const float* b) {
  double sum = 0;
  for (std::int64_t i = 0; i < kShape.head_dim; ++i) {
    sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  }
  return sum;
}

// What some models do to plain attention: 0 where they do not.
struct Limits {
  std::int64_t window = 0;
  float cap = 0;
};

// softmax(q k / sqrt(head_dim)) v over the first n_visible tokens, or the newest of them, by
// definition, in f64.
std::vector<double> exact_attention(std::span<const float> q, std::span<const float> keys,
                                    std::span<const float> values, std::int64_t n_visible,
                                    Limits limits) {
  std::vector<double> scores;
  for (std::int64_t t = 0; t < n_visible; ++t) {
    double score = dot(q.data(), keys.data() + t * kShape.head_dim) /
                   std::sqrt(static_cast<double>(kShape.head_dim));
    if (limits.cap > 0) score = limits.cap * std::tanh(score / limits.cap);
    const bool is_seen = limits.window == 0 || t >= n_visible - limits.window;
    scores.push_back(is_seen ? score : -HUGE_VAL);
  }
  const double max = *std::ranges::max_element(scores);
  double sum = 0;
  for (double& score : scores) sum += score = std::exp(score - max);
  std::vector<double> out(to_size(kShape.head_dim));
  for (std::int64_t t = 0; t < n_visible; ++t) {
    for (std::size_t i = 0; i < out.size(); ++i) {
      out[i] +=
          scores[to_size(t)] / sum * static_cast<double>(values[to_size(t * kShape.head_dim) + i]);
    }
  }
  return out;
}

// Largest difference between the attention of the last n tokens, in `out`, and the definition.
double worst_error(const cache::AttentionLayer& layer, std::int64_t n_tokens, std::int64_t n,
                   std::span<const float> q, std::span<const float> out, Limits limits = {}) {
  double worst = 0;
  for (std::int64_t head = 0; head < kHeads; ++head) {
    const std::vector<float> keys = read_head(layer.k, n_tokens, head / 3);
    const std::vector<float> values = read_head(layer.v, n_tokens, head / 3);
    for (std::int64_t i = 0; i < n; ++i) {
      const std::size_t at = to_size(i * kRow + head * kShape.head_dim);
      const std::vector<double> exact =
          exact_attention(q.subspan(at), keys, values, n_tokens - n + i + 1, limits);
      for (std::size_t d = 0; d < exact.size(); ++d) {
        worst = std::max(worst, std::abs(static_cast<double>(out[at + d]) - exact[d]));
      }
    }
  }
  return worst;
}

void expect_exact(const cache::AttentionLayer& layer, std::int64_t n_tokens, std::int64_t n,
                  std::span<const float> q, std::span<const float> out) {
  EXPECT_LT(worst_error(layer, n_tokens, n, q, out), 5e-6) << n_tokens << " tokens, the last " << n;
}

std::vector<float> step(const cache::AttentionLayer& layer, std::int64_t n_tokens,
                        std::span<const float> q, unsigned n_threads,
                        Scorer scorer = Scorer::kExact,
                        const codec::Kernels& kernels = codec::best_kernels()) {
  std::vector<float> out(q.size());
  StepAttention(kShape, kHeads, kRope, kScores, scorer, kernels)
      .attend(layer, n_tokens, 0, q, out, Workers(n_threads));
  return out;
}

std::vector<float> chunk(const cache::AttentionLayer& layer, std::int64_t n_tokens, std::int64_t n,
                         std::span<const float> q, unsigned n_threads) {
  std::vector<float> out(q.size());
  ChunkAttention(kShape, kHeads, kScores).attend(layer, n_tokens, n, 0, q, out, Workers(n_threads));
  return out;
}

// The same with limits, a step or a chunk.
std::vector<float> attend_within(Limits limits, const cache::AttentionLayer& layer,
                                 std::int64_t n_tokens, std::int64_t n, std::span<const float> q) {
  std::vector<float> out(q.size());
  const ScoreParams scores = {kScores.scale, limits.cap};
  if (n == 1) {
    StepAttention(kShape, kHeads, kRope, scores, Scorer::kExact)
        .attend(layer, n_tokens, limits.window, q, out, Workers(2));
  } else {
    ChunkAttention(kShape, kHeads, scores)
        .attend(layer, n_tokens, n, limits.window, q, out, Workers(2));
  }
  return out;
}

// Without the token blocks that a window has left.
void drop_blocks(cache::AttentionLayer& layer, std::int64_t n_blocks) {
  for (cache::Tensor* tensor : {&layer.k, &layer.v}) {
    for (std::int64_t i = 0; i < n_blocks; ++i)
      std::get<cache::DenseTensor>(*tensor).blocks[to_size(i)] = {};
  }
}

std::vector<float> random_queries(std::int64_t n = 1, float sigma = 2.0f) {
  return test::GaussianSource(1).vector(to_size(n * kRow), sigma);
}

TEST(Attention, SeesTheNewestTokensOfAWindowAlone) {
  struct Case {
    std::int64_t n_tokens, n;
  };
  for (const auto [n_tokens, n] : {Case{1, 1}, Case{300, 1}, Case{513, 1}, Case{2600, 1},
                                   Case{300, 40}, Case{512, 256}, Case{800, 30}}) {
    const std::vector<float> q = random_queries(n);
    for (const std::int64_t window : {1, 5, 31, 256, 257, 2200}) {
      cache::AttentionLayer layer = dense_layer(n_tokens);
      const std::int64_t first = std::max<std::int64_t>(n_tokens - n + 1 - window, 0);
      const Limits limits = {.window = window};
      const cache::AttentionLayer whole = layer;
      drop_blocks(layer, first / cache::kTokenBlock);
      const std::vector<float> out = attend_within(limits, layer, n_tokens, n, q);
      EXPECT_LT(worst_error(whole, n_tokens, n, q, out, limits), 5e-6) << n_tokens << " " << window;
    }
  }
}

TEST(Attention, BoundsScoresByASoftCap) {
  for (const std::int64_t n : {1, 20}) {
    const std::vector<float> q = random_queries(n, 5.0f);
    const Limits limits = {.cap = 3.0f};
    const cache::AttentionLayer dense = dense_layer(300);
    EXPECT_LT(worst_error(dense, 300, n, q, attend_within(limits, dense, 300, n, q), limits), 5e-6);
    const cache::AttentionLayer turbo = turbo_layer(300, 4);
    EXPECT_LT(worst_error(turbo, 300, n, q, attend_within(limits, turbo, 300, n, q), limits), 2e-5);
  }
}

TEST(Scores, HaveATanhOfTheirOwn) {
  for (float x = -20; x < 20; x += 0.01f) {
    ASSERT_NEAR(tanh_f32(x), std::tanh(static_cast<double>(x)), 2e-7) << x;
  }
  EXPECT_EQ(tanh_f32(0), 0);
  EXPECT_EQ(tanh_f32(1e30f), tanh_f32(10));
}

TEST(StepAttention, IsSoftmaxAttentionAtEveryBlockBorder) {
  const std::vector<float> q = random_queries();
  for (const std::int64_t n_tokens : {1, 2, 255, 256, 257, 511, 512, 513, 2047, 2048, 2049, 2300}) {
    const cache::AttentionLayer layer = dense_layer(n_tokens);
    expect_exact(layer, n_tokens, 1, q, step(layer, n_tokens, q, 2));
  }
}

TEST(StepAttention, ReadsDenseTensorsWithEveryKernel) {
  const std::vector<float> q = random_queries();
  for (const codec::Kernels* kernels : codec::all_kernels()) {
    for (const Dtype dtype : {Dtype::kF32, Dtype::kF16, Dtype::kBF16}) {
      const cache::AttentionLayer layer = dense_layer(300, dtype);
      expect_exact(layer, 300, 1, q, step(layer, 300, q, 1, Scorer::kExact, *kernels));
    }
  }
}

TEST(StepAttention, ReadsCodesOfEveryWidth) {
  const std::vector<float> q = random_queries();
  for (int bits = 1; bits <= 8; ++bits) {
    const cache::AttentionLayer layer = turbo_layer(300, bits);
    expect_exact(layer, 300, 1, q, step(layer, 300, q, 1));
  }
}

TEST(StepAttention, ReadsKeysAndValuesOfDifferentModes) {
  const std::vector<float> q = random_queries();
  std::vector<cache::TensorPlan> plans = all_modes();
  plans.push_back(dense_plan());
  for (const cache::TensorPlan& keys : plans) {
    for (const cache::TensorPlan& values : plans) {
      const cache::AttentionLayer layer = random_layer(600, keys, values);
      SCOPED_TRACE(std::string(codec::mode_word(keys.codec.mode)) + ", " +
                   std::string(codec::mode_word(values.codec.mode)));
      expect_exact(layer, 600, 1, q, step(layer, 600, q, 1));
    }
  }
}

TEST(StepAttention, ScoresPackedCodesWithEveryCentering) {
  const std::vector<float> q = random_queries();
  for (const auto center :
       {cache::Centering::kNone, cache::Centering::kPostRope, cache::Centering::kPreRope}) {
    for (const std::int64_t n_tokens : {256, 600, 2048, 2400}) {
      const cache::AttentionLayer layer =
          random_layer(n_tokens, turbo_plan(4, center), turbo_plan(4, center));
      ASSERT_GT(cache::packed_block_count(layer.k), 0);
      expect_exact(layer, n_tokens, 1, q, step(layer, n_tokens, q, 2));
    }
  }
}

// The dense sink tokens of one side meet the other side's, packed or dense, and neither side's
// mean.
TEST(StepAttention, ReadsSinkTokensOfEitherTensor) {
  const std::vector<float> q = random_queries();
  for (const std::int64_t key_sinks : {0, 1, 4, 256}) {
    for (const std::int64_t value_sinks : {0, 3, 256}) {
      const cache::AttentionLayer layer = random_layer(600, with_sinks(turbo_plan(3), key_sinks),
                                                       with_sinks(turbo_plan(3), value_sinks));
      SCOPED_TRACE(std::to_string(key_sinks) + ", " + std::to_string(value_sinks));
      expect_exact(layer, 600, 1, q, step(layer, 600, q, 1));
    }
  }
}

TEST(StepAttention, ReadsSinkTokensOfEveryMode) {
  const std::vector<float> q = random_queries();
  for (const cache::TensorPlan& plan : all_modes()) {
    const cache::AttentionLayer layer = random_layer(600, with_sinks(plan, 5), with_sinks(plan, 5));
    SCOPED_TRACE(codec::mode_word(plan.codec.mode));
    expect_exact(layer, 600, 1, q, step(layer, 600, q, 1));
  }
}

// Scores of bytes are off by up to 1e-2 of |query| |key|, root mean square, and so are sums of
// bytes.
TEST(StepAttention, FastScorerStaysNearTheDefinition) {
  const std::vector<float> q = random_queries();
  for (const int bits : {8, 4, 3, 2}) {
    const cache::AttentionLayer layer = turbo_layer(900, bits);
    EXPECT_LT(worst_error(layer, 900, 1, q, step(layer, 900, q, 2, Scorer::kFast)), 0.1) << bits;
  }
}

TEST(StepAttention, GivesTheSameBitsForAnyNumberOfThreads) {
  const std::vector<float> q = random_queries();
  const cache::AttentionLayer layer = turbo_layer(5000, 4);
  const std::vector<float> one = step(layer, 5000, q, 1);
  EXPECT_EQ(step(layer, 5000, q, 2), one);
  EXPECT_EQ(step(layer, 5000, q, 3), one);
}

TEST(StepAttention, StandsScoresFarBeyondExpsRange) {
  const std::vector<float> q = random_queries(1, 5000.0f);
  const cache::AttentionLayer layer = dense_layer(600);
  for (const float value : step(layer, 600, q, 1)) EXPECT_TRUE(std::isfinite(value));
}

TEST(ChunkAttention, SeesTheTokensUpToEachQuery) {
  const struct {
    std::int64_t n_tokens, n;
  } kCases[] = {{2, 2}, {256, 256}, {255, 30}, {257, 1}, {300, 44}, {512, 256}, {700, 100}};
  for (const auto& [n_tokens, n] : kCases) {
    const std::vector<float> q = random_queries(n);
    const cache::AttentionLayer layer = dense_layer(n_tokens);
    expect_exact(layer, n_tokens, n, q, chunk(layer, n_tokens, n, q, 2));
  }
}

TEST(ChunkAttention, ReadsEveryKindOfTensor) {
  const std::vector<float> q = random_queries(20);
  std::vector<cache::TensorPlan> plans = all_modes();
  plans.push_back(with_sinks(turbo_plan(4), 7));
  plans.push_back(dense_plan());
  for (const cache::TensorPlan& plan : plans) {
    const cache::AttentionLayer layer = random_layer(300, plan, plan);
    expect_exact(layer, 300, 20, q, chunk(layer, 300, 20, q, 2));
  }
}

TEST(ChunkAttention, GivesTheSameBitsForAnyNumberOfThreads) {
  const std::vector<float> q = random_queries(100);
  const cache::AttentionLayer layer = turbo_layer(612, 4);
  const std::vector<float> one = chunk(layer, 612, 100, q, 1);
  EXPECT_EQ(chunk(layer, 612, 100, q, 2), one);
  EXPECT_EQ(chunk(layer, 612, 100, q, 3), one);
}

TEST(ChunkAttention, MayFollowALongerChunk) {
  ChunkAttention attention(kShape, kHeads, kScores);
  const Workers workers(2);
  const std::vector<float> q = random_queries(256);
  std::vector<float> out(q.size());
  attention.attend(dense_layer(256), 256, 256, 0, q, out, workers);
  const cache::AttentionLayer layer = dense_layer(261);
  const std::span<const float> short_q = std::span(q).first(to_size(5 * kRow));
  const std::span<float> short_out = std::span(out).first(short_q.size());
  attention.attend(layer, 261, 5, 0, short_q, short_out, workers);
  expect_exact(layer, 261, 5, short_q, short_out);
}

TEST(RopeTable, TurnsHalfSplitPairsByPosition) {
  constexpr double kBase = 1e6;
  RopeTable rope({cache::RopeStyle::kHalfSplit, 8, kBase});
  rope.set_positions(1000, 3);
  const std::vector<float> x = test::GaussianSource(3).vector(10);
  std::vector<float> y = x;
  rope.rotate(2, y);
  for (std::size_t i = 0; i < 4; ++i) {
    const double angle = 1002 * std::pow(kBase, -static_cast<double>(i) / 4);
    const double a = static_cast<double>(x[i]), b = static_cast<double>(x[i + 4]);
    EXPECT_NEAR(static_cast<double>(y[i]), a * std::cos(angle) - b * std::sin(angle), 1e-6);
    EXPECT_NEAR(static_cast<double>(y[i + 4]), b * std::cos(angle) + a * std::sin(angle), 1e-6);
  }
  EXPECT_EQ(y[8], x[8]);
  EXPECT_EQ(y[9], x[9]);
}

}  // namespace attention_test
}  // namespace tqcache::model
