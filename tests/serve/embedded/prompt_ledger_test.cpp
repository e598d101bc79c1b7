// The ledger knows which prompts continue, and which one is hit.

#include "tqcache/serve/prompt_ledger.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

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

PromptEvent event(const Ids& ids, std::int64_t now, std::int64_t cached = 0,
                  const char* tenant = "a") {
  return {.tenant = tenant,
          .model = "m",
          .prompt_tokens = std::ssize(ids),
          .tokens = ids,
          .cached_tokens = cached,
          .saved_seconds = cached > 0 ? 2.0 : 0.0,
          .now = now};
}

TEST(PromptLedger, AConversationIsOneEntry) {
  PromptLedger ledger;
  const Ids first = tokens(0, 600);
  const Ids second = joined(first, tokens(5000, 300));
  const auto id = ledger.note(event(first, 10));
  EXPECT_EQ(ledger.note(event(second, 20, 600)), id);
  const auto entries = ledger.entries("a");
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
  const auto one = ledger.note(event(joined(system, tokens(9000, 300)), 1));
  const auto two = ledger.note(event(joined(system, tokens(20000, 300)), 2, 512));
  EXPECT_NE(one, two);
  ledger.note(event(joined(joined(system, tokens(20000, 256)), tokens(70000, 300)), 3, 768));
  // The third continues all whole blocks of the second, so they are one entry.
  const auto entries = ledger.entries("a");
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
  ledger.note(event(ids, 1));
  ledger.note(event(ids, 2, 512, "b"));
  ASSERT_EQ(ledger.entries("a").size(), 1u);
  EXPECT_EQ(ledger.entries("a")[0].hits, 0);
  ASSERT_EQ(ledger.entries("b").size(), 1u);
  EXPECT_TRUE(ledger.entries("c").empty());
}

TEST(PromptLedger, AddsUpBytesOfSeveralRuns) {
  PromptLedger ledger;
  const auto id = ledger.note(event(tokens(0, 600), 1));
  ledger.set_bytes(id, 100);
  ledger.set_bytes(id, 150);
  ledger.finish_bytes(id, 200);
  ledger.set_bytes(id, 50);
  EXPECT_EQ(ledger.entries("a")[0].stored_bytes, 250u);
  ledger.finish_bytes(12345, 1);  // an entry that was dropped
}

TEST(PromptLedger, DropsTheLeastRecentlyUsed) {
  PromptLedger ledger;
  for (std::int64_t i = 0; i < std::ssize(Ids(PromptLedger::kMaxEntries)) + 5; ++i) {
    ledger.note(event(tokens(static_cast<std::int32_t>(i) * 7, 256), i));
  }
  const auto entries = ledger.entries("a");
  ASSERT_EQ(entries.size(), PromptLedger::kMaxEntries);
  EXPECT_EQ(entries.back().used, 5);
}

// Texts without a whole token block are not the beginning of each other.
TEST(PromptLedger, ShortTextsAreApart) {
  PromptLedger ledger;
  ledger.note(event(tokens(0, 10), 1));
  ledger.note(event(tokens(0, 20), 2));
  EXPECT_EQ(ledger.entries("a").size(), 2u);
}

}  // namespace
}  // namespace tqcache::serve
