// What the proxy believes of slots, and the slot that it chooses.

#include "tqcache/serve/slot_table.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace tqcache::serve {
namespace {

using From = SlotTable::From;

SlotState state(std::int64_t id, std::optional<std::int64_t> task, std::int64_t n_tokens,
                bool is_processing = false) {
  SlotState it;
  it.id = id;
  it.task = task;
  it.n_tokens = n_tokens;
  it.is_processing = is_processing;
  return it;
}

// A prompt of so many words, of which the first ones are common to all who share the seed.
std::string words(const std::string& seed, int n) {
  std::string text;
  for (int i = 0; i < n; ++i) text += seed + std::to_string(i) + " ";
  return text;
}

// A table after turns that llama-server has answered. A word is a token.
class SlotTableTest : public testing::Test {
 protected:
  SlotTable table_{std::chrono::milliseconds(0)};
  std::vector<SlotState> server_;  // what it says
  std::int64_t last_task_ = 0;

  void begin(std::size_t n_slots, bool is_unified = false) {
    table_.reset(n_slots);
    table_.set_rules({.is_unified = is_unified});
    for (std::size_t i = 0; i < n_slots; ++i) {
      server_.push_back(state(static_cast<std::int64_t>(i), std::nullopt, 0));
    }
  }
  bool look() { return table_.observe(server_, table_.change()); }

  SlotTable::Wanted wanted(const std::string& prompt, std::int64_t n_stored = 0) const {
    const std::int64_t n_bytes = table_.longest_common(prompt, "");
    const std::string begin = prompt.substr(0, static_cast<std::size_t>(n_bytes));
    return {prompt,   "",      std::ssize(words_of(prompt)),
            n_stored, n_bytes, std::ssize(words_of(begin))};
  }
  static std::vector<std::string> words_of(const std::string& text) {
    std::vector<std::string> all;
    for (std::size_t at = 0, end = 0; (end = text.find(' ', at)) != std::string::npos;
         at = end + 1) {
      all.push_back(text.substr(at, end - at));
    }
    return all;
  }
  // A choice is computed: the slot holds the prompt then.
  void compute(const SlotTable::Choice& choice, const std::string& prompt) {
    KnownSlot now = choice.before;
    now.prompt = prompt;
    now.tenant = "";
    now.n_prompt = std::ssize(words_of(prompt));
    now.has_changed = true;
    now.last_use = std::chrono::steady_clock::now();
    table_.release(choice.slot, now);
    server_[choice.slot] =
        state(static_cast<std::int64_t>(choice.slot), ++last_task_, now.n_prompt);
    look();
  }
  SlotTable::Choice turn(const std::string& prompt, std::int64_t n_stored = 0) {
    look();
    auto choice = table_.take_continued(prompt, "");
    if (!choice) choice = table_.take(wanted(prompt, n_stored), false);
    EXPECT_TRUE(choice);
    if (!choice) return {};
    // Idle slots of a unified cache are cleared when a task begins.
    if (table_.rules().is_unified) {
      for (std::size_t i = 0; i < server_.size(); ++i) {
        if (i != choice->slot && server_[i].task) server_[i].n_tokens = 0;
      }
    }
    compute(*choice, prompt);
    return *choice;
  }
};

TEST_F(SlotTableTest, RestartIsNoticed) {
  begin(2);
  const std::size_t slot = turn(words("a", 100)).slot;
  EXPECT_FALSE(look());
  server_[slot] = state(static_cast<std::int64_t>(slot), std::nullopt, 0);
  EXPECT_TRUE(look());
  EXPECT_EQ(table_.snapshot()[slot].prompt, "");
}

TEST_F(SlotTableTest, SlotOfAnotherClientIsUnknown) {
  begin(2);
  const std::size_t slot = turn(words("a", 100)).slot;
  server_[slot] = state(static_cast<std::int64_t>(slot), 70, 50);
  EXPECT_FALSE(look());
  EXPECT_EQ(table_.snapshot()[slot].prompt, "");
  EXPECT_FALSE(table_.snapshot()[slot].tenant);
}

TEST_F(SlotTableTest, ClearedSlotHoldsNothing) {
  begin(4, true);
  const std::string a = words("a", 1000);
  const std::size_t slot = turn(a).slot;
  server_[slot].n_tokens = 0;  // the task stays the same
  look();
  EXPECT_EQ(table_.snapshot()[slot].prompt, "");
  EXPECT_EQ(table_.snapshot()[slot].n_tokens, 0);
  EXPECT_FALSE(table_.take_continued(a + "more ", ""));
}

TEST_F(SlotTableTest, ContinuedSlotIsTakenWithoutALookIntoTheStore) {
  begin(2);
  const std::string a = words("a", 1000);
  const std::size_t slot = turn(a).slot;
  const auto next = table_.take_continued(a + "more ", "");
  ASSERT_TRUE(next);
  EXPECT_EQ(next->slot, slot);
  EXPECT_EQ(next->from, From::kSlot);
}

TEST_F(SlotTableTest, LongContinuationIsLookedUp) {
  begin(2);
  const std::string a = words("a", 100), longer = words("a", 4000);
  turn(a);
  EXPECT_FALSE(table_.take_continued(longer, ""));
  const auto choice = table_.take(wanted(longer, 3800), false);
  ASSERT_TRUE(choice);
  EXPECT_EQ(choice->from, From::kStore);
}

TEST_F(SlotTableTest, BrokenOffPromptIsLookedUp) {
  begin(1);
  const std::string a = words("a", 1000);
  const auto choice = table_.take(wanted(a), false);
  ASSERT_TRUE(choice);
  KnownSlot now = choice->before;
  now.prompt = a;
  now.tenant = "";
  now.has_changed = true;
  table_.release(0, now);  // the answer has not said how much was computed
  server_[0] = state(0, 1, 300);
  look();
  EXPECT_FALSE(table_.take_continued(a + "more ", ""));
  const auto next = table_.take(wanted(a + "more ", 900), false);
  ASSERT_TRUE(next);
  EXPECT_EQ(next->from, From::kStore);
}

// Two conversations with one long system prompt have a slot each, while slots are empty.
TEST_F(SlotTableTest, UsefulSlotIsLeftAloneWhileOneIsEmpty) {
  begin(4);
  const std::string common = words("system", 1000);
  const std::string a = common + words("a", 200), b = common + words("b", 200);
  const auto first = turn(a);
  const auto second = turn(b, 1000);
  EXPECT_EQ(second.from, From::kStore);
  EXPECT_NE(second.slot, first.slot);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(turn(a + words("x", i)).slot, first.slot);
    EXPECT_EQ(turn(b + words("y", i)).slot, second.slot);
  }
}

