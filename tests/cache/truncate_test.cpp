#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string_view>

#include "cache/random_cache.h"
#include "tqcache/base/half.h"
#include "tqcache/cache.h"
#include "tqcache/quantize.h"

namespace tqcache::cache {
namespace truncate_test {

using test::attention;
using test::random_cache;
using test::values_of;
using testing::HasSubstr;

constexpr HeadShape kShape{2, 64};
constexpr std::int64_t kCuts[] = {0, 1, 255, 256, 257, 511, 512, 513, 599, 600};

void expect_first_tokens(const Cache& whole, const Cache& cut, std::int64_t n_tokens) {
  ASSERT_TRUE(validate(cut)) << validate(cut).error().message;
  ASSERT_EQ(cut.n_tokens(), n_tokens);
  EXPECT_TRUE(std::equal(cut.tokens.begin(), cut.tokens.end(), whole.tokens.begin()));
  for (std::size_t i = 0; i < whole.layers.size(); ++i) {
    EXPECT_EQ(values_of(attention(cut, i).k, kShape, n_tokens),
              values_of(attention(whole, i).k, kShape, n_tokens));
    EXPECT_EQ(values_of(attention(cut, i).v, kShape, n_tokens),
              values_of(attention(whole, i).v, kShape, n_tokens));
  }
}

TEST(Truncate, KeepsTheFirstTokensOfADenseCache) {
  const Cache whole = random_cache(1, 600);
  for (const std::int64_t n : kCuts) expect_first_tokens(whole, truncate(whole, n).value(), n);
}

// With an f32 tail a packed block that is cut keeps the very values that its codes stand for.
TEST(Truncate, UnpacksThePackedBlockThatItCuts) {
  for (const std::string_view name : preset_names()) {
    SCOPED_TRACE(name);
    ConvertOptions options = preset(name).value();
    options.values.n_sinks = 4;
    const Cache whole = convert(random_cache(2, 600, Dtype::kF32), options).value();
    for (const std::int64_t n : kCuts) {
      const Cache cut = truncate(whole, n).value();
      expect_first_tokens(whole, cut, n);
      EXPECT_EQ(packed_block_count(attention(cut, 0).v), n / kTokenBlock);
    }
  }
}

// What was taken out and where outlier channels are stays fixed; sink tokens come back bit for bit.
TEST(Truncate, PacksSinkTokensAgainAsTheyWere) {
  ConvertOptions options;
  options.keys.n_sinks = 9;
  const Cache whole = convert(random_cache(7, 300), options).value();
  Cache cut = truncate(whole, 100).value();
  std::mt19937 random(4);
  test::append_tokens(cut, random, 157);
  const auto& before = std::get<TurboTensor>(attention(whole, 0).k);
  const auto& after = std::get<TurboTensor>(attention(cut, 0).k);
  ASSERT_EQ(after.packed.size(), 1u);
  const auto sinks_of = [](const TurboTensor& tensor) {
    return tensor.codec.sink_rows(tensor.packed[0].bytes.view(), 1);
  };
  EXPECT_TRUE(std::ranges::equal(sinks_of(before), sinks_of(after)));
  EXPECT_TRUE(before.codec.state().mean == after.codec.state().mean);
}

TEST(Truncate, RoundsTheValuesOfACutBlockToTheTailsDtype) {
  const Cache whole = convert(random_cache(3, 256, Dtype::kF16), {}).value();
  const Cache cut = truncate(whole, 100).value();
  std::vector<float> expected = values_of(attention(whole, 0).k, kShape, 100);
  for (float& x : expected) x = f16_to_f32(f32_to_f16(x));
  EXPECT_EQ(values_of(attention(cut, 0).k, kShape, 100), expected);
}

TEST(Truncate, LeavesACacheThatCanGrowAgain) {
  std::mt19937 random(4);
  Cache cut = truncate(convert(random_cache(4, 600), {}).value(), 300).value();
  test::append_tokens(cut, random, 300);
  EXPECT_TRUE(validate(cut));
  EXPECT_EQ(packed_block_count(attention(cut, 0).k), 2);
}

TEST(Truncate, RefusesMoreTokensThanThereAre) {
  EXPECT_EQ(truncate(random_cache(5, 10), 11).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(truncate(random_cache(5, 10), -1).error().code, ErrorCode::kInvalidArgument);
}

TEST(Truncate, RefusesToTakeBackStateWithoutAttention) {
  Cache cache = random_cache(6, 10);
  cache.layers.emplace_back(StateLayer{});
  EXPECT_EQ(truncate(cache, 9).error().code, ErrorCode::kUnsupported);
  EXPECT_TRUE(truncate(cache, 10));
}

void expect_not_cut(const Cache& cache, std::int64_t n_tokens, std::string_view part) {
  const auto checked = check_truncate(describe(cache), n_tokens);
  ASSERT_FALSE(checked);
  EXPECT_EQ(checked.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(checked.error().message, HasSubstr(part));
  EXPECT_EQ(truncate(cache, n_tokens).error().message, checked.error().message);
}

TEST(Truncate, RefusesToCutASlidingWindowShorter) {
  Cache cache = random_cache(6, 10);
  cache.layers.emplace_back(test::rotating_layer({kShape, 100, 4}, 10));
  ASSERT_TRUE(validate(cache));
  expect_not_cut(cache, 9, "layer 2 keeps a sliding window, which cannot be cut shorter");
  EXPECT_TRUE(truncate(cache, 10));
}

TEST(Truncate, CutsHiddenTokensBetweenTokenBlocksOnly) {
  const Cache known = random_cache(8, 600);
  Cache hidden = known;
  hide_tokens(hidden);
  for (const std::int64_t n : kCuts) {
    if (n % kTokenBlock != 0 && n != 600) {
      expect_not_cut(hidden, n, "the tokens are hidden: they can be cut after a multiple of 256");
      continue;
    }
    Cache cut = truncate(hidden, n).value();
    ASSERT_TRUE(validate(cut));
    EXPECT_EQ(cut.hidden_tokens->size(), static_cast<std::size_t>(block_count(n)));
    EXPECT_TRUE(reveal_tokens(cut, known.tokens));
    expect_first_tokens(known, cut, n);
  }
}

TEST(Truncate, CutsUnknownTokensAnywhere) {
  Cache cache = random_cache(8, 600);
  std::ranges::fill(cache.tokens, kUnknownToken);
  cache.hidden_tokens.emplace();
  for (const std::int64_t n : kCuts) {
    const Cache cut = truncate(cache, n).value();
    EXPECT_EQ(cut.hidden_tokens, std::vector<Sha256>());
    expect_first_tokens(cache, cut, n);
  }
}

}  // namespace truncate_test
}  // namespace tqcache::cache
