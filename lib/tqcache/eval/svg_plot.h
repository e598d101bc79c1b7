#pragma once
// eval/svg_plot.h: a plot as a picture.

#include <cstddef>

#include "tqcache/eval/report.h"
#include "tqcache/eval/svg_canvas.h"

namespace tqcache::eval {

// Axes show what is not a bound; bounds are cut at their ends. Values that is_drawable() refuses
// are left out, and a line has a gap there. Its legend is not part of the picture (html_legend.h).
// Requires: width >= 200, for a column so wide.
Picture svg_plot(const Plot& plot, double width, const std::string& id);

// How many points no picture can show.
std::size_t n_undrawable(const Plot& plot);

}  // namespace tqcache::eval
