#include "tqcache/cache/truncate.h"

#include <gtest/gtest.h>

#include "cache/random_cache.h"
#include "tqcache/base/half.h"
#include "tqcache/cache/convert.h"

namespace tqcache::cache {
namespace {

using test::attention;
using test::random_cache;
using test::values_of;

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
  const Cache whole = convert(random_cache(2, 600, Dtype::kF32), {.key_bits = 3}).value();
  for (const std::int64_t n : kCuts) {
    const Cache cut = truncate(whole, n).value();
    expect_first_tokens(whole, cut, n);
    EXPECT_EQ(packed_block_count(attention(cut, 0).k), n / kTokenBlock);
  }
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
  cache.layers.emplace_back(ArraysLayer{});
  EXPECT_EQ(truncate(cache, 9).error().code, ErrorCode::kUnsupported);
  EXPECT_TRUE(truncate(cache, 10));
}

}  // namespace
}  // namespace tqcache::cache
