#include "tqcache/research/answers.h"

#include <gtest/gtest.h>

#include <vector>

namespace tqcache::research {
namespace answers_test {

Match match(std::string_view given, const std::vector<std::string>& expected) {
  return match_answer(given, expected);
}

TEST(Answers, AreComparedWithoutCasePunctuationAndSpaces) {
  EXPECT_EQ(plain_answer("  Your parrot\tis\n\ncalled MAX!  "), "your parrot is called max");
  EXPECT_EQ(plain_answer("\"1,234\" (ca. 5 %)"), "1234 ca 5");
  EXPECT_EQ(plain_answer("$ + = ...—…“”"), "");
  EXPECT_EQ(plain_answer(""), "");
}

TEST(Answers, AreComparedInEveryAlphabet) {
  EXPECT_EQ(plain_answer("ÄRGER\u00a0in Αθήνα"), "ärger in αθήνα");
  EXPECT_EQ(plain_answer("Zu\u0308rich"), plain_answer("Zürich"));
  EXPECT_EQ(plain_answer("「東京」。"), "東京");
}

TEST(Answers, LoseBytesThatAreNoText) {
  EXPECT_EQ(plain_answer("a\xff"
                         "b\xe6\x9d"),
            "ab");
}

TEST(Answers, AreExactWhenAllOfThemIsExpected) {
  EXPECT_TRUE(match("Max.", {"Moritz", "max"}).exact);
  EXPECT_FALSE(match("It is Max.", {"Max"}).exact);
  EXPECT_FALSE(match("", {"Max"}).exact);
}

TEST(Answers, AreFoundInsideALongerOne) {
  EXPECT_TRUE(match("It is Max, of course", {"Moritz", "max"}).found);
  EXPECT_TRUE(match("Max", {"Max"}).found);
  EXPECT_FALSE(match("It is Moritz", {"Max"}).found);
  EXPECT_FALSE(match("Max", {"It is Max"}).found);
}

TEST(Answers, NumbersAreNotFoundInsideLongerNumbers) {
  EXPECT_FALSE(match("You are 17.", {"7"}).found);
  EXPECT_FALSE(match("48213", {"4821"}).found);
  EXPECT_FALSE(match("room 2134", {"13"}).found);
  EXPECT_TRUE(match("17 or 7", {"7"}).found);
  EXPECT_TRUE(match("room 2134", {"2134"}).found);
  EXPECT_TRUE(match("flat 7b", {"7"}).found);
}

TEST(Answers, OfMarksAloneMatchNothing) {
  const Match none = match("...", {"!?", ""});
  EXPECT_FALSE(none.exact);
  EXPECT_FALSE(none.found);
}

}  // namespace answers_test
}  // namespace tqcache::research
