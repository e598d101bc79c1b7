// What a file says of the whole cache, and what becomes of it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "migrations/v1_to_v2.h"
#include "support/matchers.h"
#include "support/v1_builder.h"

namespace tqcache::test {
namespace v1_facts_test {

using migrations::Migration;
using migrations::v1_to_v2;
using migrations::V1File;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

V1Builder layers() { return std::move(V1Builder(3).dense({1, 8}, V1Dtype::kF16)); }

void expect_refused(const std::string& key, const std::string& value, ErrorCode code,
                    const std::string& message) {
  EXPECT_THAT(v1_to_v2(layers().fact(key, value).build()),
              test::FailsWith(code, AllOf(HasSubstr("fact \"" + key + "\": "), HasSubstr(message))))
      << value;
}

TEST(V1Metadata, BecomeTheIdentity) {
  const Migration migration = must(v1_to_v2(layers().facts().build()));
  const cache::Identity& identity = migration.cache.identity;
  EXPECT_EQ(identity.architecture, "qwen3");
  EXPECT_EQ(identity.model_name, "a model of the time");
  EXPECT_EQ(identity.rope, (cache::Rope{cache::RopeStyle::kHalfSplit, 32, 10000}));
  EXPECT_EQ(to_hex(identity.weights_fingerprint), std::string(64, '1'));
  EXPECT_EQ(to_hex(identity.tokenizer_fingerprint), std::string(32, 'a') + std::string(32, 'b'));
  EXPECT_FALSE(identity.adapter_fingerprint);
  EXPECT_EQ(identity.source_format, "tqcache-v1");
  EXPECT_EQ(migration.cache.n_tokens(), 3);
  EXPECT_FALSE(migration.cache.hidden_tokens);
  EXPECT_THAT(migration.notes, IsEmpty());
}

TEST(V1Metadata, MayAllBeAbsent) {
  const Migration migration = must(v1_to_v2(layers().build()));
  const cache::Identity& identity = migration.cache.identity;
  EXPECT_EQ(identity.architecture, "");
  EXPECT_EQ(identity.weights_fingerprint, Sha256{});
  EXPECT_EQ(identity.tokenizer_fingerprint, Sha256{});
  EXPECT_EQ(identity.source_format, "tqcache-v1");
  EXPECT_THAT(migration.cache.tokens, ElementsAre(-1, -1, -1));
  ASSERT_TRUE(migration.cache.hidden_tokens);
  EXPECT_THAT(*migration.cache.hidden_tokens, IsEmpty());
  EXPECT_THAT(migration.notes, IsEmpty());
}

// A cache is of use to a model only if all of it is known.
TEST(V1Metadata, MakeAnOriginOnlyTogether) {
  const Migration migration = must(v1_to_v2(layers()
                                                .fact("architecture", "qwen3")
                                                .fact("weights_fingerprint", std::string(64, '1'))
                                                .build()));
  EXPECT_EQ(migration.cache.identity.architecture, "");
  EXPECT_EQ(migration.cache.identity.weights_fingerprint, Sha256{});
  EXPECT_THAT(migration.notes, ElementsAre("architecture or fingerprints missing; origin unknown"));
  for (const char* fingerprint : {"weights_fingerprint", "tokenizer_fingerprint"}) {
    const auto alone = must(v1_to_v2(layers().fact(fingerprint, std::string(64, '1')).build()));
    EXPECT_EQ(alone.notes, migration.notes) << fingerprint;
  }
}

TEST(V1Metadata, HaveARope) {
  const auto rope = [](const char* value) {
    return must(v1_to_v2(layers().fact("rope", value).build())).cache.identity.rope;
  };
  EXPECT_EQ(rope(R"({"style": "interleaved", "n_dims": 8, "base": 1e6})"),
            (cache::Rope{cache::RopeStyle::kInterleaved, 8, 1e6}));
  EXPECT_EQ(rope(R"({"style": "none", "n_dims": 0, "base": 0})"),
            (cache::Rope{cache::RopeStyle::kNone, 0, 0}));
  expect_refused("rope", "[]", ErrorCode::kCorrupt, "not a JSON object");
  expect_refused("rope", R"({"style": "twisted", "n_dims": 8, "base": 1})", ErrorCode::kUnsupported,
                 "style");
  expect_refused("rope", R"({"style": "none", "n_dims": 1025, "base": 1})", ErrorCode::kTooLarge,
                 "n_dims 1025");
  expect_refused("rope", R"({"style": "none", "n_dims": 8, "base": -1})", ErrorCode::kCorrupt,
                 "base");
  expect_refused("rope", R"({"style": "none", "n_dims": 8, "base": 1e999})", ErrorCode::kCorrupt,
                 "");
  expect_refused("rope", R"({"style": "none", "n_dims": 8})", ErrorCode::kCorrupt, "base");
  expect_refused("rope", R"({"style": "none", "n_dims": 8, "base": 1, "factors": []})",
                 ErrorCode::kUnsupported, "not known");
  expect_refused("rope", std::string(65537, ' '), ErrorCode::kTooLarge, "65537 bytes");
}

TEST(V1Metadata, HaveFingerprintsOf64Digits) {
  expect_refused("weights_fingerprint", std::string(63, '1'), ErrorCode::kCorrupt, "63 characters");
  expect_refused("weights_fingerprint", std::string(64, 'g'), ErrorCode::kCorrupt, "hexadecimal");
  expect_refused("tokenizer_fingerprint", std::string(62, '1') + "+1", ErrorCode::kCorrupt,
                 "hexadecimal");
  expect_refused("tokenizer_fingerprint", std::string(63, '1') + "g", ErrorCode::kCorrupt,
                 "hexadecimal");
}

TEST(V1Metadata, HaveShortNames) {
  expect_refused("model", std::string(1025, 'x'), ErrorCode::kTooLarge, "1025 bytes");
  expect_refused("architecture", std::string(1025, 'x'), ErrorCode::kTooLarge, "1025 bytes");
}

TEST(V1Tokens, AreAnArrayOfIds) {
  const auto tokens = [](const char* value) {
    return must(v1_to_v2(layers().fact("tokens", value).build())).cache.tokens;
  };
  EXPECT_THAT(tokens("[1,2,3]"), ElementsAre(1, 2, 3));
  EXPECT_THAT(tokens("\r [ 0 ,\n2147483647\t, 3 ] "), ElementsAre(0, 2147483647, 3));
  for (const char* value :
       {"", "[", "[1", "[1,", "[1,2,3", "[1,2,3]]", "[1,2,,3]", "[1,2,3,]", "[-1,2,3]", "[-0,2,3]",
        "[2147483648,2,3]", "[1.5,2,3]", "[\"1\",2,3]", "1,2,3", "[1 2 3]", "{}", "[1,2,3]x"}) {
    expect_refused("tokens", value, ErrorCode::kCorrupt, "not an array of token ids");
  }
}

TEST(V1Tokens, HaveALimit) {
  std::string value = "[0";
  for (std::int64_t i = 0; i < cache::kMaxTokens; ++i) value += ",0";
  expect_refused("tokens", value + "]", ErrorCode::kTooLarge, "more tokens than a cache may have");
}

TEST(V1Tokens, AreAsManyAsTheLayersSay) {
  EXPECT_THAT(v1_to_v2(layers().fact("tokens", "[1,2]").build()),
              test::FailsWith(ErrorCode::kCorrupt, "layer 0: 3 tokens where 2 belong"));
}

TEST(V1Tokens, AreOfLayersThatAgree) {
  V1File file = layers().build();
  file.entries.push_back(V1Builder(4).dense({1, 8}, V1Dtype::kF16).build().entries[0]);
  const auto migration = v1_to_v2(file);
  ASSERT_FALSE(migration.ok());
  EXPECT_EQ(migration.error().message, "layer 1: 4 tokens where 3 belong");
}

TEST(V1Tokens, HaveToBeCountedSomehow) {
  EXPECT_THAT(v1_to_v2(V1Builder(3).arrays().build()),
              test::FailsWith(ErrorCode::kUnsupported, HasSubstr("how many tokens")));
  const Migration counted = must(v1_to_v2(V1Builder(3).arrays().fact("tokens", "[7, 8]").build()));
  EXPECT_THAT(counted.cache.tokens, ElementsAre(7, 8));
}

}  // namespace v1_facts_test
}  // namespace tqcache::test
