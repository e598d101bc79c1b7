#pragma once
// Reports that no one should make, and that a page must survive.

#include <vector>

#include "tqcache/report.h"

namespace tqcache::report::test {

// Every kind of figure, empty, of one value, of equal values, and with numbers that are not finite,
// not positive, or at the ends of what a double holds.
eval::Report report_of_strange_numbers();

// Reports whose every text is the same: markup, invalid UTF-8, control characters, none, very long.
std::vector<eval::Report> reports_of_strange_texts();

}  // namespace tqcache::report::test
