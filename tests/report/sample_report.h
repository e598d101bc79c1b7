#pragma once
// A report with one figure of every kind, of made-up numbers: what the page is looked at with.

#include "tqcache/report.h"

namespace tqcache::report::test {

eval::Report sample_report();

}  // namespace tqcache::report::test
