#pragma once
// tools/report/svg_figures.h: plots, heat maps and stacked bars as SVG pictures. Legends are not
// part of a picture (html_page.h).

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "report/svg_canvas.h"
#include "tqcache/report.h"

namespace tqcache::report {

// The axes cover the measured series; bounds are clipped at their ends. Values for which
// is_drawable() is false are omitted, and leave a gap in a line.
//
// Requires: width >= 200, the width of the column.
Picture svg_plot(const eval::Plot& plot, double width, const std::string& id);

// Number of points that no picture can show.
std::size_t n_undrawable(const eval::Plot& plot);

// Cells show their numbers if there are at most 400 cells, otherwise only colors; cells without a
// number are hatched. The map is transposed if it then fits the column better.
//
// Requires: width >= 200, the width of the column.
Picture svg_heat_map(const eval::HeatMap& map, double width, const std::string& id);

// One bar below another, each with its name and sum above it and the names of its parts below it,
// in order. Parts that are negative or not finite are omitted.
//
// Requires: width >= 200, the width of the column.
Picture svg_bars(const eval::Bars& bars, double width, const std::string& id);

// The names of all parts, in the order of their first use.
std::vector<std::string> part_names(const eval::Bars& bars);

// The sum of the parts that a picture shows.
double sum_of(const eval::Bar& bar);

// Number of parts that no picture can show.
std::size_t n_undrawable(const eval::Bars& bars);

// ---- Placement of the labels of a plot's points ----

inline constexpr double kLabelSize = 12;  // of the font

struct LabelRequest {
  double x, y;  // of the point
  std::string text;
};

struct PlacedLabel {
  Box box;
  bool is_apart;  // far from its point: a line leads to it
};

// A place for each request in turn, nullopt if all places are taken. A label covers no point of
// `points` and no other label, stays within `area`, and avoids `lines` (positions along them) if
// possible. At most 200 labels are placed.
std::vector<std::optional<PlacedLabel>> place_labels(
    const std::vector<LabelRequest>& requests, const Box& area,
    const std::vector<std::pair<double, double>>& points,
    const std::vector<std::pair<double, double>>& lines);

}  // namespace tqcache::report
