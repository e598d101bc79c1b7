#pragma once
// eval/html_table.h: a table as HTML.

#include <string>

#include "tqcache/eval/report.h"

namespace tqcache::eval {

// Without its title. Wide tables scroll within their own box, which the keyboard reaches by
// the name `label`. Rows are taken as long as `columns`: what is missing is empty, what is more is
// left out. A text in the first column names its row.
std::string html_table(const Table& table, const std::string& label);

}  // namespace tqcache::eval
