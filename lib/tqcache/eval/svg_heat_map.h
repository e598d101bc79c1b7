#pragma once
// eval/svg_heat_map.h: a heat map as a picture.

#include <string>

#include "tqcache/eval/report.h"
#include "tqcache/eval/svg_canvas.h"

namespace tqcache::eval {

// Cells show their numbers if there are at most 400, and colors alone otherwise; cells without a
// number are hatched. The map is turned (rows to the right) where it fits the column better so.
// Its scale is not part of the picture (html_legend.h).
// Requires: width >= 200, for a column so wide.
Picture svg_heat_map(const HeatMap& map, double width, const std::string& id);

}  // namespace tqcache::eval
