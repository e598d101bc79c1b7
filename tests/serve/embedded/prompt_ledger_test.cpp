// The ledger knows which prompts continue, and which one is hit.

#include "tqcache/serve/prompt_ledger.h"

#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "support/temp_dir.h"

namespace tqcache::serve {
namespace {

using Ids = std::vector<std::int32_t>;

Ids tokens(std::int32_t first, std::size_t n) {
  Ids ids(n);
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

Ids joined(Ids a, const Ids& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

const PromptOwner kAnn{"salt of ann", "m"};
const PromptOwner kBob{"salt of bob", "m"};

// As a server that answers a prompt.
PromptLedger::Id note(PromptLedger& ledger, const Ids& ids, std::int64_t now,
                      std::int64_t cached = 0, const PromptOwner& owner = kAnn) {
  if (cached > 0) ledger.hit(owner, ids, cached, 2.0, now);
  return ledger.keep(owner, ids, "", now);
}

TEST(PromptLedger, AConversationIsOneEntry) {
  PromptLedger ledger;
  const Ids first = tokens(0, 600);
  const Ids second = joined(first, tokens(5000, 300));
  const auto id = note(ledger, first, 10);
  EXPECT_EQ(note(ledger, second, 20, 600), id);
  const auto entries = ledger.entries(kAnn.tenant);
  ASSERT_EQ(entries.size(), 1u);
  EXPECT_EQ(entries[0].n_tokens, 900);
  EXPECT_EQ(entries[0].hits, 1);
  EXPECT_EQ(entries[0].hit_tokens, 600);
  EXPECT_EQ(entries[0].saved_seconds, 2.0);
  EXPECT_EQ(entries[0].created, 10);
  EXPECT_EQ(entries[0].used, 20);
}

TEST(PromptLedger, AHitIsOfThePromptThatSharesMost) {
  PromptLedger ledger;
  const Ids system = tokens(0, 512);
  const auto one = note(ledger, joined(system, tokens(9000, 300)), 1);
  const auto two = note(ledger, joined(system, tokens(20000, 300)), 2, 512);
  EXPECT_NE(one, two);
  note(ledger, joined(joined(system, tokens(20000, 256)), tokens(70000, 300)), 3, 768);
  // The third continues all whole blocks of the second, so they are one entry.
  const auto entries = ledger.entries(kAnn.tenant);
  ASSERT_EQ(entries.size(), 2u);
  EXPECT_EQ(entries[0].id, two);
  EXPECT_EQ(entries[0].used, 3);
  EXPECT_EQ(entries[0].hits, 1);
  EXPECT_EQ(entries[0].hit_tokens, 768);
  EXPECT_EQ(entries[1].id, one);
  EXPECT_EQ(entries[1].hits, 1);
  EXPECT_EQ(entries[1].hit_tokens, 512);
}

TEST(PromptLedger, TenantsAreApart) {
  PromptLedger ledger;
  const Ids ids = tokens(0, 600);
  note(ledger, ids, 1);
  note(ledger, ids, 2, 512, kBob);
  ASSERT_EQ(ledger.entries(kAnn.tenant).size(), 1u);
  EXPECT_EQ(ledger.entries(kAnn.tenant)[0].hits, 0);
  ASSERT_EQ(ledger.entries(kBob.tenant).size(), 1u);
  EXPECT_TRUE(ledger.entries("c").empty());
}

TEST(PromptLedger, AddsUpBytesOfSeveralRuns) {
  PromptLedger ledger;
  const auto id = note(ledger, tokens(0, 600), 1);
  ledger.set_bytes(id, 100);
  ledger.set_bytes(id, 150);
  ledger.add_bytes(id, 200);
  ledger.set_bytes(id, 50);
  EXPECT_EQ(ledger.entries(kAnn.tenant)[0].stored_bytes, 250u);
  ledger.add_bytes(12345, 1);  // an entry that was dropped
}

TEST(PromptLedger, DropsTheLeastRecentlyUsed) {
  PromptLedger ledger;
  for (std::int64_t i = 0; i < std::ssize(Ids(PromptLedger::kMaxEntries)) + 5; ++i) {
    note(ledger, tokens(static_cast<std::int32_t>(i) * 7, 256), i);
  }
  const auto entries = ledger.entries(kAnn.tenant);
  ASSERT_EQ(entries.size(), PromptLedger::kMaxEntries);
  EXPECT_EQ(entries.back().used, 5);
}

// Texts without a whole token block are not the beginning of each other.
TEST(PromptLedger, ShortTextsAreApart) {
  PromptLedger ledger;
  note(ledger, tokens(0, 10), 1);
  note(ledger, tokens(0, 20), 2);
  EXPECT_EQ(ledger.entries(kAnn.tenant).size(), 2u);
}

TEST(PromptLedger, SurvivesInAFile) {
  const test::TempDir dir;
  const std::string path = (dir / "prompts.json").string();
  const Ids first = tokens(0, 600);
  {
    PromptLedger ledger;
    EXPECT_TRUE(load_ledger(path, ledger));  // there is none yet
    const auto id = ledger.keep(kAnn, first, "a secret text", 10);
    ledger.add_bytes(id, 77);
    ledger.hit(kAnn, first, 512, 2.5, 11);
    note(ledger, tokens(9, 300), 12, 0, kBob);
    for (int i = 0; i < 2; ++i) EXPECT_TRUE(save_ledger(path, ledger));
    for (const char* secret : {"secret", "salt"}) {
      EXPECT_EQ(ledger.to_json().find(secret), std::string::npos);
    }
  }
  PromptLedger ledger;
  ASSERT_TRUE(load_ledger(path, ledger));
  EXPECT_EQ(ledger.entries(std::nullopt).size(), 2u);
  const auto entries = ledger.entries(kAnn.tenant);
  ASSERT_EQ(entries.size(), 1u);
  EXPECT_EQ(entries[0].n_tokens, 600);
  EXPECT_EQ(entries[0].stored_bytes, 77u);
  EXPECT_EQ(entries[0].hit_tokens, 512);
  EXPECT_EQ(entries[0].saved_seconds, 2.5);
  EXPECT_EQ(entries[0].used, 11);
  EXPECT_EQ(note(ledger, joined(first, tokens(1, 300)), 20), entries[0].id);
  ledger.set_bytes(entries[0].id, 3);
  EXPECT_EQ(ledger.entries(kAnn.tenant)[0].stored_bytes, 80u);
}

TEST(PromptLedger, RefusesABadFile) {
  PromptLedger good;
  note(good, tokens(0, 600), 5);
  const std::string text = good.to_json();
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    EXPECT_NE(changed.find(from), std::string::npos) << from;
    changed.replace(changed.find(from), from.size(), to);
    return changed;
  };
  for (const std::string& bad :
       {std::string(), std::string("[]"), std::string("{}"), text.substr(0, text.size() / 2),
        with("\"tqcache_prompts\":2", "\"tqcache_prompts\":3"), with("\"hits\":0", "\"hits\":-1"),
        with("\"hits\":0", "\"hits\":\"a\""), with("\"created\":5", "\"created\":99999999999999"),
        with("\"saved_seconds\":0.0", "\"saved_seconds\":-1"),
        with("\"chain\":[", "\"chain\":[-1,"), with("\"chain\":[", "\"chain\":[\"x\","),
        with("\"model\":\"m\"", "\"model\":5")}) {
    PromptLedger ledger;
    EXPECT_FALSE(ledger.add_json(bad)) << bad.substr(0, 200);
    EXPECT_TRUE(ledger.entries(std::nullopt).empty());
  }
  PromptLedger ledger;
  EXPECT_TRUE(ledger.add_json(text));
}

}  // namespace
}  // namespace tqcache::serve
