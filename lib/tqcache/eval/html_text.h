#pragma once
// eval/html_text.h: texts and numbers as they stand on a page. Safe for untrusted input.

#include <cstddef>
#include <string>
#include <string_view>

#include "tqcache/eval/report.h"

namespace tqcache::eval {

// `text` as the text of an element or the value of an attribute. What HTML or XML cannot hold, or
// what would turn the direction of the rest of the line, becomes U+FFFD.
std::string escaped(std::string_view text);

// How wide `text` gets at most, in units of its font size. Fonts differ; this is meant for a wide
// one, so that texts placed by it do not touch.
double text_width(std::string_view text);

// `text`, or as much of its start as is no wider than `width` together with the ellipsis that then
// ends it. Not escaped.
std::string shortened(std::string_view text, double width);

// "1,234.50". NaN is an en dash, infinity its sign, and numbers of more than 15 digits are in
// scientific notation. `decimals` is taken into 0..12.
std::string shown_number(Number number);

// The fewest decimals that show `value` to `n_digits` significant digits.
int decimals_needed(double value, int n_digits = 6);

}  // namespace tqcache::eval
