// What a page file tells: nothing of prompts and tenants to those who lack its key.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "tqcache/hash.h"
#include "tqcache/serve/prompt_ledger.h"

namespace tqcache::serve {
namespace {

using Ids = std::vector<std::int32_t>;
using Json = nlohmann::json;
using testing::HasSubstr;
using testing::Not;

Ids tokens(std::int32_t first, std::size_t n) {
  Ids ids(n);
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

const PromptOwner kAnn{"ann", "m"};

std::optional<SecretKey> key(char c) {
  const std::string text(SecretKey::kBytes, c);
  return SecretKey(as_bytes(text));
}

Json file_of(PromptLedger& ledger) {
  ledger.keep(kAnn, tokens(0, 600), "", 10);
  return Json::parse(ledger.to_json());
}

TEST(PromptDigests, EqualPromptsCannotBeComparedAcrossFiles) {
  // Two servers without keys, and two with different keys of their stores.
  PromptLedger p, q, r(key('r')), s(key('s'));
  std::vector<Json> files = {file_of(p), file_of(q), file_of(r), file_of(s)};
  for (std::size_t i = 0; i < files.size(); ++i) {
    const Json& one = files[i]["entries"][0];
    ASSERT_EQ(one["chain"].size(), 2u);
    for (std::size_t j = 0; j < i; ++j) {
      const Json& other = files[j]["entries"][0];
      EXPECT_NE(one["chain"][0], other["chain"][0]);
      EXPECT_NE(one["chain"][1], other["chain"][1]);
      EXPECT_NE(one["tenant"], other["tenant"]);
    }
  }
}

TEST(PromptDigests, OneKeyGivesOneDigest) {
  PromptLedger one(key('k')), two(key('k'));
  EXPECT_EQ(file_of(one), file_of(two));
}

// Otherwise whoever reads the file could compute the digests of prompts and tenants.
TEST(PromptDigests, TheFileOfAnEncryptedStoreHasNoKey) {
  PromptLedger open, sealed(key('k'));
  EXPECT_TRUE(file_of(open).contains("key"));
  const Json file = file_of(sealed);
  EXPECT_FALSE(file.contains("key"));
  const std::string text = sealed.to_json();
  EXPECT_THAT(text, Not(HasSubstr("kkkk")));
  EXPECT_THAT(text, Not(HasSubstr(to_hex(key('k')->bytes()).substr(0, 16))));
}

TEST(PromptDigests, AFileIsReadWithItsKeyAlone) {
  PromptLedger open, sealed(key('k'));
  const std::string open_text = file_of(open).dump(), sealed_text = file_of(sealed).dump();
  const auto code_of = [](std::optional<SecretKey> with, const std::string& text) {
    PromptLedger ledger(std::move(with));
    const Result<void> read = ledger.add_json(text);
    EXPECT_EQ(ledger.entries(std::nullopt).size(), read ? 1u : 0u);
    // It goes on as before.
    const bool is_known = ledger.nearest(kAnn, tokens(0, 600)).has_value();
    EXPECT_EQ(is_known, read.ok());
    return read ? std::optional<ErrorCode>() : read.error().code;
  };
  EXPECT_EQ(code_of({}, open_text), std::nullopt);
  EXPECT_EQ(code_of(key('k'), sealed_text), std::nullopt);
  EXPECT_EQ(code_of(key('x'), sealed_text), ErrorCode::kNoKey);
  EXPECT_EQ(code_of({}, sealed_text), ErrorCode::kNoKey);
  EXPECT_EQ(code_of(key('k'), open_text), ErrorCode::kNoKey);
  Json both = Json::parse(open_text);
  both["key_check"] = "00";
  EXPECT_EQ(code_of({}, both.dump()), ErrorCode::kCorrupt);
  Json neither = Json::parse(open_text);
  neither.erase("key");
  EXPECT_EQ(code_of({}, neither.dump()), ErrorCode::kCorrupt);
  for (const char* bad : {"00", "zz", ""}) {
    Json other = Json::parse(open_text);
    std::string text = other["key"];
    other["key"] = bad + text.substr(2) + (*bad == '0' ? "0" : "");
    EXPECT_EQ(code_of({}, other.dump()), ErrorCode::kCorrupt) << bad;
  }
}

// A file of version 1 as it was written for a prompt of ann with the tokens 0 to 599 (its digests
// had no key).
TEST(PromptDigests, VersionOneIsReadAndWrittenAnew) {
  constexpr const char* kVersion1 =
      R"({"entries":[{"chain":[10895189164716788183,16231168784244703093],"created":10,"hit_tokens":512,"hits":2,"model":"m",)"
      R"("saved_seconds":1.5,"stored_bytes":77,"tenant":"ffac9b85fa4b8cea00f4127c4c92025a","tokens":600,"used":11}],)"
      R"("tqcache_prompts":1})";
  for (const bool is_encrypted : {false, true}) {
    PromptLedger ledger(is_encrypted ? key('k') : std::nullopt);
    ASSERT_TRUE(ledger.add_json(kVersion1));
    const auto entries = ledger.entries(kAnn.tenant);
    ASSERT_EQ(entries.size(), 1u);
    EXPECT_EQ(entries[0].hits, 2);
    EXPECT_EQ(entries[0].stored_bytes, 77u);
    ASSERT_TRUE(ledger.nearest(kAnn, tokens(0, 600)));
    EXPECT_EQ(ledger.nearest(kAnn, tokens(0, 600))->n_common, 512);
    const std::string again = ledger.to_json();
    EXPECT_THAT(again, HasSubstr("\"tqcache_prompts\":2"));
    EXPECT_THAT(again, Not(HasSubstr("ffac9b85fa4b")));
    EXPECT_THAT(again, Not(HasSubstr("10895189164716788183")));
  }
}

TEST(PromptDigests, TheNearestEntryIsFoundByItsBlocks) {
  PromptLedger ledger;
  EXPECT_FALSE(ledger.nearest(kAnn, tokens(0, 600)));
  ledger.keep(kAnn, tokens(0, 1000), "", 1);
  Ids other = tokens(0, 600);
  other[300] = -1;
  ledger.keep(kAnn, other, "", 2);
  const auto nearest = ledger.nearest(kAnn, tokens(0, 700));
  ASSERT_TRUE(nearest);
  EXPECT_EQ(nearest->n_common, 512);
  EXPECT_EQ(nearest->n_tokens, 1000);
  EXPECT_FALSE(ledger.nearest({"bob", "m"}, tokens(0, 700)));
  EXPECT_FALSE(ledger.nearest({"ann", "another model"}, tokens(0, 700)));
  EXPECT_FALSE(ledger.nearest(kAnn, tokens(1, 700)));
}

// After a restart without --page-file the store has what no ledger knows.
TEST(PromptLedgerHits, WhatTheStoreGaveBecomesAnEntry) {
  PromptLedger ledger;
  ledger.hit(kAnn, tokens(0, 1772), 1771, 3.0, 20);
  auto entries = ledger.entries("ann");
  ASSERT_EQ(entries.size(), 1u);
  EXPECT_EQ(entries[0].n_tokens, 1771);
  EXPECT_EQ(entries[0].hits, 1);
  EXPECT_EQ(entries[0].hit_tokens, 1771);
  EXPECT_EQ(entries[0].saved_seconds, 3.0);
  EXPECT_EQ(entries[0].used, 20);
  EXPECT_EQ(entries[0].stored_bytes, 0u);
  // The conversation goes on as the same entry.
  ledger.keep(kAnn, tokens(0, 2000), "", 21);
  ledger.hit(kAnn, tokens(0, 2100), 2000, 1.0, 22);
  entries = ledger.entries("ann");
  ASSERT_EQ(entries.size(), 1u);
  EXPECT_EQ(entries[0].n_tokens, 2000);
  EXPECT_EQ(entries[0].hits, 2);
  // A prompt with a part of it has its own end, which nobody kept.
  ledger.hit({"bob", "m"}, tokens(0, 900), 600, 1.0, 23);
  entries = ledger.entries("bob");
  ASSERT_EQ(entries.size(), 1u);
  EXPECT_EQ(entries[0].n_tokens, 600);
  EXPECT_EQ(entries[0].chain.size(), 2u);
  ledger.hit({"carl", "m"}, tokens(0, 900), 255, 1.0, 24);  // less than is ever kept
  EXPECT_TRUE(ledger.entries("carl").empty());
}

// The list does not count a hit for a prompt that shares the system prompt alone.
TEST(PromptLedgerHits, TwoConversationsWithOneSystemPromptAreTwoEntries) {
  PromptLedger ledger;
  Ids one = tokens(0, 1500), two = tokens(0, 1500);
  for (std::size_t i = 600; i < two.size(); ++i) two[i] = 5;
  ledger.hit(kAnn, one, 1400, 1.0, 1);
  ledger.hit(kAnn, two, 1300, 1.0, 2);
  const auto entries = ledger.entries("ann");
  ASSERT_EQ(entries.size(), 2u);
  for (const KeptPrompt& entry : entries) EXPECT_EQ(entry.hits, 1);
  // A third one with that system prompt counts for one that has it.
  Ids three = tokens(0, 900);
  for (std::size_t i = 550; i < three.size(); ++i) three[i] = 6;
  ledger.hit(kAnn, three, 512, 1.0, 3);
  EXPECT_EQ(ledger.entries("ann").size(), 2u);
  EXPECT_EQ(ledger.entries("ann")[0].hits, 2);
}

TEST(PromptLedgerRecent, TheLastPromptsOfATenantAreListed) {
  PromptLedger ledger;
  for (std::int64_t i = 1; i <= 60; ++i) ledger.note("ann", {.n_tokens = i});
  ledger.note("bob", {.n_tokens = 1000});
  const auto ann = ledger.recent("ann");
  ASSERT_EQ(ann.size(), PromptLedger::kMaxRecent);
  EXPECT_EQ(ann.front().n_tokens, 60);
  EXPECT_EQ(ann.back().n_tokens, 11);
  EXPECT_EQ(ledger.recent("bob").size(), 1u);
  EXPECT_EQ(ledger.recent(std::nullopt).size(), PromptLedger::kMaxRecent);
  EXPECT_EQ(ledger.recent(std::nullopt).front().n_tokens, 1000);
  EXPECT_TRUE(ledger.recent("carl").empty());
  EXPECT_TRUE(ledger.has_others("ann"));
  EXPECT_THAT(ledger.to_json(), Not(HasSubstr("1000")));  // in memory only
  for (std::size_t i = 0; i < PromptLedger::kMaxAllRecent; ++i) ledger.note(std::to_string(i), {});
  EXPECT_TRUE(ledger.recent("ann").empty());
}

TEST(PromptLedgerTotals, AreOfEachTenantWithoutNames) {
  PromptLedger ledger;
  ledger.add_bytes(ledger.keep(kAnn, tokens(0, 600), "", 5), 70);
  ledger.add_bytes(ledger.keep(kAnn, tokens(5000, 600), "", 6), 7);
  ledger.keep({"bob", "m"}, tokens(0, 600), "", 9);
  ledger.hit({"bob", "m"}, tokens(0, 600), 512, 2.0, 10);
  const auto totals = ledger.totals();
  ASSERT_EQ(totals.size(), 2u);
  EXPECT_EQ(totals[0].n_prompts, 1);
  EXPECT_EQ(totals[0].hits, 1);
  EXPECT_EQ(totals[0].hit_tokens, 512);
  EXPECT_EQ(totals[0].used, 10);
  EXPECT_EQ(totals[1].n_prompts, 2);
  EXPECT_EQ(totals[1].stored_bytes, 77u);
  EXPECT_TRUE(ledger.has_others("ann"));
  PromptLedger alone;
  alone.keep(kAnn, tokens(0, 600), "", 5);
  EXPECT_FALSE(alone.has_others("ann"));
  EXPECT_TRUE(alone.has_others(""));
}

}  // namespace
}  // namespace tqcache::serve
