#pragma once
// tools/report/html_text.h: texts and numbers for HTML and SVG. Safe for untrusted input.

#include <string>
#include <string_view>

#include "tqcache/report.h"

namespace tqcache::report {

// `text` as the content of an element or the value of an attribute. Characters that HTML or XML
// cannot hold, or that change the writing direction, become U+FFFD.
std::string escaped(std::string_view text);

// An upper estimate of the width of `text`, in units of its font size. It assumes a wide font, so
// that texts placed by it do not touch.
double text_width(std::string_view text);

// `text`, or its longest prefix that fits `width` together with an ellipsis, and the ellipsis. Not
// escaped.
std::string shortened(std::string_view text, double width);

// "1,234.50". NaN is an en dash, infinity its sign; numbers of more than 15 digits are in
// scientific notation. `decimals` is clamped to 0..12.
std::string shown_number(eval::Number number);

// The fewest decimals that show `value` to `n_digits` significant digits.
int decimals_needed(double value, int n_digits = 6);

}  // namespace tqcache::report
