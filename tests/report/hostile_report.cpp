#include "report/hostile_report.h"

#include <cmath>
#include <limits>

namespace tqcache::report::test {
using namespace eval;  // figures and tables

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kMax = std::numeric_limits<double>::max();
constexpr double kMin = std::numeric_limits<double>::denorm_min();

Plot plot_of(const std::string& title, std::vector<Point> points, bool is_log) {
  Plot plot;
  plot.title = title;
  plot.x = {"x", is_log};
  plot.y = {"y", is_log};
  plot.series = {Series{"points", points}, Series{"line", std::move(points), true}};
  return plot;
}

void add_plots(Report& report, bool is_log) {
  const std::vector<std::vector<Point>> cases = {
      {},
      {{1, 1, "one"}},
      {{0, 0, "zero"}},
      {{2, 3, "a"}, {2, 3, "b"}, {2, 3, "c"}},
      {{kNan, 1, "nan"}, {1, kInf, "inf"}, {-kInf, kNan, "both"}},
      {{1, 1, "1"}, {kNan, 2, ""}, {3, 3, "3"}, {4, -kInf, ""}},
      {{kMax, kMax, "max"}, {-kMax, -kMax, "-max"}, {kMin, kMin, "min"}},
      {{1e-100, 1e-100, "tiny"}, {1e100, 1e100, "huge"}},
      {{1, 1, "a"}, {1 + 1e-15, 1 - 1e-15, "b"}},
      {{-5, -3, "a"}, {-4, 2, "b"}},
      {{-1e-200, 5e-200, "a"}, {1e-250, 0, "b"}},
  };
  for (const std::vector<Point>& points : cases) {
    report.figures.emplace_back(plot_of("plot", points, is_log));
  }
}

HeatMap map_of(std::vector<std::vector<double>> values, std::size_t n_columns) {
  HeatMap map;
  map.title = "map";
  map.rows.assign(values.size(), "row");
  map.columns.assign(n_columns, "column");
  map.values = std::move(values);
  return map;
}

void add_maps(Report& report) {
  report.figures.emplace_back(HeatMap{});
  report.figures.emplace_back(map_of({{1}}, 1));
  report.figures.emplace_back(map_of({{kNan, kInf}, {-kInf, kNan}}, 2));
  report.figures.emplace_back(map_of({{2, 2}, {2, 2}}, 2));
  report.figures.emplace_back(map_of({{kMax, -kMax, kMin, 0}}, 4));
  report.figures.emplace_back(map_of({{1e-99, 1e99}, {1}, {}}, 3));  // rows too short
  report.figures.emplace_back(map_of({{1, 2, 3, 4}}, 2));            // and too long
  HeatMap ends = map_of({{1, 2}}, 2);
  ends.low = 5;
  ends.high = -5;
  ends.more_is_better = true;
  report.figures.emplace_back(ends);
}

void add_bars(Report& report) {
  report.figures.emplace_back(Bars{});
  report.figures.emplace_back(Bars{"bars", "", {{"empty", {}}, {"zero", {{"part", 0}}}}});
  report.figures.emplace_back(
      Bars{"bars", "bytes", {{"bar", {{"a", -1}, {"b", kNan}, {"c", kInf}, {"d", kMax}}}}});
  report.figures.emplace_back(
      Bars{"bars", "bytes", {{"bar", {{"a", 1e100}, {"b", 1e-100}, {"a", kMin}, {"", 3}}}}, 99});
}

void add_tables(Report& report) {
  report.figures.emplace_back(Table{});
  report.figures.emplace_back(Table{"no rows", {"a", "b"}, {}});
  Table table{"uneven", {"a", "b"}, {}};
  table.rows = {{}, {Number{kNan}}, {Number{kMax, 400}, Number{-kInf, -7}, std::string("more")}};
  report.figures.emplace_back(table);
}

void rename(Figure& figure, const std::string& text) {
  std::visit(
      [&](auto& named) {
        named.title = text;
        named.caption = text;
      },
      figure);
}

Report with_texts(const std::string& text) {
  Report report;
  report.title = text;
  report.facts = {{text, text}};
  report.notes = {text};
  report.figures.emplace_back(Table{text, {text, text}, {{text, text}}});
  Plot plot = plot_of(text, {{1, 1, text}}, false);
  plot.x.label = plot.y.label = plot.series[0].name = plot.series[1].name = text;
  report.figures.emplace_back(plot);
  HeatMap map = map_of({{1}}, 1);
  map.row_label = map.column_label = map.rows[0] = map.columns[0] = map.unit = text;
  report.figures.emplace_back(map);
  report.figures.emplace_back(Bars{text, text, {{text, {{text, 1}}}}});
  for (Figure& figure : report.figures) rename(figure, text);
  return report;
}

}  // namespace

Report report_of_strange_numbers() {
  Report report;
  report.title = "Strange numbers";
  add_plots(report, false);
  add_plots(report, true);
  add_maps(report);
  add_bars(report);
  add_tables(report);
  return report;
}

std::vector<Report> reports_of_strange_texts() {
  std::string every_byte;
  for (int byte = 0; byte < 256; ++byte) every_byte += static_cast<char>(byte);
  std::vector<Report> reports;
  for (const std::string& text : {
           std::string(),
           std::string("<script>alert(1)</script>"),
           std::string("\"'><img src=x>"),
           std::string("]]>--><!--</style></title></svg>&amp;&#0;{}{0}"),
           every_byte,
           std::string("\xff\xfe\xed\xa0\x80\xc0\x80\xf4\x90\x80\x80\xe2\x82"),
           std::string("\xef\xbf\xbe\xef\xbf\xbf\xe2\x80\xae\xe2\x81\xa6\xc2\x85"),
           std::string(5000, 'W'),
           std::string("url(https://example.org/x) @import"),
       }) {
    reports.push_back(with_texts(text));
  }
  return reports;
}

}  // namespace tqcache::report::test
