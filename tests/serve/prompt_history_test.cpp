// The history of prompts knows the nearest one.

#include "tqcache/serve/prompt_history.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace tqcache::serve {
namespace {

TEST(PromptHistory, TellsWhereAPromptPartsFromTheNearestOne) {
  PromptHistory history;
  EXPECT_FALSE(history.nearest("ann", "You are a cook."));
  history.add("ann", "You are a cook. Today is Monday. Hello.");
  history.add("ann", "Translate: dog");
  const auto parting = history.nearest("ann", "You are a cook. Today is Tuesday. Hello.");
  ASSERT_TRUE(parting);
  EXPECT_EQ(parting->at, 25u);
  EXPECT_EQ(parting->of, 39u);
  EXPECT_EQ(parting->here, "ou are a cook. Today is Tuesday. Hello.");
  EXPECT_EQ(parting->there, "ou are a cook. Today is Monday. Hello.");
  const auto stranger = history.nearest("ann", "zzz");
  ASSERT_TRUE(stranger);
  EXPECT_EQ(stranger->at, 0u);
}

TEST(PromptHistory, AContinuationReplacesThePromptThatItContinues) {
  PromptHistory history;
  history.add("ann", "system|user");
  const auto next = history.nearest("ann", "system|user|answer|user");
  ASSERT_TRUE(next);
  EXPECT_EQ(next->at, next->of);
  history.add("ann", "system|user|answer|user");
  EXPECT_EQ(history.n_prompts(), 1u);
  history.add("ann", "system|user");  // a retry
  EXPECT_EQ(history.n_prompts(), 1u);
  EXPECT_EQ(history.nearest("ann", "system|user")->of, 23u);
  // With what lies between both in the order of bytes.
  history.add("ann", "system|user|answer|tool");
  history.add("ann", "system|user|answer|user|more");
  EXPECT_EQ(history.n_prompts(), 2u);
}

TEST(PromptHistory, TenantsAreApart) {
  PromptHistory history;
  history.add("ann", "a secret of ann");
  history.add("ann", "a secret of all");
  EXPECT_FALSE(history.nearest("bob", "a secret of ann"));
}

TEST(PromptHistory, PartsBetweenCharacters) {
  PromptHistory history;
  history.add("ann", "caf\xc3\xa9 noir");
  history.add("ann", "caf\xc3\xaa");  // e with another accent: the second byte differs
  const auto parting = history.nearest("ann", "caf\xc3\xa8");
  ASSERT_TRUE(parting);
  EXPECT_EQ(parting->at, 3u);
  EXPECT_EQ(parting->here, "caf\xc3\xa8");
  // Bytes that are no text are compared as bytes.
  history.add("bob", std::string(8, '\x80') + "1");
  EXPECT_EQ(history.nearest("bob", std::string(8, '\x80') + "2")->at, 8u);
}

// Against a list that compares every text with every other.
TEST(PromptHistory, AgreesWithALookAtAllPrompts) {
  std::minstd_rand random(7);
  for (int round = 0; round < 200; ++round) {
    PromptHistory history;
    std::vector<std::string> all;
    const auto text = [&] {
      std::string made(1 + random() % 7, 'a');
      for (char& c : made) c = static_cast<char>('a' + random() % 3);
      return made;
    };
    for (int i = 0; i < 40; ++i) {
      const std::string asked = text();
      std::size_t longest = 0;
      for (const std::string& each : all) {
        std::size_t n = 0;
        while (n < asked.size() && n < each.size() && asked[n] == each[n]) ++n;
        longest = std::max(longest, n);
      }
      const auto nearest = history.nearest("ann", asked);
      ASSERT_EQ(nearest.has_value(), !all.empty());
      ASSERT_EQ(nearest ? nearest->at : 0, longest) << asked;

      history.add("ann", asked);
      const auto begins = [&](const std::string& each) { return each.starts_with(asked); };
      if (std::ranges::any_of(all, begins)) continue;
      std::erase_if(all, [&](const std::string& each) { return asked.starts_with(each); });
      all.push_back(asked);
      ASSERT_EQ(history.n_prompts(), all.size());
    }
  }
}

TEST(PromptHistory, DropsWhatWasNotUsedForTheLongestTime) {
  PromptHistory history({.max_bytes = std::size_t{1} << 20, .max_prompts = 3});
  history.add("ann", "1 first");
  history.add("bob", "2 second");
  history.add("ann", "3 third");
  history.add("ann", "1 first");  // used again
  history.add("ann", "4 fourth");
  EXPECT_EQ(history.n_prompts(), 3u);
  EXPECT_FALSE(history.nearest("bob", "2 second"));
  EXPECT_EQ(history.nearest("ann", "1 first")->at, 7u);
}

TEST(PromptHistory, KeepsToItsBytes) {
  PromptHistory history({.max_bytes = 10'000, .max_prompts = 1000});
  for (char c = 'a'; c <= 'z'; ++c) {
    history.add("ann", std::string(2000, c));
    EXPECT_LE(history.n_bytes(), 10'000u);
  }
  EXPECT_EQ(history.n_prompts(), 4u);
  EXPECT_EQ(history.nearest("ann", std::string(3000, 'z'))->at, 2000u);
  EXPECT_EQ(history.nearest("ann", "a")->at, 0u);
  history.add("ann", std::string(10'000, 'x'));  // does not fit: the others stay
  EXPECT_EQ(history.n_prompts(), 4u);
  for (int i = 0; i < 10; ++i) history.add(std::string(1, static_cast<char>('0' + i)), "");
  EXPECT_EQ(history.n_prompts(), 4u);
}

TEST(PromptHistory, ThreadsMayShareIt) {
  PromptHistory history({.max_bytes = 100'000, .max_prompts = 50});
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 500; ++i) {
        const std::string text = "system " + std::to_string(i % 37) + " of " + std::to_string(t);
        history.add("ann", text);
        EXPECT_GE(history.nearest("ann", text)->at, 7u);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(history.n_prompts(), 50u);
}

}  // namespace
}  // namespace tqcache::serve
