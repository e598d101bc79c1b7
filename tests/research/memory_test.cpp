#include "tqcache/research/memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "research/demo_dialogue.h"
#include "support/matchers.h"
#include "tqcache/research/answers.h"

namespace tqcache::research {
namespace memory_test {

using test::chat_dialogue;
using test::demo_model;
using test::must;
using testing::HasSubstr;

std::string words_of(const Story& story) {
  std::string text;
  for (const Turn& turn : story.turns) text += turn.user + "\n" + turn.assistant + "\n";
  return text;
}

// Whether a text contains a word as a whole word.
bool has_word(const std::string& text, const std::string& word) {
  return (" " + plain_answer(text) + " ").find(" " + plain_answer(word) + " ") != std::string::npos;
}

MemoryOptions options(const test::TempDir& dir) {
  MemoryOptions options;
  options.configurations = must(cache::parse_configurations("f32,turbo4"));
  options.n_tokens = 300;
  options.turns = {0, 1};
  options.folder = dir.path();
  options.n_threads = 2;
  return options;
}

TEST(Story, StatesEveryFactOnce) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const Story story = draw_story(seed);
    ASSERT_EQ(story.facts.size(), kFactKinds.size());
    const std::string words = words_of(story);
    for (const Fact& fact : story.facts) {
      const std::size_t at = words.find(fact.statement);
      ASSERT_NE(at, std::string::npos) << fact.statement;
      EXPECT_EQ(words.find(fact.statement, at + 1), std::string::npos) << fact.statement;
    }
  }
}

TEST(Story, AsksForTheFactsThatItStated) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    for (const Fact& fact : draw_story(seed).facts) {
      EXPECT_TRUE(has_word(fact.statement, fact.value));
      EXPECT_TRUE(has_word(fact.answer, fact.value));
      EXPECT_FALSE(has_word(fact.question, fact.value));
    }
  }
}

TEST(Story, IsTheSameForTheSameSeed) {
  EXPECT_EQ(words_of(draw_story(5)), words_of(draw_story(5)));
  std::set<std::string> stories;
  for (std::uint64_t seed = 0; seed < 50; ++seed) stories.insert(words_of(draw_story(seed)));
  EXPECT_EQ(stories.size(), 50u);
}

TEST(SmallTalk, NeverStatesAFact) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const Story story = draw_story(seed);
    SmallTalk talk(seed, story.facts[1].value);
    for (int i = 0; i < 30; ++i) {
      const Turn turn = talk.next();
      for (const Fact& fact : story.facts) {
        EXPECT_FALSE(has_word(turn.user + " " + turn.assistant, fact.value)) << fact.value;
      }
    }
  }
}

TEST(SmallTalk, SaysNothingTwiceInOneTurn) {
  SmallTalk talk(1, "Paris");
  for (int i = 0; i < 50; ++i) {
    const std::string user = talk.next().user;
    std::vector<std::string> beginnings = {user.substr(0, 20)};
    for (std::size_t at = 0; (at = user.find(". ", at)) != std::string::npos;) {
      at += 2;
      beginnings.push_back(user.substr(at, 20));
    }
    EXPECT_GE(beginnings.size(), 2u) << user;
    EXPECT_EQ(std::set<std::string>(beginnings.begin(), beginnings.end()).size(), beginnings.size())
        << user;
  }
}

TEST(Conversation, HasAtLeastTheWantedTokens) {
  const test::TempDir dir;
  MemoryOptions wanted = options(dir);
  for (const std::int64_t n : {1, 300, 2000}) {
    wanted.n_tokens = n;
    const Conversation conversation =
        must(make_conversation(demo_model().tokenizer, chat_dialogue(), wanted, 0));
    EXPECT_GE(std::ssize(conversation.saved), n);
    EXPECT_LT(std::ssize(conversation.saved), std::max<std::int64_t>(n, 700) + 150);
    EXPECT_EQ(conversation.further.size(), 1u);
  }
}

TEST(Conversation, DependsOnTheSeedAndTheTrial) {
  const test::TempDir dir;
  MemoryOptions wanted = options(dir);
  const auto saved = [&](std::int64_t trial) {
    return must(make_conversation(demo_model().tokenizer, chat_dialogue(), wanted, trial)).saved;
  };
  const Ids first = saved(0);
  EXPECT_EQ(first, saved(0));
  EXPECT_NE(first, saved(1));
  wanted.seed = 1;
  EXPECT_NE(first, saved(0));
}