TEST_F(SlotTableTest, SlotThatTheStoreHasNotIsTakenOver) {
  begin(4);
  const std::string common = words("system", 1000);
  const auto first = turn(common + words("a", 200));
  const auto second = turn(common + words("b", 200));
  EXPECT_EQ(second.from, From::kSlot);
  EXPECT_EQ(second.slot, first.slot);
}

TEST_F(SlotTableTest, FewCommonWordsDoNotTakeASlot) {
  begin(2);
  const auto first = turn("You are helpful. " + words("a", 500));
  const auto second = turn("You are helpful. " + words("b", 500));
  EXPECT_EQ(second.from, From::kNothing);
  EXPECT_NE(second.slot, first.slot);
}

TEST_F(SlotTableTest, WithoutAnEmptySlotTheOldestIsTaken) {
  begin(2);
  const auto first = turn(words("a", 500));
  turn(words("b", 500));
  const auto third = turn(words("c", 500));
  EXPECT_EQ(third.slot, first.slot);
}

// llama-server without options: what a slot held is in RAM after the next task of another one.
TEST_F(SlotTableTest, RamIsUsedWhereSlotsWereSeenToBeCleared) {
  begin(4, true);
  std::string a = words("a", 1000), b = words("b", 1000);
  turn(a);
  const auto other = turn(b);
  a += "more ";
  const auto again = turn(a, 1000);  // the store has as much
  EXPECT_EQ(again.from, From::kRam);
  EXPECT_EQ(again.slot, other.slot);  // which is not empty: only then RAM is looked at
  EXPECT_FALSE(again.must_prime);
  // It was not there. Then the store is asked.
  table_.note_ram(a, "", false);
  b += "more ";
  EXPECT_EQ(turn(b, 1000).from, From::kStore);
}

// llama-server's RAM takes the prompt of which the greatest part is shared. So an older turn there,
// shared to its end, hides a later one that a client has taken back.
TEST_F(SlotTableTest, StoreIsUsedForAPromptThatPartsFromWhatIsInRam) {
  begin(4, true);
  const std::string a = words("a", 1000);
  turn(a + words("taken back", 20));
  turn(words("b", 1000));
  const std::string other = a + words("instead", 20);
  EXPECT_EQ(turn(other, 1000).from, From::kStore);
  // Only RAM has it.
  turn(words("c", 1000));
  EXPECT_EQ(turn(a + words("once more", 20), 0).from, From::kRam);
}

