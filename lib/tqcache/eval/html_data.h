#pragma once
// eval/html_data.h: what a figure shows, as a table.

#include "tqcache/eval/report.h"

namespace tqcache::eval {

// A row for each point, of every series: series, label, x, y. The columns of series and labels are
// there if any has a name. Numbers have as many decimals as their column needs for six digits.
Table data_of(const Plot& plot);

// The map as it stands: names of rows, then its columns.
Table data_of(const HeatMap& map);

// A row for each bar: its name, every part, and the sum of all of them.
Table data_of(const Bars& bars);

}  // namespace tqcache::eval
