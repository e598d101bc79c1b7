#include "report/html_text.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

namespace tqcache::report {
using namespace eval;  // figures and tables

namespace html_text_test {

const std::string kReplacement = "\xef\xbf\xbd";
constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(Escaped, LeavesNoMarkup) {
  EXPECT_EQ(escaped("<a href=\"x\">&'</a>"), "&lt;a href=&quot;x&quot;&gt;&amp;&#39;&lt;/a&gt;");
}

TEST(Escaped, KeepsText) {
  const std::string text = "na\xc3\xafve \xe4\xbd\xa0\xe5\xa5\xbd \xf0\x9f\x90\x87\ttab\nline";
  EXPECT_EQ(escaped(text), text);
}

TEST(Escaped, ReplacesControlCharacters) {
  EXPECT_EQ(escaped(std::string("a\0b", 3)), "a" + kReplacement + "b");
  EXPECT_EQ(escaped("\x1b[2J\x7f\r"), kReplacement + "[2J" + kReplacement + kReplacement);
  EXPECT_EQ(escaped("\xc2\x85\xe2\x80\xa8"), kReplacement + kReplacement);  // U+0085, U+2028
}

TEST(Escaped, ReplacesWhatTurnsTheDirectionOfWriting) {
  for (const char* mark : {"\xe2\x80\xae", "\xe2\x81\xa6", "\xe2\x80\x8f", "\xd8\x9c"}) {
    EXPECT_EQ(escaped(std::string("a") + mark + "b"), "a" + kReplacement + "b");
  }
}

TEST(Escaped, ReplacesInvalidUtf8AndNoncharacters) {
  for (const char* text : {"\xff", "\xe2\x82", "\xef\xbf\xbe", "\xef\xbf\xbf", "\xef\xb7\x90"}) {
    EXPECT_EQ(escaped(text), kReplacement) << text;
  }
  EXPECT_EQ(escaped("\xc0\x80"), kReplacement + kReplacement);  // overlong
}

TEST(Shortened, CutsWithAnEllipsisAndBetweenCharacters) {
  EXPECT_EQ(shortened("short", 10), "short");
  EXPECT_EQ(shortened("", 10), "");
  const std::string cut = shortened(std::string(40, 'e'), 8);
  EXPECT_TRUE(cut.ends_with("e\xe2\x80\xa6")) << cut;
  EXPECT_LE(text_width(cut), 8);
  EXPECT_GT(text_width(cut), 7);
  EXPECT_EQ(shortened("\xe4\xbd\xa0\xe5\xa5\xbd\xe4\xbd\xa0\xe5\xa5\xbd", 3),
            "\xe4\xbd\xa0\xe2\x80\xa6");
}

TEST(ShownNumber, GroupsAndRoundsAsAsked) {
  struct Case {
    double value;
    int decimals;
    std::string text;
  };
  const std::vector<Case> cases = {
      {0, 0, "0"},
      {999, 0, "999"},
      {1000, 0, "1,000"},
      {1234567, 0, "1,234,567"},
      {-1234567.891, 2, "-1,234,567.89"},
      {0.08637, 4, "0.0864"},
      {-0.00001, 4, "0.0000"},
      {1234.5, 1, "1,234.5"},
      {-123, 0, "-123"},
      {5e15, 2, "5.00e+15"},
  };
  for (const Case& of : cases) {
    EXPECT_EQ(shown_number({of.value, of.decimals}), of.text);
  }
}

TEST(ShownNumber, SaysWhatIsNotFinite) {
  EXPECT_EQ(shown_number({std::numeric_limits<double>::quiet_NaN(), 4}), "\xe2\x80\x93");
  EXPECT_EQ(shown_number({kInfinity, 4}), "\xe2\x88\x9e");
  EXPECT_EQ(shown_number({-kInfinity, 4}), "-\xe2\x88\x9e");
}

TEST(ShownNumber, TakesDecimalsThatNoOneShouldAskFor) {
  EXPECT_EQ(shown_number({1.5, -3}), "2");
  EXPECT_EQ(shown_number({1.5, 1000}), "1.500000000000");
}

TEST(DecimalsNeeded, AreAsFewAsShowTheNumber) {
  EXPECT_EQ(decimals_needed(0), 0);
  EXPECT_EQ(decimals_needed(1200), 0);
  EXPECT_EQ(decimals_needed(0.5), 1);
  EXPECT_EQ(decimals_needed(-0.0864), 4);
  EXPECT_EQ(decimals_needed(4.125), 3);
  EXPECT_EQ(decimals_needed(1.0 / 3), 6);
  EXPECT_EQ(decimals_needed(1.0 / 3, 2), 2);
  EXPECT_EQ(decimals_needed(5, 1), 0);
  EXPECT_EQ(decimals_needed(1e-300), 12);
  EXPECT_EQ(decimals_needed(kInfinity), 0);
}

}  // namespace html_text_test
}  // namespace tqcache::report
