#pragma once
// eval/text_table.h: tables and reports as plain text, for a terminal.

#include <string>

#include "tqcache/eval/report.h"

namespace tqcache::eval {

// A number with as many digits behind the point as it asks for. Nothing for NaN; "inf", "-inf".
std::string number_text(const Number& number);

// Title, names of the columns and rows, each a line; columns are two spaces apart, those of numbers
// at the right, texts at the left. A table without a title begins with the names. A cell that a row
// is short of is empty; characters that a terminal would act on are shown as '?'.
//
// Units: columns of a terminal; each code point of UTF-8 counts as one.
std::string text_table(const Table& table);

// Facts, all tables, and notes, with empty lines between them. Plots, heat maps and bars are left
// to who can draw them.
std::string report_text(const Report& report);

}  // namespace tqcache::eval
