#include "tqcache/research/needle.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "research/demo_dialogue.h"
#include "support/matchers.h"
#include "tqcache/research/answers.h"

namespace tqcache::research {
namespace needle_test {

using test::chat_dialogue;
using test::demo_model;
using test::encode;
using test::must;
using testing::HasSubstr;

const Haystack& haystack() {
  static const Haystack made = must(Haystack::make(test::excerpt_text(), demo_model().tokenizer));
  return made;
}

std::string text_of(const Ids& ids) { return demo_model().tokenizer.decode(ids); }

NeedlePrompt place(const Needle& needle, std::int64_t length, double depth,
                   std::uint64_t seed = 0) {
  return must(place_needle(haystack(), demo_model().tokenizer, chat_dialogue(), needle,
                           {length, depth, seed}));
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t n = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

TEST(CodeNeedle, HidesFiveDigits) {
  std::set<std::string> codes;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const Needle needle = code_needle(seed);
    EXPECT_EQ(needle.value.size(), 5u);
    EXPECT_TRUE(std::ranges::all_of(needle.value, [](char c) { return c >= '0' && c <= '9'; }));
    EXPECT_THAT(needle.statement, HasSubstr(needle.value));
    EXPECT_THAT(needle.answer, HasSubstr(needle.value));
    EXPECT_EQ(needle.statement, code_needle(seed).statement);
    codes.insert(needle.value);
  }
  EXPECT_GT(codes.size(), 45u);
}

TEST(CodeNeedle, ValueIsNotInItsQuestion) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const Needle needle = code_needle(seed);
    EXPECT_FALSE(match_answer(needle.question, {&needle.value, 1}).found);
  }
}

TEST(CustomNeedle, IsItsOwnAnswerUnlessOneIsGiven) {
  const Needle plain = must(custom_needle("The bell rings at noon.", "When does it ring?", ""));
  EXPECT_EQ(plain.answer, plain.statement);
  const Needle given = must(custom_needle("The bell rings at noon.", "When does it ring?", "Noon"));
  EXPECT_EQ(given.answer, "Noon");
  EXPECT_EQ(given.value, "Noon");
}

TEST(CustomNeedle, RefusesAQuestionThatContainsTheAnswer) {
  EXPECT_THAT(
      custom_needle("The bell rings at noon.", "Does it ring at NOON?", "noon"),
      test::FailsWith(ErrorCode::kInvalidArgument, HasSubstr("the question contains the answer")));
}

TEST(CustomNeedle, RefusesTextsWithoutWords) {
  for (const auto& [statement, question, name] :
       {std::tuple{"...", "What?", "needle"}, std::tuple{"A bell.", "?", "question"}}) {
    const auto needle = custom_needle(statement, question, "");
    ASSERT_FALSE(needle);
    EXPECT_THAT(needle.error().message, HasSubstr(name));
  }
  EXPECT_FALSE(custom_needle("A bell.", "What?", "!"));
}

TEST(Haystack, KnowsWhereParagraphsAndSentencesEnd) {
  const std::string text = "One two. Three\n\nFour \"five!\" Six";
  const Haystack small = must(Haystack::make(text, demo_model().tokenizer));
  std::string marked;
  for (std::int64_t i = 0; i < small.n_tokens(); ++i) {
    if (small.break_before(i) == Haystack::Break::kParagraph) marked += '#';
    if (small.break_before(i) == Haystack::Break::kSentence) marked += '|';
    marked += demo_model().tokenizer.token_bytes(small.ids()[static_cast<std::size_t>(i)]);
  }
  EXPECT_EQ(marked, "#One two.| Three\n\n#Four \"five!\"| Six");
  EXPECT_EQ(small.break_before(small.n_tokens()), Haystack::Break::kParagraph);
}

TEST(Haystack, FindsTheNearestBreak) {
  const Haystack small = must(Haystack::make("a b c. d e f g\n\nh i j", demo_model().tokenizer));
  ASSERT_EQ(text_of(Ids(small.ids().begin(), small.ids().begin() + 4)), "a b c.");
  const std::int64_t end = small.n_tokens();
  EXPECT_EQ(small.nearest_break(5, 0, end, 1), 4);    // the sentence's
  EXPECT_EQ(small.nearest_break(5, 0, end, 100), 9);  // the paragraph's, though the other is nearer
  EXPECT_EQ(small.nearest_break(6, 0, end, 0), 6);
  EXPECT_EQ(small.nearest_break(6, 6, 8, 100), 6);
}

TEST(Haystack, BeginsRunsWithParagraphs) {
  std::set<std::int64_t> starts;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const std::int64_t start = haystack().draw_start(1000, seed);
    EXPECT_EQ(haystack().break_before(start), Haystack::Break::kParagraph);
    EXPECT_LE(start + 1000, haystack().n_tokens());
    EXPECT_EQ(start, haystack().draw_start(1000, seed));
    starts.insert(start);
  }
  EXPECT_GT(starts.size(), 10u);
  EXPECT_EQ(haystack().draw_start(haystack().n_tokens(), 7), 0);
}

