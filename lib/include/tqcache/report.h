#pragma once
// tqcache/report.h: the result of an evaluation as figures and tables, independent of their
// display.
//
//   const auto report = eval::predictions_report(costs, eval::PredictionFocus::kDivergence);
//   for (const auto& figure : report.figures) show(figure);

#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace tqcache::eval {

// Rows of cells. All cells of a column have one kind; a missing value is an empty text.
struct Number {
  double value = 0;
  int decimals = 4;  // shown
};
using Cell = std::variant<std::string, Number>;

struct Table {
  std::string title;
  std::vector<std::string> columns;
  std::vector<std::vector<Cell>> rows;  // each [columns]
  std::string caption = {};             // a sentence below the title; may be empty
};

// Points of several series over common axes, such as quality against bits per value.
struct Point {
  double x = 0;
  double y = 0;
  std::string label = {};  // of the point itself; may be empty
};
struct Series {
  std::string name;
  std::vector<Point> points;
  bool is_line = false;   // joined in order; otherwise single points
  bool is_bound = false;  // a theoretical bound: drawn as a thin line
};
struct Axis {
  std::string label;  // with its unit
  bool is_log = false;
};
struct Plot {
  std::string title;
  Axis x, y;
  std::vector<Series> series;
  std::string caption = {};
};

// A grid of numbers, such as the error by layer and head, or the needle's score by length and
// depth. A cell without a number is NaN.
struct HeatMap {
  std::string title;
  std::string row_label, column_label;
  std::vector<std::string> rows, columns;   // names
  std::vector<std::vector<double>> values;  // [rows][columns]
  std::string unit;
  bool more_is_better = false;
  int decimals = 4;
  std::string caption = {};
  // Ends of the color scale, such as 0 and 1 of a score; NaN: the smallest and largest value.
  double low = std::numeric_limits<double>::quiet_NaN();
  double high = std::numeric_limits<double>::quiet_NaN();
};

// Stacked bars, such as the size of a file by its parts.
struct BarPart {
  std::string name;
  double value = 0;
};
struct Bar {
  std::string name;
  std::vector<BarPart> parts;
};
struct Bars {
  std::string title;
  std::string unit;
  std::vector<Bar> bars;
  int decimals = 0;
  std::string caption = {};
};

using Figure = std::variant<Table, Plot, HeatMap, Bars>;

struct Report {
  std::string title;
  // The measured model, text and windows, program and version; in the order of display.
  std::vector<std::pair<std::string, std::string>> facts;
  std::vector<Figure> figures;     // the first table is the summary
  std::vector<std::string> notes;  // sentences that explain the figures
};

}  // namespace tqcache::eval
