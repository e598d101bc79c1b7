#include "tqcache/model/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "support/cache_builder.h"
#include "support/gaussian.h"
#include "tqcache/model/rope.h"

namespace tqcache::model {
namespace {

constexpr cache::HeadShape kShape = {2, 64};
constexpr std::int64_t kHeads = 6;  // three to a kv head
constexpr std::int64_t kRow = kHeads * kShape.head_dim;

std::size_t to_size(std::int64_t n) { return static_cast<std::size_t>(n); }

const cache::Rope kRope = {cache::RopeStyle::kHalfSplit, 64, 1e6};  // CacheBuilder's

cache::AttentionLayer random_layer(std::int64_t n_tokens, int bits, Dtype dtype = Dtype::kF16,
                                   cache::Centring center = cache::Centring::kPreRope) {
  cache::Cache cache =
      test::CacheBuilder(n_tokens).center(center).mixed(kShape, dtype, bits, dtype, bits).build();
  return std::get<cache::AttentionLayer>(cache.layers.front());
}

// All head vectors [n_tokens, head_dim] of one kv head.
std::vector<float> read_head(const cache::Side& side, std::int64_t n_tokens, std::int64_t kv_head) {
  std::vector<float> rows(to_size(n_tokens * kShape.head_dim));
  for (std::int64_t block = 0; block < cache::block_count(n_tokens); ++block) {
    const std::int64_t n = cache::tokens_in_block(n_tokens, block);
    cache::read_block(side, kShape, n_tokens, block, kv_head,
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

// softmax(q k / sqrt(head_dim)) v over the first n_visible tokens, by definition, in f64.
std::vector<double> exact_attention(std::span<const float> q, std::span<const float> keys,
                                    std::span<const float> values, std::int64_t n_visible) {
  std::vector<double> scores;
  for (std::int64_t t = 0; t < n_visible; ++t) {
    scores.push_back(dot(q.data(), keys.data() + t * kShape.head_dim) /
                     std::sqrt(static_cast<double>(kShape.head_dim)));
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
                   std::span<const float> q, std::span<const float> out) {
  double worst = 0;
  for (std::int64_t head = 0; head < kHeads; ++head) {
    const std::vector<float> keys = read_head(layer.k, n_tokens, head / 3);
    const std::vector<float> values = read_head(layer.v, n_tokens, head / 3);
    for (std::int64_t i = 0; i < n; ++i) {
      const std::size_t at = to_size(i * kRow + head * kShape.head_dim);
      const std::vector<double> exact =
          exact_attention(q.subspan(at), keys, values, n_tokens - n + i + 1);
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
                        Scorer scorer = Scorer::kExact) {
  std::vector<float> out(q.size());
  Attention(kShape, kHeads, kRope, scorer).attend_step(layer, n_tokens, q, out, Workers(n_threads));
  return out;
}

std::vector<float> chunk(const cache::AttentionLayer& layer, std::int64_t n_tokens, std::int64_t n,
                         std::span<const float> q, unsigned n_threads) {
  std::vector<float> out(q.size());
  Attention(kShape, kHeads, kRope, Scorer::kExact)
      .attend_chunk(layer, n_tokens, n, q, out, Workers(n_threads));
  return out;
}

TEST(AttendStep, IsSoftmaxAttentionAtEveryBlockBorder) {
  const std::vector<float> q = test::GaussianSource(1).vector(to_size(kRow), 2.0f);
  for (const std::int64_t n_tokens : {1, 2, 255, 256, 257, 511, 512, 513}) {
    const cache::AttentionLayer layer = random_layer(n_tokens, 16);
    expect_exact(layer, n_tokens, 1, q, step(layer, n_tokens, q, 2));
  }
}

TEST(AttendStep, ReadsEveryKindOfSide) {
  const std::vector<float> q = test::GaussianSource(1).vector(to_size(kRow), 2.0f);
  for (const Dtype dtype : {Dtype::kF32, Dtype::kF16, Dtype::kBF16}) {
    for (const int bits : {16, 8, 4, 1}) {
      const cache::AttentionLayer layer = random_layer(300, bits, dtype);
      expect_exact(layer, 300, 1, q, step(layer, 300, q, 1));
    }
  }
}

TEST(AttendStep, ScoresPackedCodesWithEveryCentring) {
  const std::vector<float> q = test::GaussianSource(1).vector(to_size(kRow), 2.0f);
  for (const auto center :
       {cache::Centring::kNone, cache::Centring::kPostRope, cache::Centring::kPreRope}) {
    for (const std::int64_t n_tokens : {256, 600, 1024}) {
      const cache::AttentionLayer layer = random_layer(n_tokens, 4, Dtype::kF16, center);
      ASSERT_GT(cache::packed_block_count(layer.k), 0);
      expect_exact(layer, n_tokens, 1, q, step(layer, n_tokens, q, 2));
    }
  }
}

// Scores of bytes are off by up to 1e-2 of |query| |key|, root mean square, and so are sums of
// bytes.
TEST(AttendStep, FastScorerStaysNearTheDefinition) {
  const std::vector<float> q = test::GaussianSource(1).vector(to_size(kRow), 2.0f);
  for (const int bits : {8, 4, 3, 2}) {
    const cache::AttentionLayer layer = random_layer(900, bits);
    EXPECT_LT(worst_error(layer, 900, 1, q, step(layer, 900, q, 2, Scorer::kFast)), 0.1) << bits;
  }
}

TEST(AttendStep, GivesTheSameBitsForAnyNumberOfThreads) {
  const std::vector<float> q = test::GaussianSource(1).vector(to_size(kRow), 2.0f);
  const cache::AttentionLayer layer = random_layer(1500, 4);
  const std::vector<float> one = step(layer, 1500, q, 1);
  EXPECT_EQ(step(layer, 1500, q, 2), one);
  EXPECT_EQ(step(layer, 1500, q, 3), one);
}

TEST(AttendStep, StandsScoresFarBeyondExpsRange) {
  const std::vector<float> q = test::GaussianSource(1).vector(to_size(kRow), 5000.0f);
  const cache::AttentionLayer layer = random_layer(600, 16);
  for (const float value : step(layer, 600, q, 1)) EXPECT_TRUE(std::isfinite(value));
}

TEST(AttendChunk, SeesTheTokensUpToEachQuery) {
  const struct {
    std::int64_t n_tokens, n;
  } kCases[] = {{2, 2}, {256, 256}, {255, 30}, {257, 1}, {300, 44}, {512, 256}, {700, 100}};
  for (const auto& [n_tokens, n] : kCases) {
    const std::vector<float> q = test::GaussianSource(2).vector(to_size(n * kRow), 2.0f);
    const cache::AttentionLayer layer = random_layer(n_tokens, 16);
    expect_exact(layer, n_tokens, n, q, chunk(layer, n_tokens, n, q, 2));
  }
}

TEST(AttendChunk, ReadsEveryKindOfSide) {
  const std::vector<float> q = test::GaussianSource(2).vector(to_size(20 * kRow), 2.0f);
  for (const int bits : {16, 8, 4, 1}) {
    const cache::AttentionLayer layer = random_layer(300, bits);
    expect_exact(layer, 300, 20, q, chunk(layer, 300, 20, q, 2));
  }
}

TEST(AttendChunk, GivesTheSameBitsForAnyNumberOfThreads) {
  const std::vector<float> q = test::GaussianSource(2).vector(to_size(100 * kRow), 2.0f);
  const cache::AttentionLayer layer = random_layer(612, 4);
  const std::vector<float> one = chunk(layer, 612, 100, q, 1);
  EXPECT_EQ(chunk(layer, 612, 100, q, 2), one);
  EXPECT_EQ(chunk(layer, 612, 100, q, 3), one);
}

TEST(AttendChunk, MayFollowALongerChunk) {
  Attention attention(kShape, kHeads, kRope, Scorer::kExact);
  const Workers workers(2);
  const std::vector<float> q = test::GaussianSource(2).vector(to_size(256 * kRow), 2.0f);
  std::vector<float> out(q.size());
  attention.attend_chunk(random_layer(256, 16), 256, 256, q, out, workers);
  const cache::AttentionLayer layer = random_layer(261, 16);
  const std::span<const float> short_q = std::span(q).first(to_size(5 * kRow));
  const std::span<float> short_out = std::span(out).first(short_q.size());
  attention.attend_chunk(layer, 261, 5, short_q, short_out, workers);
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

}  // namespace
}  // namespace tqcache::model
