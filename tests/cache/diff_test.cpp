#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cache/random_cache.h"
#include "support/matchers.h"
#include "tqcache/cache.h"
#include "tqcache/quantize.h"

namespace tqcache::cache {
namespace diff_test {

using test::attention;
using test::random_cache;

TEST(Diff, OfACacheWithItselfIsZero) {
  const Cache cache = random_cache(1, 300);
  const CacheDifference d = diff(cache, cache, 2).value();
  EXPECT_EQ(d.n_tokens, 300);
  EXPECT_EQ(d.k.relative_mse, 0);
  EXPECT_EQ(d.v.max_abs, 0);
  EXPECT_NEAR(d.k.cosine, 1, 1e-12);
  EXPECT_EQ(d.k.n_values, 2u * 300 * 2 * 64);
  EXPECT_EQ(d.layers.size(), 2u);
}

TEST(Diff, MeasuresAKnownDifference) {
  Cache a = random_cache(1, 0, Dtype::kF32, {1, 32}, 1);
  Cache b = a;
  std::vector<float> ones(32, 1.0f), twos(32, 2.0f);
  append(attention(a, 0).k, {1, 32}, 0, ones);
  append(attention(b, 0).k, {1, 32}, 0, twos);
  ones[0] = -1;
  append(attention(a, 0).v, {1, 32}, 0, ones);
  ones[0] = 1;
  append(attention(b, 0).v, {1, 32}, 0, ones);
  a.tokens = b.tokens = {5};
  const CacheDifference d = diff(a, b, 1).value();
  EXPECT_DOUBLE_EQ(d.k.relative_mse, 1);
  EXPECT_DOUBLE_EQ(d.k.cosine, 1);
  EXPECT_DOUBLE_EQ(d.k.max_abs, 1);
  EXPECT_DOUBLE_EQ(d.v.relative_mse, 4.0 / 32);
  EXPECT_DOUBLE_EQ(d.v.cosine, 30.0 / 32);
}

TEST(Diff, MeasuresHeadsApartAndTheWorstVector) {
  Cache a = random_cache(1, 0, Dtype::kF32, {2, 2}, 1);
  Cache b = a;
  // Tokens of [head 0, head 1]: the second head is turned by 90 degrees once, the first is not.
  append(attention(a, 0).k, {2, 2}, 0, std::vector<float>{1, 0, 1, 0, 2, 0, 2, 0});
  append(attention(b, 0).k, {2, 2}, 0, std::vector<float>{1, 0, 1, 0, 2, 0, 0, 2});
  append(attention(a, 0).v, {2, 2}, 0, std::vector<float>(8, 1.0f));
  append(attention(b, 0).v, {2, 2}, 0, std::vector<float>(8, 1.0f));
  a.tokens = b.tokens = {5, 6};
  const LayerDifference layer = diff(a, b, 1).value().layers[0];
  ASSERT_EQ(layer.k_heads.size(), 2u);
  EXPECT_EQ(layer.k_heads[0].relative_mse, 0);
  EXPECT_EQ(layer.k_heads[0].min_cosine, 1);
  EXPECT_DOUBLE_EQ(layer.k_heads[1].relative_mse, 8.0 / 5);
  EXPECT_DOUBLE_EQ(layer.k_heads[1].mean_cosine, 0.5);
  EXPECT_DOUBLE_EQ(layer.k_heads[1].min_cosine, 0);
  EXPECT_DOUBLE_EQ(layer.k.relative_mse, 8.0 / 10);
  EXPECT_DOUBLE_EQ(layer.k.mean_cosine, 0.75);
  EXPECT_DOUBLE_EQ(layer.k.min_cosine, 0);
  EXPECT_EQ(layer.v_heads[1].relative_mse, 0);
}

TEST(Diff, ComparesTheCommonTokensOfCachesOfDifferentLength) {
  const Cache longer = random_cache(3, 513);
  Cache shorter = longer;
  shorter.tokens.resize(300);
  for (Layer& layer : shorter.layers) {
    remove_tail(std::get<AttentionLayer>(layer).k, 300);
    remove_tail(std::get<AttentionLayer>(layer).v, 300);
  }
  ASSERT_TRUE(validate(shorter));
  const CacheDifference d = diff(longer, shorter, 2).value();
  EXPECT_EQ(d.n_tokens, 300);
  EXPECT_EQ(d.k.relative_mse, 0);
}

TEST(Diff, DoesNotDependOnThreads) {
  const Cache a = random_cache(1, 600);
  const Cache b = convert(a, {}).value();
  const CacheDifference one = diff(a, b, 1).value();
  const CacheDifference three = diff(a, b, 3).value();
  EXPECT_GT(one.k.relative_mse, 0.005);
  EXPECT_EQ(one.k.relative_mse, three.k.relative_mse);
  EXPECT_EQ(one.v.cosine, three.v.cosine);
}

TEST(Diff, SeesNoDifferenceInSinkTokens) {
  const Cache a = random_cache(1, 256);
  ConvertOptions options;
  options.keys.n_sinks = 256;
  options.values.n_sinks = 128;
  const CacheDifference d = diff(a, convert(a, options).value(), 2).value();
  EXPECT_EQ(d.k.max_abs, 0);
  EXPECT_GT(d.v.relative_mse, 0.003);
  EXPECT_LT(d.v.relative_mse, 0.006);  // half of the tokens, at .0091
}

TEST(Diff, RefusesCachesThatCannotBeCompared) {
  const Cache a = random_cache(1, 20);
  Cache other_tokens = a;
  other_tokens.tokens[7] = 999;
  const Cache fewer_layers = random_cache(1, 20, Dtype::kF16, {2, 64}, 1);
  const Cache other_shape = random_cache(1, 20, Dtype::kF16, {1, 64});
  Cache other_kind = a;
  other_kind.layers[1] = StateLayer{};
  for (const Cache& b : {other_tokens, fewer_layers, other_shape, other_kind}) {
    const auto d = diff(a, b, 1);
    ASSERT_FALSE(d);
    EXPECT_EQ(d.error().code, ErrorCode::kMismatch);
  }
  EXPECT_THAT(diff(a, other_tokens, 1).error().message, testing::HasSubstr("from token 7 on"));
}

TEST(Diff, ComparesArraysBitForBit) {
  Cache a = random_cache(1, 20);
  a.layers.emplace_back(StateLayer{{NamedArray{"s", Dtype::kF32, {1}, AlignedBytes(4)}}});
  Cache b = a;
  EXPECT_TRUE(diff(a, b, 1).value().arrays_equal);
  std::get<StateLayer>(b.layers[2]).arrays[0].data[0] = std::byte{0x80};
  EXPECT_FALSE(diff(a, b, 1).value().arrays_equal);
}

TEST(Diff, ComparesRotatingLayersBitForBit) {
  Cache a = random_cache(1, 20);
  a.layers.emplace_back(test::rotating_layer({{2, 4}, 8, 1}, 20));
  Cache b = a;
  EXPECT_TRUE(diff(a, b, 1).value().arrays_equal);
  auto& layer = std::get<WindowLayer>(b.layers[2]);
  test::change_window(layer, layer.attention.v, 20,
                      [](AlignedBytes& array, Dtype) { array[0] ^= std::byte{1}; });
  EXPECT_FALSE(diff(a, b, 1).value().arrays_equal);
}

TEST(Diff, RefusesOtherWindows) {
  Cache a = random_cache(1, 20);
  a.layers.emplace_back(test::rotating_layer({{2, 4}, 8, 1}, 20));
  Cache b = a;
  std::get<WindowLayer>(b.layers[2]).window.keep = 2;
  EXPECT_THAT(diff(a, b, 1).error().message, testing::HasSubstr("layer 2: of another window"));
  b.layers[2] = StateLayer{};
  EXPECT_THAT(diff(a, b, 1).error().message,
              testing::HasSubstr("layer 2: a sliding window and recurrent state"));
}

Cache hidden(Cache cache) {
  hide_tokens(cache);
  return cache;
}

Cache unknown(Cache cache) {
  std::ranges::fill(cache.tokens, kUnknownToken);
  cache.hidden_tokens.emplace();
  return cache;
}

TEST(Diff, ComparesHiddenTokensByTheirHashes) {
  const Cache a = random_cache(1, 300);
  const Cache longer = random_cache(1, 400);
  struct {
    Cache a, b;
    std::int64_t n_tokens_checked;
  } const cases[] = {
      {a, a, 300},
      {a, longer, 300},
      {a, hidden(a), 300},
      {hidden(a), hidden(a), 300},
      {longer, hidden(a), 300},  // the ids of all that is compared are hashed
      {a, hidden(longer), 256},  // its second hash is over tokens that `a` has not
      {hidden(longer), hidden(a), 256},
      {a, unknown(a), 0},
      {unknown(longer), hidden(a), 0},
  };
  for (const auto& [x, y, n_checked] : cases) {
    EXPECT_EQ(diff(x, y, 2).value().n_tokens_checked, n_checked);
    EXPECT_EQ(diff(y, x, 2).value().n_tokens_checked, n_checked);
    EXPECT_EQ(diff(x, y, 2).value().n_tokens, 300);
  }
}

TEST(Diff, RefusesOtherTokensThoughTheyAreHidden) {
  const Cache a = random_cache(1, 600);
  Cache other = a;
  other.tokens[300] = 7;
  for (const Cache& b : {hidden(other), other}) {
    EXPECT_THAT(diff(hidden(a), b, 1),
                test::FailsWith(ErrorCode::kMismatch,
                                testing::HasSubstr("other tokens, from token 256 or a later")));
  }
}

}  // namespace diff_test
}  // namespace tqcache::cache
