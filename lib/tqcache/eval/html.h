#pragma once
// eval/html.h: a report as one page of HTML that stands alone: it opens from disk, loads nothing
// and runs nothing, and can be read in light and dark, on a phone, on paper, and by a screen
// reader.
//
// Every figure is there twice, as a picture (inline SVG) and as a table. The page is XML as well,
// so that any parser reads it. docs/reference/eval.md says what is on it.

#include <string>

#include "tqcache/eval/report.h"

namespace tqcache::eval {

// The same report gives the same bytes. Texts may hold anything: what would be markup is escaped,
// and what is not text (control characters, invalid UTF-8, marks that turn the direction of
// writing) becomes U+FFFD. Numbers that are not finite are left out of pictures, and the page says
// so.
std::string html_page(const Report& report);

}  // namespace tqcache::eval
