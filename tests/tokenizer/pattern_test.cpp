// The pre-tokenizer's regular expressions.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "support/matchers.h"
#include "tqcache/tokenizer/pretokenizer.h"
#include "tqcache/tokenizer/tokenizer_spec.h"

namespace tqcache::tokenizer {
namespace pattern_test {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

Result<std::vector<std::string>> try_to_split(std::string_view pattern, std::string_view text,
                                              std::function<bool()> keep_going = {}) {
  const Pretokenizer pretokenizer = Pretokenizer::compile(pattern).value();
  std::vector<std::string> pieces;
  Pretokenizer::Matcher matcher(pretokenizer);
  WorkBudget budget(text.size(), std::move(keep_going));
  TQC_TRY(matcher.split(text, budget, [&](std::string_view piece) -> Result<void> {
    pieces.emplace_back(piece);
    return {};
  }));
  return pieces;
}

std::vector<std::string> split(std::string_view pattern, std::string_view text) {
  return try_to_split(pattern, text).value();
}

TEST(Pretokenizer, CutsAtMatchesAndBetweenThem) {
  EXPECT_THAT(split("b+", "abbc"), ElementsAre("a", "bb", "c"));
  EXPECT_THAT(split("b+", "bb"), ElementsAre("bb"));
  EXPECT_THAT(split("b+", "xyz"), ElementsAre("xyz"));
  EXPECT_THAT(split("b+", ""), IsEmpty());
}

TEST(Pretokenizer, CutsAsGpt2Does) {
  EXPECT_THAT(split(kGpt2Pattern, "I'll pay  $42, na\xc3\xafve\n"),
              ElementsAre("I", "'ll", " pay", " ", " $", "42", ",", " na\xc3\xafve", "\n"));
}

TEST(Pretokenizer, StepsOverEmptyMatches) {
  EXPECT_THAT(split("b*",
                    "\xc3\xa9\xc3\xa9"
                    "bb\xc3\xa9"),
              ElementsAre("\xc3\xa9\xc3\xa9", "bb", "\xc3\xa9"));
}

TEST(Pretokenizer, FoldsCaseOnlyWhereTold) {
  EXPECT_THAT(split("(?i:ab)|b", "ABBab"), ElementsAre("AB", "B", "ab"));
}

TEST(Pretokenizer, CountsTheSpacesOfUnicode) {
  const auto between = [](std::string_view c) { return std::string("a").append(c).append("b"); };
  // U+0085, U+3000 and U+202F are spaces; U+180E was one until Unicode 6.3, U+200B never.
  for (const char* space : {"\xc2\x85", "\xe3\x80\x80", "\xe2\x80\xaf", "\v", "\f"}) {
    EXPECT_THAT(split("\\s|[^\\s]+", between(space)), ElementsAre("a", space, "b"));
  }
  for (const char* other : {"\xe1\xa0\x8e", "\xe2\x80\x8b"}) {
    EXPECT_THAT(split("\\s|\\S+", between(other)), ElementsAre(between(other)));
  }
}

TEST(Pretokenizer, StopsAnExpressionThatRunsAway) {
  const auto result = try_to_split("(?:a|a|a)+\\d", std::string(60, 'a').append(" "));
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, ErrorCode::kTooLarge);
}

// Each match stays below the limit of one; there are many.
TEST(Pretokenizer, StopsATextWhoseMatchesTakeLongTogether) {
  const std::string text(10'000, 'a');
  EXPECT_THAT(try_to_split("(?:a|a){0,22}c|.", text),
              test::FailsWith(ErrorCode::kTooLarge, HasSubstr("takes too long")));
  // The same with places at which nothing matches.
  const auto late = try_to_split("(?:a|a){0,18}c", text + "c");
  ASSERT_FALSE(late.ok());
  EXPECT_EQ(late.error().code, ErrorCode::kTooLarge);
}

TEST(Pretokenizer, StopsWhenAsked) {
  int n_asked = 0;
  const auto stop = [&] { return ++n_asked < 3; };
  const auto result = try_to_split("(?:a|a){0,15}c|.", std::string(10'000, 'a'), stop);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, ErrorCode::kInterrupted);
  EXPECT_EQ(n_asked, 3);
}

// Longer than the places that are tried at once, in characters of every length.
TEST(Pretokenizer, FindsMatchesThatAreFarApart) {
  for (const char* character : {"x", "\xc3\xa9", "\xe3\x80\x82", "\xf0\x9f\x98\x80"}) {
    std::string between;
    while (between.size() < 200'000) between += character;
    EXPECT_THAT(split("\\p{N}", between + "1" + between + "2"),
                ElementsAre(between, "1", between, "2"));
  }
}

// Of more steps than are tried first.
TEST(Pretokenizer, TakesTheStepsThatAMatchNeeds) {
  const std::string text = std::string(3000, 'b') + "!";
  EXPECT_THAT(split("(?:b|b)*!|b+", text), ElementsAre(text));
  EXPECT_THAT(split("(?:a|a){0,12}c|.", "aaaaaaaaaaaaaaac"),
              ElementsAre("a", "a", "a", "aaaaaaaaaaaac"));
}

TEST(Pretokenizer, TakesALongRunOfSpaces) {
  const std::string spaces(1'000'000, ' ');
  const std::vector<std::string> pieces = split("\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+", spaces + "x");
  EXPECT_THAT(pieces, ElementsAre(std::string(999'999, ' '), " ", "x"));
}

TEST(TranslatePattern, RefusesWhatTheEnginesDisagreeOn) {
  for (const char* pattern :
       {"^a",    "a$",         "\\w+",  "\\ba",    "\\h",         "\\v",    "\\R",        "\\X",
        "\\K",   "\\Qa",       "\\1",   "\\x41",   "[[:alpha:]]", "[a&&b]", "[]a]",       "[^]a]",
        "[\\S]", "(?<name>a)", "(?>a)", "(?i)a",   "(*NO_JIT)a",  "(?R)",   "\\p{Greek}", "\\p{^L}",
        "\\p",   "\\p{",       "\\pL",  "a{1,3}+", "a{,3}"}) {
    const auto translated = translate_pattern(pattern);
    ASSERT_FALSE(translated.ok()) << pattern;
    EXPECT_EQ(translated.error().code, ErrorCode::kUnsupported) << pattern;
  }
}

TEST(TranslatePattern, RefusesPatternsThatEndTooEarly) {
  for (const char* pattern : {"[a", "a\\", "[^"}) {
    const auto translated = translate_pattern(pattern);
    ASSERT_FALSE(translated.ok()) << pattern;
    EXPECT_EQ(translated.error().code, ErrorCode::kCorrupt) << pattern;
  }
  EXPECT_EQ(Pretokenizer::compile("(a").error().code, ErrorCode::kCorrupt);
  EXPECT_EQ(Pretokenizer::compile(std::string(20'000, 'a')).error().code, ErrorCode::kTooLarge);
}

TEST(TranslatePattern, LeavesEverythingElseAsItIs) {
  const std::string pattern =
      R"((?i:'s)|[^\r\n\p{L}\p{Lu}\]\-/]?\p{L}+|\p{N}{1,3}|(?!x)\d(?<=y)\.)";
  EXPECT_EQ(translate_pattern(pattern).value(), pattern);
}

TEST(TranslatePattern, ListsNewCharacters) {
  EXPECT_THAT(translate_pattern("\\p{Sm}", true).value(), "[\\p{Sm}\\x{10d8e}-\\x{10d8f}]");
  EXPECT_THAT(translate_pattern("\\P{sm}", true).value(), "[^\\p{Sm}\\x{10d8e}-\\x{10d8f}]");
  EXPECT_THAT(translate_pattern("[^a\\p{Sm}]", true).value(), "[^a\\p{Sm}\\x{10d8e}-\\x{10d8f}]");
  for (const char* same : {"\\p{Zs}", "\\p{C}", "[\\P{L}]", "[\\D]", "\\s"}) {
    EXPECT_EQ(translate_pattern(same, true).value(), translate_pattern(same).value());
  }
}

// Of Unicode 15.0, 15.1 and 16.0, one of each category that has new characters. The categories are
// those of the Unicode Standard.
TEST(Pretokenizer, KnowsCharactersOfUnicode15And16) {
  const std::vector<std::pair<const char*, const char*>> characters = {
      {"So", "\xf0\x9f\xa9\xb7"},  // U+1FA77 pink heart, 15.0
      {"So", "\xf0\x9f\xab\xa8"},  // U+1FAE8 shaking face, 15.0
      {"So", "\xf0\x9f\xab\xa9"},  // U+1FAE9 face with bags under eyes, 16.0
      {"So", "\xe2\xbf\xbc"},      // U+2FFC, 15.1
      {"Lo", "\xf0\xae\xaf\xb0"},  // U+2EBF0, a Chinese character, 15.1
      {"Lu", "\xea\x9f\x8b"},      // U+A7CB, 16.0
      {"Ll", "\xe1\xb2\x8a"},      // U+1C8A, 16.0
      {"Lm", "\xf0\x9e\x80\xb0"},  // U+1E030, 15.0
      {"Mn", "\xe0\xa2\x97"},      // U+0897, 16.0
      {"Mc", "\xe0\xb3\xb3"},      // U+0CF3, 15.0
      {"Nd", "\xf0\x90\xb5\x80"},  // U+10D40, 16.0
      {"Po", "\xe1\xad\x8e"},      // U+1B4E, 16.0
  };
  for (const auto& [category, character] : characters) {
    const std::string text = std::string("\n").append(character).append("\n");
    const std::string name = std::string("{").append(category) + "}";
    const std::string group = std::string("{").append(category, 1) + "}";
    for (const std::string& pattern : {"\\p" + name, "\\p" + group, "[\\p" + name + "]"}) {
      EXPECT_THAT(split(pattern, text), ElementsAre("\n", character, "\n")) << pattern;
    }
    EXPECT_THAT(split("\\P" + group + "+", std::string(character) + "\n" + character),
                ElementsAre(character, "\n", character));
  }
  EXPECT_THAT(split("\\p{L}+",
                    "\xe1\xb2\x8a"
                    "b-"),
              ElementsAre("\xe1\xb2\x8a"
                          "b",
                          "-"));
  EXPECT_THAT(split("\\d+|\\D",
                    "\xf0\x90\xb5\x80"
                    "1"),
              ElementsAre("\xf0\x90\xb5\x80"
                          "1"));
  // A text without them is split as before, and after one with them.
  EXPECT_THAT(split(kGpt2Pattern, "a \xf0\x9f\xa9\xb7!"), ElementsAre("a", " \xf0\x9f\xa9\xb7!"));
}

}  // namespace pattern_test
}  // namespace tqcache::tokenizer
