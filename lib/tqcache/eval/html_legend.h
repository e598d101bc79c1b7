#pragma once
// eval/html_legend.h: what the marks and colors of a figure mean: a line of HTML above its
// picture, so that it wraps as text does.

#include <string>

#include "tqcache/eval/report.h"

namespace tqcache::eval {

// Nothing for one series without a name.
std::string legend(const Plot& plot);
std::string legend(const HeatMap& map);
std::string legend(const Bars& bars);

}  // namespace tqcache::eval