// A short real run: the bundled model recalls most facts after a few hundred tokens.
TEST(Memory, SurvivesAFile) {
  const test::TempDir dir;
  const MemoryOptions wanted = options(dir);
  const MemoryResult result = must(measure_memory(demo_model(), chat_dialogue(), wanted));
  ASSERT_EQ(result.scores.size(), 2u);
  for (const auto& of_configuration : result.scores) {
    ASSERT_EQ(of_configuration.size(), kFactKinds.size());
    AnswerScore sum;
    for (const auto& of_fact : of_configuration) {
      ASSERT_EQ(of_fact.size(), 2u);
      for (const AnswerScore& score : of_fact) {
        EXPECT_EQ(score.trials, 1);
        EXPECT_LE(score.exact, score.found);
        EXPECT_LE(score.log_probability, 0);
        sum.add(score);
      }
    }
    EXPECT_GE(sum.found, 12);  // of 16
  }
  EXPECT_EQ(dir.entry_count(), 0u);
}

TEST(Memory, StopsWhenInterruptedAndLeavesNoFile) {
  const test::TempDir dir;
  const auto result = measure_memory(demo_model(), chat_dialogue(), options(dir),
                                     [](std::uint64_t, std::uint64_t) { return false; });
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code, ErrorCode::kInterrupted);
  EXPECT_EQ(dir.entry_count(), 0u);
}

TEST(Memory, NamesTheFileThatCannotBeWritten) {
  const test::TempDir dir;
  MemoryOptions wanted = options(dir);
  wanted.folder = dir / "none";
  const auto result = measure_memory(demo_model(), chat_dialogue(), wanted);
  ASSERT_FALSE(result);
  EXPECT_THAT(result.error().message, testing::StartsWith((dir / "none").string()));
}

TEST(Memory, RefusesWhatDoesNotFitIntoTheContext) {
  const test::TempDir dir;
  MemoryOptions wanted = options(dir);
  wanted.n_tokens = 16384;
  EXPECT_THAT(check_memory(demo_model(), chat_dialogue(), wanted),
              test::FailsWith(ErrorCode::kInvalidArgument,
                              HasSubstr("the model's context has only 16384")));
  wanted = options(dir);
  wanted.turns = {400};
  EXPECT_THAT(check_memory(demo_model(), chat_dialogue(), wanted).error().message,
              HasSubstr("context"));
}

TEST(Memory, RefusesConfigurationsThatDoNotFitTheModel) {
  const test::TempDir dir;
  MemoryOptions wanted = options(dir);
  wanted.configurations = must(cache::parse_configurations("k=mixed:3:200:4"));
  EXPECT_FALSE(check_memory(demo_model(), chat_dialogue(), wanted));
  wanted.configurations.clear();
  EXPECT_FALSE(check_memory(demo_model(), chat_dialogue(), wanted));
}

TEST(Memory, IsReportedByConfigurationFactAndTurn) {
  const test::TempDir dir;
  const MemoryOptions wanted = options(dir);
  MemoryResult result;
  result.scores.assign(
      2, std::vector(kFactKinds.size(), std::vector<AnswerScore>(2, {.trials = 2, .found = 1})));
  const eval::Report report = memory_report(wanted, result);
  const eval::Table& table = std::get<eval::Table>(report.figures[0]);
  ASSERT_EQ(table.rows.size(), 2u);
  EXPECT_EQ(std::get<std::string>(table.rows[1][0]), "turbo4");
  EXPECT_EQ(std::get<eval::Number>(table.rows[1][1]).value, 32);
  EXPECT_EQ(std::get<eval::Number>(table.rows[1][2]).value, 0.5);
  const eval::HeatMap& map = std::get<eval::HeatMap>(report.figures[3]);
  EXPECT_EQ(map.rows.size(), kFactKinds.size());
  EXPECT_EQ(map.low, 0);
  EXPECT_EQ(map.high, 1);
  EXPECT_EQ(map.columns, (std::vector<std::string>{"after loading", "1 turn later"}));
  EXPECT_EQ(map.values[7][1], 0.5);
}

}  // namespace memory_test
}  // namespace tqcache::research
