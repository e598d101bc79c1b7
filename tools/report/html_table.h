#pragma once
// tools/report/html_table.h: tables as HTML, and the data of figures as tables.

#include <string>

#include "tqcache/report.h"

namespace tqcache::report {

// The table without its title. Wide tables scroll within their own box, which keyboard users reach
// by the name `label`. Every row gets as many cells as there are `columns`: missing cells are
// empty, surplus ones are dropped. A text in the first column is the heading of its row.
std::string html_table(const eval::Table& table, const std::string& label);

// A row for each point of every series: series, label, x, y. The columns for series and labels
// exist only if at least one name is not empty. Numbers have as many decimals as their column needs
// to show six significant digits.
eval::Table data_of(const eval::Plot& plot);

// The names of the rows, then the columns of the map.
eval::Table data_of(const eval::HeatMap& map);

// A row for each bar: its name, every part, and their sum.
eval::Table data_of(const eval::Bars& bars);

}  // namespace tqcache::report
