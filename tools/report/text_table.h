#pragma once
// tools/report/text_table.h: tables and reports as plain text for a terminal.

#include <cstddef>
#include <string>

#include "tqcache/report.h"

namespace tqcache::report {

// A number with its own number of decimals. Empty for NaN; "inf", "-inf".
std::string number_text(const eval::Number& number);

// Title, names of the columns, and rows, one line each. Columns are two spaces apart; numbers are
// aligned to the right, texts to the left. A table without a title begins with the names. Whole
// numbers have separators: 1,234. Missing cells of a row are empty; control characters are shown as
// '?'.
//
// Units: columns of a terminal; each code point of UTF-8 counts as one.
std::string text_table(const eval::Table& table);

// Facts, all tables, and notes, separated by empty lines. Plots, heat maps and bars are omitted.
// Notes are folded at `columns`, unless that is 0.
std::string report_text(const eval::Report& report, std::size_t columns = 0);

}  // namespace tqcache::report