TEST(PlaceNeedle, MakesPromptsOfExactlyTheWantedLength) {
  for (const std::int64_t length : {128, 256, 1000, 1024, 6000}) {
    for (const double depth : {0.0, 12.5, 50.0, 99.0, 100.0}) {
      for (std::uint64_t seed = 0; seed < 8; ++seed) {
        const NeedlePrompt prompt = place(code_needle(seed), length, depth, seed);
        EXPECT_EQ(std::ssize(prompt.cached) + std::ssize(prompt.asked), length);
      }
    }
  }
}

TEST(PlaceNeedle, PutsItFirstAndLast) {
  const Needle needle = code_needle(3);
  const NeedlePrompt first = place(needle, 700, 0);
  EXPECT_EQ(first.n_before, 0);
  EXPECT_THAT(text_of(first.cached),
              HasSubstr("Here is a long document.\n\n" + needle.statement + "\n\n"));
  const NeedlePrompt last = place(needle, 700, 100);
  EXPECT_EQ(last.n_before, last.n_haystack);
  EXPECT_THAT(text_of(last.cached),
              HasSubstr("\n\n" + needle.statement + "\n\n<|im_end|>\n<|im_start|>assistant\n"));
}

TEST(PlaceNeedle, PutsItNearTheWantedDepthBetweenParagraphsOrSentences) {
  const Needle needle = code_needle(3);
  for (const double depth : {10.0, 25.0, 50.0, 75.0, 90.0}) {
    for (std::uint64_t seed = 0; seed < 8; ++seed) {
      const NeedlePrompt prompt = place(needle, 2000, depth, seed);
      const double at =
          100.0 * static_cast<double>(prompt.n_before) / static_cast<double>(prompt.n_haystack);
      EXPECT_NEAR(at, depth, 5.2);
      const Ids rest(prompt.cached.begin() + prompt.needle_at, prompt.cached.end());
      EXPECT_TRUE(text_of(rest).starts_with(needle.statement + "\n\n"));
      const Ids before(prompt.cached.begin(), prompt.cached.begin() + prompt.needle_at);
      EXPECT_TRUE(text_of(before).ends_with("\n\n"));
    }
  }
}

TEST(PlaceNeedle, ValueAppearsOnceAndOnlyInTheText) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const Needle needle = code_needle(seed);
    const NeedlePrompt prompt = place(needle, 1500, 50, seed);
    EXPECT_EQ(count(text_of(prompt.cached), needle.value), 1u);
    EXPECT_EQ(count(text_of(prompt.asked), needle.value), 0u);
    EXPECT_THAT(text_of(prompt.asked), HasSubstr(needle.question));
  }
}

TEST(PlaceNeedle, GivesTheSamePromptForTheSameSeed) {
  const Needle needle = code_needle(1);
  EXPECT_EQ(place(needle, 900, 50, 5).cached, place(needle, 900, 50, 5).cached);
  EXPECT_NE(place(needle, 900, 50, 5).cached, place(needle, 900, 50, 6).cached);
}

TEST(PlaceNeedle, RefusesWhatDoesNotFit) {
  const Needle needle = code_needle(1);
  const auto refusal = [&](std::int64_t length) {
    const auto prompt =
        place_needle(haystack(), demo_model().tokenizer, chat_dialogue(), needle, {length, 50, 0});
    EXPECT_FALSE(prompt);
    EXPECT_EQ(prompt.error().code, ErrorCode::kInvalidArgument);
    return prompt.error().message;
  };
  EXPECT_THAT(refusal(60), HasSubstr("no room for a text"));
  EXPECT_THAT(refusal(8192), HasSubstr("the haystack has 6183 tokens"));
}

TEST(PlaceNeedle, RefusesANeedleThatIsThereAlready) {
  const Needle needle =
      must(custom_needle("So she was considering in her own mind", "What did she do?", "think"));
  const auto prompt =
      place_needle(haystack(), demo_model().tokenizer, chat_dialogue(), needle, {900, 50, 0});
  ASSERT_FALSE(prompt);
  EXPECT_THAT(prompt.error().message, HasSubstr("already contains the needle"));
}

TEST(PlaceNeedle, WorksWithoutTurns) {
  const Dialogue plain = must(plain_dialogue(demo_model().tokenizer));
  const Needle needle = code_needle(2);
  const NeedlePrompt prompt =
      must(place_needle(haystack(), demo_model().tokenizer, plain, needle, {800, 50, 0}));
  EXPECT_EQ(std::ssize(prompt.cached) + std::ssize(prompt.asked), 800);
  EXPECT_EQ(text_of(prompt.asked), needle.question + "\nAnswer:");
}

}  // namespace needle_test
}  // namespace tqcache::research
