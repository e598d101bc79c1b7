// Writes a page to standard output, for tests that look at it from outside.
//
// usage: sample_page [sample|numbers|texts-N]

#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "report/hostile_report.h"
#include "report/html_page.h"
#include "report/sample_report.h"

namespace {

using namespace tqcache::report;
using tqcache::eval::Report;

constexpr std::string_view kTexts = "texts-";

Report report_of(std::string_view name) {
  if (name == "numbers") return test::report_of_strange_numbers();
  if (!name.starts_with(kTexts)) return test::sample_report();
  const std::vector<Report> reports = test::reports_of_strange_texts();
  const int index = std::atoi(std::string(name.substr(kTexts.size())).c_str());
  return reports.at(static_cast<std::size_t>(index));
}

}  // namespace

int main(int argc, char** argv) {
  const std::string page = html_page(report_of(argc > 1 ? argv[1] : "sample"));
  return std::fwrite(page.data(), 1, page.size(), stdout) == page.size() ? 0 : 1;
}
