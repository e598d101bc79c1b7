#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "report/hostile_report.h"
#include "report/html_page.h"
#include "report/html_table.h"
#include "report/sample_report.h"

namespace tqcache::report {
using namespace eval;  // figures and tables

namespace html_test {

using testing::HasSubstr;
using testing::Not;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t n = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

std::vector<Report> all_reports() {
  std::vector<Report> reports = test::reports_of_strange_texts();
  reports.push_back(test::report_of_strange_numbers());
  reports.push_back(test::sample_report());
  reports.push_back({});
  return reports;
}

std::string text_of(const Cell& cell) {
  const auto* const text = std::get_if<std::string>(&cell);
  return text == nullptr ? "number" : *text;
}

TEST(HtmlPage, IsTheSameForTheSameReport) {
  EXPECT_EQ(html_page(test::sample_report()), html_page(test::sample_report()));
}

TEST(HtmlPage, ForbidsAllLoadingAndHasNothingToLoad) {
  for (const Report& report : all_reports()) {
    const std::string page = html_page(report);
    EXPECT_EQ(count(page, "content=\"default-src 'none'; style-src 'unsafe-inline';"), 1u);
    for (const char* const tag : {"<script", "<link", "<img", "<iframe", "<object", "<embed",
                                  "<use", "<image", "<base", "<form", "<foreignObject"}) {
      EXPECT_EQ(count(page, tag), 0u) << tag << " in " << report.title.substr(0, 40);
    }
  }
}

TEST(HtmlPage, RefersToItselfOnly) {
  const std::string page = html_page(test::sample_report());
  const std::regex reference("(?:href=\"|url\\()([^\")]*)");
  for (std::sregex_iterator it(page.begin(), page.end(), reference), end; it != end; ++it) {
    ASSERT_EQ((*it)[1].str()[0], '#') << (*it)[0];
    EXPECT_EQ(count(page, "id=\"" + (*it)[1].str().substr(1) + "\""), 1u) << (*it)[0];
  }
}

TEST(HtmlPage, EveryIdIsThereOnce) {
  const std::string page = html_page(test::sample_report());
  std::set<std::string> ids;
  const std::regex id(" id=\"([^\"]*)\"");
  for (std::sregex_iterator it(page.begin(), page.end(), id), end; it != end; ++it) {
    EXPECT_TRUE(ids.insert((*it)[1]).second) << (*it)[1];
  }
  EXPECT_GE(ids.size(), 20u);
}

TEST(HtmlPage, HasFactsFiguresAndNotesInTheirOrder) {
  Report report;
  report.title = "The title";
  report.facts = {{"Model", "demo"}, {"Text", "alice"}};
  report.figures = {Table{"First", {"a"}, {{Number{1, 0}}}}, Table{"Second", {"b"}, {}}};
  report.notes = {"A note."};
  const std::string page = html_page(report);
  std::size_t at = 0;
  for (const char* const part :
       {"<title>The title</title>", "<h1>The title</h1>", "<dt>Model</dt><dd>demo</dd>",
        "<dt>Text</dt>", ">First</h2>", ">Second</h2>", "Nothing to show.", "<li>A note.</li>"}) {
    at = page.find(part, at);
    ASSERT_NE(at, std::string::npos) << part;
  }
  EXPECT_THAT(page, Not(HasSubstr("<nav")));  // two figures need no contents
}

TEST(HtmlPage, EveryPictureIsNamedAndHasATable) {
  const Report report = test::sample_report();
  const std::string page = html_page(report);
  const std::size_t n_pictures = report.figures.size() - 1;  // the first is a table
  EXPECT_EQ(count(page, "<svg role=\"img\" aria-labelledby="), 2 * n_pictures);
  EXPECT_EQ(count(page, "<details>"), n_pictures);
  EXPECT_EQ(count(page, "<table>"), report.figures.size());
  EXPECT_EQ(count(page, "<nav"), 1u);
}

TEST(HtmlPage, SaysWhatAPictureLeavesOut) {
  Report report;
  Plot plot;
  plot.series = {{"a", {{1, 1}, {1, kNan}}}};
  report.figures = {plot, Bars{"bars", "", {{"bar", {{"x", -1}, {"y", 2}}}}}};
  const std::string page = html_page(report);
  EXPECT_THAT(page, HasSubstr("Left out of the picture: 1 point that is not finite."));
  EXPECT_THAT(page, HasSubstr("Left out of the picture: 1 part that is negative or not finite."));
}

TEST(HtmlPage, NoPictureHasANumberThatIsNotFinite) {
  const std::string page = html_page(test::report_of_strange_numbers());
  const std::regex number("[+-]?[0-9]+(\\.[0-9]+)?");
  const std::regex attribute(" (?:x|y|x1|x2|y1|y2|width|height)=\"([^\"]*)\"");
  std::size_t n_numbers = 0;
  const std::size_t body = page.find("<body>");
  for (std::sregex_iterator
           it(page.begin() + static_cast<std::ptrdiff_t>(body), page.end(), attribute),
       end;
       it != end; ++it, ++n_numbers) {
    ASSERT_TRUE(std::regex_match((*it)[1].str(), number)) << (*it)[0];
  }
  EXPECT_GE(n_numbers, 500u);
}

TEST(HtmlStyle, LoadsNothing) {
  EXPECT_EQ(html_style().find("url"), std::string_view::npos);
  EXPECT_EQ(html_style().find("@import"), std::string_view::npos);
}

TEST(HtmlStyle, StandsInXmlAsItIs) {
  EXPECT_EQ(html_style().find_first_of("&<"), std::string_view::npos);
}

TEST(HtmlTable, AlignsNumbersAndNamesRows) {
  const Table table{"", {"name", "bits"}, {{"turbo4", Number{4.125, 3}}, {"none", ""}}};
  const std::string html = html_table(table, "label");
  EXPECT_THAT(html,
              HasSubstr("<th scope=\"col\">name</th><th scope=\"col\" class=\"n\">bits</th>"));
  EXPECT_THAT(html, HasSubstr("<th scope=\"row\">turbo4</th><td class=\"n\">4.125</td>"));
  EXPECT_THAT(html, HasSubstr("<th scope=\"row\">none</th><td></td>"));
}

TEST(HtmlTable, TakesRowsAsLongAsItsColumns) {
  const Table table{"", {"a", "b"}, {{}, {"1", "2", "3"}}};
  const std::string html = html_table(table, "label");
  EXPECT_THAT(html, HasSubstr("<tr><td></td><td></td></tr>"));
  EXPECT_THAT(html, HasSubstr("<tr><th scope=\"row\">1</th><td>2</td></tr>"));
}

TEST(DataOf, APlotHasEveryPoint) {
  Plot plot{"plot", {"bits"}, {"loss"}, {}};
  plot.series = {{"a", {{4, .0864, "turbo4"}, {3.5, kNan}}}, {"bound", {{1, 2}}, false, true}};
  const Table table = data_of(plot);
  EXPECT_EQ(table.columns, (std::vector<std::string>{"series", "point", "bits", "loss"}));
  ASSERT_EQ(table.rows.size(), 3u);
  EXPECT_EQ(text_of(table.rows[0][1]), "turbo4");
  EXPECT_EQ(std::get<Number>(table.rows[0][2]).decimals, 1);
  EXPECT_EQ(std::get<Number>(table.rows[0][3]).decimals, 4);
  EXPECT_EQ(text_of(table.rows[2][0]), "bound");
}

TEST(DataOf, APlotWithoutNamesHasNoColumnsForThem) {
  Plot plot{"plot", {"x"}, {"y"}, {}};
  plot.series = {{"", {{1, 2}}}};
  EXPECT_EQ(data_of(plot).columns, (std::vector<std::string>{"x", "y"}));
}

TEST(DataOf, AHeatMapStandsAsItIs) {
  HeatMap map;
  map.row_label = "layer";
  map.column_label = "head";
  map.rows = {"0", "1"};
  map.columns = {"a", "b"};
  map.values = {{1, 2}, {3}};
  const Table table = data_of(map);
  EXPECT_EQ(table.columns, (std::vector<std::string>{"layer \\ head", "a", "b"}));
  EXPECT_EQ(std::get<Number>(table.rows[0][2]).value, 2);
  EXPECT_NE(std::get<Number>(table.rows[1][2]).value, std::get<Number>(table.rows[1][2]).value);
}

TEST(DataOf, BarsHaveAColumnForEachPartAndTheSum) {
  const Bars bars{"bars", "bytes", {{"a", {{"x", 1}, {"y", 2}}}, {"b", {{"y", 5}, {"y", 1}}}}};
  const Table table = data_of(bars);
  EXPECT_EQ(table.columns, (std::vector<std::string>{"", "x", "y", "sum"}));
  EXPECT_EQ(std::get<Number>(table.rows[0][3]).value, 3);
  EXPECT_EQ(text_of(table.rows[1][1]), "");
  EXPECT_EQ(std::get<Number>(table.rows[1][2]).value, 6);
}

}  // namespace html_test
}  // namespace tqcache::report