// With windows or recurrent state llama-server goes back to a checkpoint, of which nothing is
// known.
TEST_F(SlotTableTest, WhatCannotBeCutIsTakenFromTheStoreWhereItParts) {
  begin(4);
  table_.set_rules({.can_cut = false});
  const std::string a = words("a", 1000);
  turn(a + words("taken back", 20));
  turn(words("b", 3));
  const std::string other = a + words("instead", 20);
  EXPECT_EQ(turn(other, 300).from, From::kStore);
  // Where the store has nothing, there may be a checkpoint.
  EXPECT_EQ(turn(a + words("once more", 20), 0).from, From::kSlot);
}

TEST_F(SlotTableTest, OfWhatCannotBeCutRamHasThePromptAndNotTheAnswer) {
  for (const bool can_cut : {true, false}) {
    server_.clear();
    begin(1);
    table_.set_rules({.can_cut = can_cut});
    const std::string a = words("a", 1000);
    const auto first = turn(a);
    server_[first.slot].n_tokens = 1500;  // with its answer
    look();
    turn(words("b", 3));
    const auto again = turn(a + words("answer", 500) + "more ", 1500);
    EXPECT_EQ(again.from, From::kStore) << can_cut;
    EXPECT_EQ(again.n_tokens, 1500);
  }
}

// The client has dropped the answer: RAM must go back, and may have no checkpoint near the prompt.
TEST_F(SlotTableTest, OfWhatCannotBeCutTheStoreIsSurerThanRamBehindADroppedAnswer) {
  for (const bool is_stored : {true, false}) {
    server_.clear();
    begin(2, true);
    table_.set_rules({.is_unified = true, .can_cut = false});
    const std::string a = words("a", 1000);
    const auto first = turn(a);
    server_[first.slot].n_tokens = 1400;  // with its answer
    look();
    server_[first.slot].n_tokens = 0;  // llama-server has cleared it
    turn(words("b", 1000));
    EXPECT_EQ(turn(a + words("else", 60), is_stored ? 992 : 0).from,
              is_stored ? From::kStore : From::kRam);
  }
}

// A server that has worked before the proxy began may have more than the store, which an empty slot
// would hide; but what the store has is sure.
TEST_F(SlotTableTest, WhatIsNotKnownIsLookedForWhereTheStoreHasLittle) {
  for (const bool can_cut : {true, false}) {
    for (const std::int64_t n_stored : {0, 300, 700}) {
      server_.clear();
      begin(2);
      table_.set_rules({.can_cut = can_cut, .is_older = true});
      const bool is_enough = can_cut ? n_stored == 700 : n_stored > 0;
      EXPECT_EQ(turn(words("a", 1000), n_stored).from, is_enough ? From::kStore : From::kRam)
          << can_cut << " " << n_stored;
    }
  }
}

TEST_F(SlotTableTest, WithoutAClearedSlotTheStoreIsUsed) {
  begin(1);
  const std::string a = words("a", 1000);
  turn(a);
  turn(words("b", 1000));
  EXPECT_EQ(turn(a + "more ", 1000).from, From::kStore);
}

// llama-server keeps what it replaces in RAM, even where nothing shows that.
TEST_F(SlotTableTest, RamIsUsedForWhatTheStoreDoesNotHave) {
  begin(1);
  const std::string a = words("a", 1000);
  turn(a);
  turn(words("b", 3));
  const auto again = turn(a + "more ", 800);
  EXPECT_EQ(again.from, From::kRam);
  EXPECT_GE(again.n_tokens, 984);
}

TEST_F(SlotTableTest, EmptySlotIsPrimedForRam) {
  begin(2, true);
  const std::string a = words("a", 1000);
  const auto first = turn(a);
  server_[first.slot].n_tokens = 0;
  const auto again = turn(a + "more ", 0);
  EXPECT_EQ(again.from, From::kRam);
  EXPECT_TRUE(again.must_prime);
}

TEST_F(SlotTableTest, RamIsNotUsedForClientsWhoAreApart) {
  begin(1);
  table_.set_rules({.may_use_ram = false});
  const std::string a = words("a", 1000);
  turn(a);
  turn(words("b", 1000));
  EXPECT_EQ(turn(a + "more ", 0).from, From::kNothing);
}

TEST_F(SlotTableTest, OtherTenantsPromptsAreNotSeen) {
  begin(1);
  const std::string a = words("a", 1000);
  turn(a);
  look();
  EXPECT_FALSE(table_.take_continued(a + "more ", "bob"));
  const auto choice = table_.take({a, "bob", 1000, 0}, false);
  ASSERT_TRUE(choice);
  EXPECT_EQ(choice->from, From::kNothing);
}

