#include "report/text_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace tqcache::report {
using namespace eval;  // figures and tables

namespace text_table_test {

TEST(NumberText, HasTheDigitsItAsksFor) {
  EXPECT_EQ(number_text({1.0 / 3, 4}), "0.3333");
  EXPECT_EQ(number_text({-2.5, 0}), "-2");
  EXPECT_EQ(number_text({1234567, 1}), "1234567.0");
  EXPECT_EQ(number_text({0.25, -3}), "0");
  EXPECT_EQ(number_text({std::nan(""), 2}), "");
  EXPECT_EQ(number_text({std::numeric_limits<double>::infinity(), 2}), "inf");
  EXPECT_EQ(number_text({-std::numeric_limits<double>::infinity(), 2}), "-inf");
  EXPECT_EQ(number_text({std::numeric_limits<double>::max(), 100}).size(), 309u + 1 + 17);
}

TEST(TextTable, AlignsNumbersToTheRightAndTextsToTheLeft) {
  const Table table{
      "Sizes", {"name", "bits", "note"}, {{"a", Number{4, 3}, "x"}, {"long", Number{16.5, 1}, ""}}};
  EXPECT_EQ(text_table(table),
            "Sizes\n"
            "name   bits  note\n"
            "a     4.000  x\n"
            "long   16.5\n");
}

TEST(TextTable, CountsCharactersAndNotBytes) {
  const Table table{"", {"n", "m"}, {{"café", "x"}, {"☕", "y"}}};
  EXPECT_EQ(text_table(table), "n     m\ncafé  x\n☕     y\n");
}

TEST(TextTable, FillsCellsThatARowIsShortOf) {
  const Table table{"", {"a", "b"}, {{Number{1, 0}}, {Number{2, 0}, Number{3, 0}}}};
  EXPECT_EQ(text_table(table), "a  b\n1\n2  3\n");
  EXPECT_EQ(text_table({"", {"a"}, {}}), "a\n");
}

TEST(TextTable, ShowsNothingThatATerminalWouldActOn) {
  const Table table{"t\x1b[2J", {"a\n"}, {{"b\rc\x7f"}}};
  EXPECT_EQ(text_table(table), "t?[2J\na?\nb?c?\n");
  // C1 as one byte and as two, and a name that would be shown in reverse.
  EXPECT_EQ(text_table({"",
                        {"\x9b"
                         "a\xc2\x9b"},
                        {{"\xe2\x80\xae"
                          "b\xc3\xa9"}}}),
            "?a?\n?b\xc3\xa9\n");
}

TEST(ReportText, HasFactsTablesAndNotes) {
  Report report;
  report.title = "not shown";
  report.facts = {{"model", "m.gguf"}, {"n", "3"}};
  report.figures = {Table{"T", {"a"}, {{"b"}}}, Plot{}, HeatMap{}, Bars{}, Table{"U", {"c"}, {}}};
  report.notes = {"One.", "Two."};
  EXPECT_EQ(report_text(report), "model  m.gguf\nn      3\n\nT\na\nb\n\nU\nc\n\nOne.\nTwo.\n");
}

TEST(ReportText, LeavesOutWhatIsNotThere) {
  Report report;
  EXPECT_EQ(report_text(report), "");
  report.notes = {"Note."};
  EXPECT_EQ(report_text(report), "Note.\n");
}

}  // namespace text_table_test
}  // namespace tqcache::report
