// Vocabularies and merge lists that are made to be slow.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "support/gaussian.h"
#include "support/matchers.h"
#include "tokenizer/tiny_pieces.h"
#include "tqcache/tokenizer.h"
#include "tqcache/tokenizer/merge_table.h"

namespace tqcache::tokenizer {
namespace hostile_vocabulary_test {

using testing::HasSubstr;

// Pairs of ids that a multiplication by a known number puts into the same few places of a table.
std::vector<Merge> colliding_merges(std::size_t n) {
  constexpr std::uint64_t kFactor = 0x9e3779b97f4a7c15u;
  std::uint64_t inverse = kFactor;  // Newton's iteration, modulo 2^64
  for (int i = 0; i < 6; ++i) inverse *= 2 - kFactor * inverse;
  EXPECT_EQ(inverse * kFactor, 1u);
  const auto n_bits = static_cast<std::uint64_t>(std::bit_width(2 * n));
  const std::uint64_t slots = ((std::uint64_t{1} << n_bits) - 1) << 29;
  test::SplitMix64 random(1);
  std::set<std::uint64_t> keys;
  while (keys.size() < n) {
    const std::uint64_t mixed = (random.next() & ~slots) * inverse;
    const std::uint64_t key = mixed ^ (mixed >> 32);
    if ((key & 0x8000000080000000u) == 0) keys.insert(key);  // both ids are positive
  }
  std::vector<Merge> merges;
  for (const std::uint64_t key : keys) {
    merges.push_back(
        {static_cast<std::int32_t>(key >> 32), static_cast<std::int32_t>(key & 0xffffffffu), 0});
  }
  return merges;
}

TEST(HostileMerges, DoNotMeetInOnePlace) {
  const MergeTable table = MergeTable::make(colliding_merges(5000)).value();
  EXPECT_LT(table.longest_search(), 200u);
}

TEST(HostileMerges, OfOrdinaryIdsAreFoundAtOnce) {
  std::vector<Merge> merges;
  for (std::int32_t left = 0; left < 100; ++left) {
    for (std::int32_t right = 0; right < 100; ++right) merges.push_back({left, right, 0});
  }
  EXPECT_LT(MergeTable::make(merges).value().longest_search(), 200u);
}

// Texts that libstdc++'s hash puts into one bucket.
TEST(HostileTokens, DoNotMeetInOneBucket) {
  constexpr std::size_t kBuckets = 1009;
  std::set<std::size_t> buckets;
  std::size_t n = 0;
  for (int i = 0; n < 300; ++i) {
    const std::string text = "token" + std::to_string(i);
    if (std::hash<std::string_view>()(text) % kBuckets != 7) continue;
    buckets.insert(TextHash()(text) % kBuckets);
    ++n;
  }
  EXPECT_GT(buckets.size(), 150u);
}

// Scores of "a", "aa", ... in a text of these: each place begins with all of them.
tiny::Json nested_pieces(int n) {
  tiny::Json root = tiny::unigram();
  std::string piece;
  for (int i = 0; i < n; ++i) {
    piece += 'a';
    root["model"]["vocab"].push_back({piece, -1.0 - i});
  }
  return root;
}

TEST(HostileUnigram, IsStopped) {
  const auto tokenizer = Tokenizer::from_json(as_bytes(nested_pieces(3000).dump()), {}).value();
  EXPECT_THAT(tokenizer.encode(std::string(200'000, 'a'), Tokenizer::Special::kParse),
              test::FailsWith(ErrorCode::kTooLarge, HasSubstr("takes too long")));
  EXPECT_TRUE(tokenizer.encode(std::string(2000, 'a'), Tokenizer::Special::kParse).ok());
}

TEST(HostileSpecialTokens, AreStopped) {
  tiny::Json root = tiny::tokenizer();
  for (int i = 0; i < 3; ++i) {
    const std::string name = std::string(20'000, '<') + std::to_string(i);
    root["added_tokens"].push_back(tiny::added_token(264 + i, name, true));
  }
  const auto tokenizer = Tokenizer::from_json(as_bytes(root.dump()), {}).value();
  const auto ids = tokenizer.encode(std::string(100'000, '<'), Tokenizer::Special::kParse);
  ASSERT_FALSE(ids.ok());
  EXPECT_EQ(ids.error().code, ErrorCode::kTooLarge);
}

TEST(Tokenizing, StopsWhenAsked) {
  const std::string text = [] {
    std::string all;
    while (all.size() < 3'000'000) all += "hello hell ";
    return all;
  }();
  const std::string files[] = {tiny::tokenizer().dump(), tiny::unigram().dump(),
                               tiny::pieces().dump()};
  for (const std::string& file : files) {
    const auto tokenizer = Tokenizer::from_json(as_bytes(file), {}).value();
    int n_asked = 0;
    Tokenizer::EncodeOptions options;
    options.keep_going = [&] { return ++n_asked < 2; };
    const auto ids = tokenizer.encode(text, options);
    ASSERT_FALSE(ids.ok());
    EXPECT_EQ(ids.error().code, ErrorCode::kInterrupted);
    EXPECT_EQ(n_asked, 2);
  }
}

}  // namespace hostile_vocabulary_test
}  // namespace tqcache::tokenizer
