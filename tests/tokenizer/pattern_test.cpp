// The pre-tokenizer's regular expressions.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

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
  const auto result = try_to_split("(?:a|a){0,22}c|.", text);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, ErrorCode::kTooLarge);
  EXPECT_THAT(result.error().message, HasSubstr("takes too long"));
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

}  // namespace pattern_test
}  // namespace tqcache::tokenizer
