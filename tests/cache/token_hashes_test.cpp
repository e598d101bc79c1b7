#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "cache/random_cache.h"
#include "support/matchers.h"
#include "tqcache/cache.h"

namespace tqcache::cache {
namespace token_hashes_test {

using test::random_cache;
using testing::Each;
using testing::HasSubstr;

std::vector<std::int32_t> counting(std::int32_t n) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(n));
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}

Cache cache_of(const std::vector<std::int32_t>& ids) {
  Cache cache = random_cache(1, std::ssize(ids));
  cache.tokens = ids;
  return cache;
}

Cache hidden_cache(std::int32_t n_tokens) {
  Cache cache = cache_of(counting(n_tokens));
  hide_tokens(cache);
  return cache;
}

Cache unknown_cache(std::int64_t n_tokens) {
  Cache cache = random_cache(1, n_tokens);
  std::ranges::fill(cache.tokens, kUnknownToken);
  cache.hidden_tokens.emplace();
  return cache;
}

// Digests that another program made from docs/reference/format.md, "Hidden tokens".
TEST(TokenHashes, AreThoseOfTheFormat) {
  const std::vector<std::int32_t> few = {151644, 872, 198};
  ASSERT_EQ(hash_tokens(few).size(), 1u);
  EXPECT_EQ(to_hex(hash_tokens(few)[0]),
            "4b00687af53ac697f775073213dae508da047b82e5659e7a282a15544e847aa0");
  const std::vector<Sha256> two = hash_tokens(counting(300));
  ASSERT_EQ(two.size(), 2u);
  EXPECT_EQ(to_hex(two[0]), "7aa3bb7a1ab2e7e9df537bf5dacb9d57f965623cf38d9c3a5cb8d52c4518d73b");
  EXPECT_EQ(to_hex(two[1]), "2141841ba1bb1d332dc291a527cad8421c3fee1518b5a7fda2248856c5239ee7");
}

TEST(TokenHashes, AreOneForEveryTokenBlockThatIsBegun) {
  for (const std::int32_t n : {0, 1, 255, 256, 257, 512, 513}) {
    EXPECT_EQ(std::ssize(hash_tokens(counting(n))), block_count(n)) << n;
  }
}

TEST(TokenHashes, StandForAllTokensUpToTheEndOfTheirBlock) {
  const std::vector<Sha256> whole = hash_tokens(counting(600));
  std::vector<std::int32_t> changed = counting(600);
  changed[0] = 7;
  for (std::size_t block = 0; block < 3; ++block) {
    EXPECT_NE(hash_tokens(changed)[block], whole[block]) << block;
  }
  const std::vector<Sha256> longer = hash_tokens(counting(700));
  EXPECT_EQ(longer[0], whole[0]);
  EXPECT_EQ(longer[1], whole[1]);
  EXPECT_NE(longer[2], whole[2]);
}

TEST(HideTokens, LeavesHashesInThePlaceOfIds) {
  const Cache cache = hidden_cache(300);
  EXPECT_FALSE(tokens_known(cache));
  EXPECT_EQ(cache.n_tokens(), 300);
  EXPECT_THAT(cache.tokens, Each(kUnknownToken));
  EXPECT_EQ(*cache.hidden_tokens, hash_tokens(counting(300)));
  EXPECT_TRUE(validate(cache));
}

TEST(HideTokens, DoesNothingToTokensThatAreHidden) {
  Cache cache = unknown_cache(300);
  hide_tokens(cache);
  EXPECT_TRUE(cache.hidden_tokens->empty());
}

TEST(RevealTokens, TakesTheFirstIdsOfThePromptThatWasHashed) {
  for (const std::int32_t n : {0, 1, 256, 300}) {
    Cache cache = hidden_cache(n);
    ASSERT_TRUE(reveal_tokens(cache, counting(400))) << n;
    EXPECT_TRUE(tokens_known(cache));
    EXPECT_EQ(cache.tokens, counting(n));
    EXPECT_TRUE(validate(cache));
  }
}

void expect_not_revealed(Cache cache, const std::vector<std::int32_t>& ids, ErrorCode code,
                         std::string_view part) {
  const Cache before = cache;
  EXPECT_THAT(reveal_tokens(cache, ids), test::FailsWith(code, HasSubstr(part)));
  EXPECT_EQ(cache.tokens, before.tokens);
  EXPECT_EQ(cache.hidden_tokens, before.hidden_tokens);
}

TEST(RevealTokens, RefusesAnotherPromptNamingItsFirstTokenBlock) {
  std::vector<std::int32_t> other = counting(600);
  other[599] = 5;
  expect_not_revealed(hidden_cache(600), other, ErrorCode::kMismatch, "token block 2: other");
  expect_not_revealed(cache_of(counting(600)), other, ErrorCode::kMismatch, "token block 2: other");
  other[256] = 5;
  expect_not_revealed(hidden_cache(600), other, ErrorCode::kMismatch, "token block 1: other");
  expect_not_revealed(cache_of(counting(600)), other, ErrorCode::kMismatch, "token block 1: other");
}

TEST(RevealTokens, RefusesFewerTokensThanTheCacheHas) {
  for (const Cache& cache : {hidden_cache(300), cache_of(counting(300)), unknown_cache(300)}) {
    expect_not_revealed(cache, counting(299), ErrorCode::kMismatch,
                        "299 tokens for a cache of 300");
  }
}

TEST(RevealTokens, NeedsHashes) {
  expect_not_revealed(unknown_cache(3), counting(3), ErrorCode::kUnsupported, "no hashes");
}

TEST(RevealTokens, OnlyComparesWhenTheIdsAreThere) {
  Cache cache = cache_of(counting(300));
  EXPECT_TRUE(reveal_tokens(cache, counting(301)));
  EXPECT_EQ(cache.tokens, counting(300));
}

}  // namespace token_hashes_test
}  // namespace tqcache::cache
