#include "tqcache/eval/html_data.h"

#include <algorithm>
#include <limits>

#include "tqcache/eval/html_text.h"
#include "tqcache/eval/svg_bars.h"

namespace tqcache::eval {
namespace {

constexpr int kMostDecimals = 8;

// Of the numbers of one axis.
int decimals_of(const Plot& plot, double Point::*coordinate) {
  int decimals = 0;
  for (const Series& series : plot.series) {
    for (const Point& point : series.points) {
      decimals = std::max(decimals, decimals_needed(point.*coordinate));
    }
  }
  return std::min(decimals, kMostDecimals);
}

bool has_labels(const Plot& plot) {
  return std::any_of(plot.series.begin(), plot.series.end(), [](const Series& series) {
    return std::any_of(series.points.begin(), series.points.end(),
                       [](const Point& point) { return !point.label.empty(); });
  });
}

bool has_names(const Plot& plot) {
  return std::any_of(plot.series.begin(), plot.series.end(),
                     [](const Series& series) { return !series.name.empty(); });
}

Cell value_of(const Bar& bar, const std::string& part_name, int decimals) {
  double sum = 0;
  bool is_there = false;
  for (const BarPart& part : bar.parts) {
    if (part.name != part_name) continue;
    sum += part.value;
    is_there = true;
  }
  if (!is_there) return std::string();
  return Number{sum, decimals};
}

std::string with_unit(const std::string& text, const std::string& unit) {
  return unit.empty() ? text : text + ", " + unit;
}

}  // namespace

Table data_of(const Plot& plot) {
  Table table;
  table.title = plot.title;
  const bool named = has_names(plot);
  const bool labelled = has_labels(plot);
  if (named) table.columns.push_back("series");
  if (labelled) table.columns.push_back("point");
  table.columns.push_back(plot.x.label);
  table.columns.push_back(plot.y.label);
  const int x_decimals = decimals_of(plot, &Point::x);
  const int y_decimals = decimals_of(plot, &Point::y);
  for (const Series& series : plot.series) {
    for (const Point& point : series.points) {
      std::vector<Cell>& row = table.rows.emplace_back();
      if (named) row.emplace_back(series.name);
      if (labelled) row.emplace_back(point.label);
      row.emplace_back(Number{point.x, x_decimals});
      row.emplace_back(Number{point.y, y_decimals});
    }
  }
  return table;
}

Table data_of(const HeatMap& map) {
  Table table;
  table.title = with_unit(map.title, map.unit);
  const bool has_both = !map.row_label.empty() && !map.column_label.empty();
  table.columns.push_back(map.row_label + (has_both ? " \\ " : "") + map.column_label);
  table.columns.insert(table.columns.end(), map.columns.begin(), map.columns.end());
  for (std::size_t row = 0; row < map.rows.size(); ++row) {
    std::vector<Cell>& cells = table.rows.emplace_back();
    cells.emplace_back(map.rows[row]);
    for (std::size_t column = 0; column < map.columns.size(); ++column) {
      const bool is_there = row < map.values.size() && column < map.values[row].size();
      const double value =
          is_there ? map.values[row][column] : std::numeric_limits<double>::quiet_NaN();
      cells.emplace_back(Number{value, map.decimals});
    }
  }
  return table;
}

Table data_of(const Bars& bars) {
  Table table;
  table.title = with_unit(bars.title, bars.unit);
  const std::vector<std::string> names = part_names(bars);
  table.columns.push_back("");
  table.columns.insert(table.columns.end(), names.begin(), names.end());
  table.columns.push_back("sum");
  for (const Bar& bar : bars.bars) {
    std::vector<Cell>& row = table.rows.emplace_back();
    row.emplace_back(bar.name);
    double sum = 0;
    for (const BarPart& part : bar.parts) sum += part.value;
    for (const std::string& name : names) row.push_back(value_of(bar, name, bars.decimals));
    row.emplace_back(Number{sum, bars.decimals});
  }
  return table;
}

}  // namespace tqcache::eval
