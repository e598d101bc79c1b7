// How a text is cut into words for a SentencePiece vocabulary.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tqcache/tokenizer/pretokenizer.h"

namespace tqcache::tokenizer {
namespace word_rules_test {

using testing::ElementsAre;

std::vector<std::string> words(const WordRules& rules, std::string_view text, bool begins = true) {
  std::vector<std::string> all;
  const auto add = [&](std::string_view word) -> Result<void> {
    all.emplace_back(word);
    return {};
  };
  EXPECT_TRUE(split_words(rules, text, begins, add).ok());
  return all;
}

TEST(WordRules, LeaveATextWholeUnlessTold) {
  EXPECT_THAT(words({}, " a b▁"), ElementsAre(" a b▁"));
  EXPECT_THAT(words({}, ""), ElementsAre());
}

TEST(WordRules, PutASpaceBeforeATextThatHasNone) {
  WordRules each;
  each.prefix = SpacePrefix::kEach;
  EXPECT_THAT(words(each, "a"), ElementsAre(" a"));
  EXPECT_THAT(words(each, " a"), ElementsAre(" a"));
  EXPECT_THAT(words(each, "a", false), ElementsAre(" a"));
  WordRules first;
  first.prefix = SpacePrefix::kFirst;
  EXPECT_THAT(words(first, "a"), ElementsAre(" a"));
  EXPECT_THAT(words(first, "a", false), ElementsAre("a"));
}

TEST(WordRules, CutBeforeEverySpace) {
  WordRules rules;
  rules.cut_at_spaces = true;
  EXPECT_THAT(words(rules, "a b  c "), ElementsAre("a", " b", " ", " c", " "));
  rules.mark_spaces = true;
  EXPECT_THAT(words(rules, "a▁b"), ElementsAre("a", " b"));
}

TEST(WordRules, FindTheEndOfAWordWithItsSpaces) {
  EXPECT_EQ(find_word_end("ab cd"), 2u);
  EXPECT_EQ(find_word_end("  ab cd"), 4u);
  EXPECT_EQ(find_word_end("ab"), 2u);
  EXPECT_EQ(find_word_end("   "), 3u);
  EXPECT_EQ(find_word_end(""), 0u);
}

TEST(WordRules, DropWhiteSpaceBetweenWords) {
  WordRules rules;
  rules.drop_white_space = true;
  rules.prefix = SpacePrefix::kEach;
  EXPECT_THAT(words(rules, "\u3000a\tb \n"), ElementsAre(" a", " b"));
  rules.prefix = SpacePrefix::kFirst;
  EXPECT_THAT(words(rules, "a b"), ElementsAre(" a", "b"));
  EXPECT_THAT(words(rules, " a b"), ElementsAre("a", "b"));
}

}  // namespace word_rules_test
}  // namespace tqcache::tokenizer
