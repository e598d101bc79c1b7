#pragma once
// tools/report/html_page.h: a report as one self-contained HTML page. It opens from disk, loads no
// other files, runs no script, and is readable in light and dark mode, on a phone, on paper and
// with a screen reader.
//
// Every figure appears twice, as a picture (inline SVG) and as a table. The page is also valid XML,
// so that any parser can read it. docs/reference/eval.md describes its parts.

#include <string>
#include <string_view>

#include "tqcache/report.h"

namespace tqcache::report {

// Equal reports give equal bytes. Texts may contain anything: markup is escaped, and other
// characters that are not text (control characters, invalid UTF-8, marks that change the writing
// direction) become U+FFFD. Pictures omit numbers that are not finite, and a note on the page says
// so.
std::string html_page(const eval::Report& report);

// The legend of a figure: its marks and colors with their meanings, as a line of HTML above the
// picture, so that it wraps as text does. Empty for a single series without a name.
std::string legend(const eval::Plot& plot);
std::string legend(const eval::HeatMap& map);
std::string legend(const eval::Bars& bars);

// The style sheet (html_style.cpp). It contains no '&' and no '<', so that XML can hold it
// unescaped.
std::string_view html_style();

}  // namespace tqcache::report
