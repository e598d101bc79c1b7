#include "report/html_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string_view>

#include "report/html_text.h"
#include "report/svg_figures.h"

namespace tqcache::report {

using eval::Bar;
using eval::BarPart;
using eval::Bars;
using eval::Cell;
using eval::HeatMap;
using eval::Number;
using eval::Plot;
using eval::Point;
using eval::Series;
using eval::Table;

namespace {

bool has_numbers(const Table& table, std::size_t column) {
  return std::any_of(table.rows.begin(), table.rows.end(), [&](const std::vector<Cell>& row) {
    return column < row.size() && std::holds_alternative<Number>(row[column]);
  });
}

std::string_view attributes(bool is_number) { return is_number ? " class=\"n\"" : ""; }

std::string heading(const Table& table) {
  std::string row;
  for (std::size_t i = 0; i < table.columns.size(); ++i) {
    // A column without a name gets an empty cell instead of a heading.
    const std::string_view tag = table.columns[i].empty() ? "td" : "th";
    const std::string_view scope = table.columns[i].empty() ? "" : " scope=\"col\"";
    row += fmt::format("<{0}{1}{2}>{3}</{0}>", tag, scope, attributes(has_numbers(table, i)),
                       escaped(table.columns[i]));
  }
  return row;
}

std::string cell_html(const Cell& cell, bool is_first) {
  if (const auto* const number = std::get_if<Number>(&cell)) {
    return fmt::format("<td class=\"n\">{}</td>", shown_number(*number));
  }
  const std::string text = escaped(std::get<std::string>(cell));
  if (is_first) return fmt::format("<th scope=\"row\">{}</th>", text);
  return fmt::format("<td>{}</td>", text);
}

std::string row_html(const std::vector<Cell>& row, std::size_t n_columns) {
  std::string html = "<tr>";
  for (std::size_t i = 0; i < n_columns; ++i) {
    html += i < row.size() ? cell_html(row[i], i == 0) : "<td></td>";
  }
  return html + "</tr>\n";
}

constexpr int kMostDecimals = 8;

// Decimals for the coordinates of one axis.
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

std::string html_table(const Table& table, const std::string& label) {
  if (table.rows.empty() || table.columns.empty())
    return "<p class=\"note\">Nothing to show.</p>\n";
  std::string rows;
  for (const std::vector<Cell>& row : table.rows) rows += row_html(row, table.columns.size());
  return fmt::format(
      "<div class=\"scroll\" role=\"region\" tabindex=\"0\" aria-label=\"{}\">\n<table>\n"
      "<thead><tr>{}</tr></thead>\n<tbody>\n{}</tbody>\n</table>\n</div>\n",
      escaped(label), heading(table), rows);
}

Table data_of(const Plot& plot) {
  Table table;
  table.title = plot.title;
  const bool named = has_names(plot);
  const bool labeled = has_labels(plot);
  if (named) table.columns.push_back("series");
  if (labeled) table.columns.push_back("point");
  table.columns.push_back(plot.x.label);
  table.columns.push_back(plot.y.label);
  const int x_decimals = decimals_of(plot, &Point::x);
  const int y_decimals = decimals_of(plot, &Point::y);
  for (const Series& series : plot.series) {
    for (const Point& point : series.points) {
      std::vector<Cell>& row = table.rows.emplace_back();
      if (named) row.emplace_back(series.name);
      if (labeled) row.emplace_back(point.label);
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

}  // namespace tqcache::report