TEST_F(SlotTableTest, ShiftedContextIsDoubtful) {
  begin(1);
  const auto choice = table_.take(wanted(words("a", 500)), false);
  ASSERT_TRUE(choice);
  KnownSlot now = choice->before;
  now.prompt = words("a", 500);
  now.n_prompt = 500;
  now.n_expected = 700;  // with the answer
  now.has_changed = true;
  table_.release(0, now);
  server_[0] = state(0, 1, 430);
  look();
  EXPECT_TRUE(table_.snapshot()[0].is_doubtful);
}

TEST_F(SlotTableTest, SlotBesideAForeignRequestIsDoubtful) {
  begin(1);
  const auto choice = table_.take(wanted(words("a", 500)), false);
  ASSERT_TRUE(choice);
  table_.begin_foreign();
  table_.end_foreign();
  KnownSlot now = choice->before;
  now.prompt = words("a", 500);
  now.has_changed = true;
  table_.release(0, now);
  EXPECT_TRUE(table_.snapshot()[0].is_doubtful);
}

TEST_F(SlotTableTest, OldNewsDoNotCount) {
  begin(1);
  const std::uint64_t before = table_.change();
  const auto choice = table_.take(wanted(words("a", 500)), false);
  ASSERT_TRUE(choice);
  KnownSlot now = choice->before;
  now.prompt = words("a", 500);
  now.task = 5;
  table_.release(0, now);
  EXPECT_FALSE(table_.observe({state(0, std::nullopt, 0)}, before));
  EXPECT_NE(table_.snapshot()[0].prompt, "");
}

TEST_F(SlotTableTest, NextTurnWaitsForTheRunningOne) {
  begin(2);
  const std::string a = words("a", 500);
  const auto first = table_.take(wanted(a), true);
  ASSERT_TRUE(first);
  EXPECT_FALSE(table_.take(wanted(a + "more "), true));
  EXPECT_TRUE(table_.take(wanted(a + "more "), false));  // not for ever
}

TEST_F(SlotTableTest, UsedAndBusySlotsAreNotChosen) {
  begin(2);
  ASSERT_TRUE(table_.take(wanted(words("a", 500)), false));
  server_[1] = state(1, 9, 10, true);  // of somebody else
  server_[0] = state(0, 8, 10, true);
  look();
  EXPECT_FALSE(table_.take(wanted(words("b", 500)), false));
  server_[1].is_processing = false;
  look();
  EXPECT_TRUE(table_.take(wanted(words("b", 500)), false));
}

TEST_F(SlotTableTest, SlotThatIsNotWantedIsNeverInUse) {
  begin(1);
  const std::uint64_t before = table_.change();
  bool is_free = false;
  EXPECT_FALSE(table_.try_take(0, [&](const KnownSlot& slot) {
    is_free = !slot.is_used;
    return false;
  }));
  EXPECT_TRUE(is_free);
  EXPECT_EQ(table_.change(), before);
  EXPECT_TRUE(table_.try_take(0, [](const KnownSlot&) { return true; }));
  EXPECT_FALSE(table_.try_take(0, [](const KnownSlot&) { return true; }));
  EXPECT_FALSE(table_.try_take(1, [](const KnownSlot&) { return true; }));
}

TEST_F(SlotTableTest, OrderEndsWhenTheServerHasBegun) {
  constexpr std::chrono::milliseconds kNow(0);
  begin(2);
  const auto choice = table_.take(wanted(words("a", 500)), false);
  ASSERT_TRUE(choice);
  const std::uint64_t order = table_.take_order(kNow);
  ASSERT_NE(order, 0u);
  look();
  EXPECT_EQ(table_.take_order(kNow), 0u);  // not sent yet
  EXPECT_FALSE(table_.is_sending());
  table_.sending(order, choice->slot);
  look();
  EXPECT_TRUE(table_.is_sending());
  EXPECT_EQ(table_.take_order(kNow), 0u);
  server_[choice->slot] = state(static_cast<std::int64_t>(choice->slot), 1, 0, true);
  look();
  const std::uint64_t next = table_.take_order(kNow);
  EXPECT_NE(next, 0u);
  table_.end_order(order);  // has ended already
  EXPECT_EQ(table_.take_order(kNow), 0u);
  table_.end_order(next);
  EXPECT_NE(table_.take_order(kNow), 0u);
}

}  // namespace
}  // namespace tqcache::serve
