#pragma once
// eval/svg_bars.h: stacked bars as a picture.

#include <cstddef>
#include <string>
#include <vector>

#include "tqcache/eval/report.h"
#include "tqcache/eval/svg_canvas.h"

namespace tqcache::eval {

// A bar below another, each with its name and sum above it and its parts, in their order, as words
// below it. Parts that are negative or not finite are left out. The legend is not part of the
// picture (html_legend.h).
// Requires: width >= 200, for a column so wide.
Picture svg_bars(const Bars& bars, double width, const std::string& id);

// The names of all parts, in the order in which they come up.
std::vector<std::string> part_names(const Bars& bars);

// The sum of the parts that a picture shows.
double sum_of(const Bar& bar);

// How many parts no picture can show.
std::size_t n_undrawable(const Bars& bars);

}  // namespace tqcache::eval
