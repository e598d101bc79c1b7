#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "report/html_page.h"
#include "report/svg_canvas.h"
#include "report/svg_figures.h"

namespace tqcache::report {
using namespace eval;  // figures and tables

namespace svg_test {

using testing::HasSubstr;
using testing::Not;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kWide = 736;
constexpr double kNarrow = 358;

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t n = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

TEST(Coordinate, IsShortAndFinite) {
  EXPECT_EQ(coordinate(12.50), "12.5");
  EXPECT_EQ(coordinate(12), "12");
  EXPECT_EQ(coordinate(100), "100");
  EXPECT_EQ(coordinate(-0.001), "0");
  EXPECT_EQ(coordinate(kNan), "0");
  EXPECT_EQ(coordinate(kInfinity), "0");
}

TEST(Mark, OfEachOf64SeriesIsItsOwn) {
  std::set<std::pair<std::string, std::string>> marks;
  for (std::size_t i = 0; i < 64; ++i) marks.emplace(mark_outline(i, 0, 0), series_class(i));
  EXPECT_EQ(marks.size(), 64u);
}

TEST(Mark, OfEachOfEightSeriesHasAShapeOfItsOwn) {
  std::set<std::string> shapes;
  for (std::size_t i = 0; i < 8; ++i) shapes.insert(mark_outline(i, 0, 0));
  EXPECT_EQ(shapes.size(), 8u);
}

bool overlap(const Box& a, const Box& b) {
  return a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
}

TEST(Labels, CoverNeitherPointsNorEachOther) {
  const Box area{0, 0, 400, 300};
  std::vector<LabelRequest> requests;
  std::vector<std::pair<double, double>> points;
  for (int i = 0; i < 40; ++i) {
    const double x = 30 + 37 * (i % 9);
    const double y = 20 + 53 * (i % 5);
    requests.push_back({x, y, "label " + std::to_string(i)});
    points.emplace_back(x, y);
  }
  const auto placed = place_labels(requests, area, points, {});
  std::vector<Box> boxes;
  for (const auto& label : placed) {
    if (label) boxes.push_back(label->box);
  }
  ASSERT_GE(boxes.size(), 10u);
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    EXPECT_GE(boxes[i].left, area.left);
    EXPECT_LE(boxes[i].right, area.right);
    for (std::size_t j = 0; j < i; ++j) EXPECT_FALSE(overlap(boxes[i], boxes[j])) << i << ' ' << j;
    for (const auto& [x, y] : points) EXPECT_FALSE(overlap(boxes[i], {x - 3, y - 3, x + 3, y + 3}));
  }
}

TEST(Labels, KeepOffLinesWhereTheyCan) {
  const std::vector<LabelRequest> requests = {{100, 100, "label"}};
  std::vector<std::pair<double, double>> line;
  for (int i = 0; i < 100; ++i) line.emplace_back(100 + i, 100);
  const auto placed = place_labels(requests, {0, 0, 200, 200}, {{100, 100}}, line);
  ASSERT_TRUE(placed[0]);
  EXPECT_FALSE(overlap(placed[0]->box, {100, 99, 200, 101}));
}

TEST(Labels, AreLeftOutWhereThereIsNoRoom) {
  const std::vector<LabelRequest> requests(60, LabelRequest{50, 50, "the same place"});
  const auto placed = place_labels(requests, {0, 0, 300, 100}, {{50, 50}}, {});
  EXPECT_TRUE(placed.front());
  EXPECT_FALSE(placed.back());
}

TEST(SvgPlot, LeavesOutWhatIsNotFiniteAndCountsIt) {
  Plot plot;
  plot.series = {{"a", {{1, 1}, {kNan, 1}, {1, kInfinity}, {2, 2}}}};
  EXPECT_EQ(n_undrawable(plot), 2u);
  EXPECT_EQ(count(svg_plot(plot, kWide, "id").svg, "class=\"mark"), 2u);
  plot.y.is_log = true;
  plot.series[0].points.push_back({1, 0});
  EXPECT_EQ(n_undrawable(plot), 3u);
}

TEST(SvgPlot, ALineHasAGapWhereANumberIsMissing) {
  Plot plot;
  plot.series = {{"a", {{1, 1}, {2, 2}, {3, kNan}, {4, 4}, {5, 5}}, true}};
  const std::string svg = svg_plot(plot, kWide, "id").svg;
  const std::size_t from = svg.find("d=\"", svg.find("class=\"curve")) + 3;
  const std::string line = svg.substr(from, svg.find('"', from) - from);
  EXPECT_EQ(count(line, "M"), 2u);
  EXPECT_EQ(count(line, "L"), 2u);
}

TEST(SvgPlot, BoundsAreLinesWithoutMarksAndDoNotStretchTheAxes) {
  Plot plot;
  plot.series = {{"measured", {{2, 1}, {4, 2}}}};
  const std::string alone = svg_plot(plot, kWide, "id").svg;
  plot.series.push_back({"bound", {{0, 1e9}, {2, .9}, {4, 1.9}, {400, -1e9}}, false, true});
  const std::string both = svg_plot(plot, kWide, "id").svg;
  EXPECT_EQ(count(both, "class=\"mark"), 2u);
  EXPECT_EQ(count(both, "class=\"bound"), 1u);
  EXPECT_EQ(count(both, "class=\"tick"), count(alone, "class=\"tick"));
}

TEST(SvgPlot, SaysHowManyLabelsFoundNoRoom) {
  Plot plot;
  plot.series = {{"a", std::vector<Point>(100, Point{1, 1, "the same place"})}};
  EXPECT_THAT(svg_plot(plot, kNarrow, "id").note, HasSubstr("labels found no room"));
  plot.series[0].points.resize(1);
  EXPECT_EQ(svg_plot(plot, kNarrow, "id").note, "");
}

HeatMap map_of(std::size_t n_rows, std::size_t n_columns) {
  HeatMap map;
  map.row_label = "layer";
  map.column_label = "head";
  for (std::size_t i = 0; i < n_columns; ++i) map.columns.push_back("c" + std::to_string(i));
  for (std::size_t i = 0; i < n_rows; ++i) {
    map.rows.push_back("r" + std::to_string(i));
    map.values.emplace_back(n_columns, static_cast<double>(i));
  }
  return map;
}

TEST(SvgHeatMap, ShowsTheNumbersOfAtMost400Cells) {
  EXPECT_EQ(count(svg_heat_map(map_of(40, 10), kWide, "id").svg, "class=\"number"), 400u);
  EXPECT_EQ(count(svg_heat_map(map_of(401, 1), kWide, "id").svg, "class=\"number"), 0u);
}

TEST(SvgHeatMap, HatchesCellsWithoutANumber) {
  HeatMap map = map_of(2, 2);
  map.values[1][1] = kNan;
  const std::string svg = svg_heat_map(map, kWide, "id").svg;
  EXPECT_EQ(count(svg, "url(#id-hatch)"), 1u);
  EXPECT_EQ(count(svg, "class=\"cell"), 3u);
}

TEST(SvgHeatMap, TurnsManyLayersToTheRightWhereTheyFit) {
  const HeatMap map = map_of(80, 8);
  EXPECT_THAT(svg_heat_map(map, kWide, "id").svg, HasSubstr(">layer \xe2\x86\x92<"));
  EXPECT_THAT(svg_heat_map(map, kNarrow, "id").svg, HasSubstr(">layer \xe2\x86\x93<"));
}

TEST(SvgHeatMap, IsWiderThanItsColumnOnlyIfItsNumbersNeedIt) {
  EXPECT_THAT(svg_heat_map(map_of(4, 4), kNarrow, "id").svg, Not(HasSubstr("min-width")));
  EXPECT_THAT(svg_heat_map(map_of(20, 20), kNarrow, "id").svg, HasSubstr("min-width"));
}

TEST(SvgHeatMap, RowsMayBeTooShortOrTooLong) {
  HeatMap map = map_of(3, 2);
  map.values = {{1}, {1, 2, 3}};
  const std::string svg = svg_heat_map(map, kWide, "id").svg;
  EXPECT_EQ(count(svg, "class=\"cell"), 3u);
  EXPECT_EQ(count(svg, "class=\"empty"), 3u);
}

TEST(SvgBars, AreAsLongAsTheirValues) {
  const Bars bars{"bars", "bytes", {{"a", {{"x", 100}}}, {"b", {{"x", 25}, {"y", 25}}}}};
  const std::string svg = svg_bars(bars, 401, "id").svg;
  EXPECT_THAT(svg, HasSubstr("width=\"399\""));  // 400, less a hair
  EXPECT_EQ(count(svg, "width=\"99\""), 2u);
  EXPECT_THAT(svg, HasSubstr(">x 25   y 25<"));
  EXPECT_THAT(svg, HasSubstr(">50 bytes<"));
}

TEST(SvgBars, LeaveOutWhatIsNegativeOrNotFinite) {
  const Bars bars{"bars", "", {{"a", {{"x", -1}, {"y", kNan}, {"z", kInfinity}, {"w", 2}}}}};
  EXPECT_EQ(n_undrawable(bars), 3u);
  EXPECT_EQ(sum_of(bars.bars[0]), 2);
  EXPECT_EQ(count(svg_bars(bars, kWide, "id").svg, "class=\"part"), 1u);
}

TEST(SvgBars, APartHasTheSameColorInEveryBar) {
  const Bars bars{"bars", "", {{"a", {{"x", 1}, {"y", 1}}}, {"b", {{"y", 1}}}}};
  EXPECT_EQ(part_names(bars), (std::vector<std::string>{"x", "y"}));
  EXPECT_EQ(count(svg_bars(bars, kWide, "id").svg, "class=\"part s1\""), 2u);
}

TEST(Legend, NamesSeriesPartsAndTheScale) {
  Plot plot;
  plot.series = {{"measured", {}}, {"bound", {}, false, true}};
  EXPECT_THAT(legend(plot), HasSubstr("<span>measured</span>"));
  EXPECT_THAT(legend(plot), HasSubstr("class=\"bound\""));
  plot.series = {{"", {}}};
  EXPECT_EQ(legend(plot), "");

  HeatMap map = map_of(2, 2);
  EXPECT_THAT(legend(map), HasSubstr("lower is better"));
  EXPECT_THAT(legend(map), Not(HasSubstr("hatched")));
  map.more_is_better = true;
  map.values[0][0] = kNan;
  EXPECT_THAT(legend(map), HasSubstr("higher is better"));
  EXPECT_THAT(legend(map), HasSubstr("hatched"));

  EXPECT_THAT(legend(Bars{"", "", {{"bar", {{"codes", 1}, {"scales", 2}}}}}),
              HasSubstr("<span>codes</span>"));
  EXPECT_EQ(legend(Bars{"", "", {{"bar", {{"codes", 1}}}}}), "");
}

}  // namespace svg_test
}  // namespace tqcache::report
