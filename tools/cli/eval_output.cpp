#include "cli/eval_output.h"

#include <fmt/format.h>

#include "cli/cache_io.h"
#include "cli/cli.h"
#include "report/html_page.h"
#include "report/text_table.h"
#include "tqcache/base/file.h"

namespace tqcache::cli {
namespace {

Outcome<Done> write_page(const Console& console, const EvalOutput& output,
                         const eval::Report& report) {
  const std::string page = report::html_page(report);
  const Overwrite overwrite = output.force ? Overwrite::kAllow : Overwrite::kRefuse;
  TQC_TRY(in_file(output.html,
                  write_file_atomically(output.html, std::as_bytes(std::span(page)), overwrite)));
  note(console, fmt::format("{}: written", output.html));
  return Done{};
}

}  // namespace

void add_eval_output_flags(CLI::App& app, EvalOutput& output) {
  app.add_option("--html", output.html, "Write a page with all figures, too")
      ->type_name("FILE")
      ->check(file_name());
  add_force_flag(app, output.force);
}

Outcome<Done> check_eval_output(const EvalOutput& output) {
  if (output.html.empty()) return Done{};
  if (output.html == "-") return usage_error("--html: standard output is taken by the results");
  return check_output(output.html, output.force);
}

Outcome<Done> give_report(const Console& console, const EvalOutput& output,
                          const eval::Report& report, const Json& json) {
  if (!output.html.empty()) TQC_TRY(write_page(console, output, report));
  return console.json ? print_json(json) : print(report::report_text(report));
}

}  // namespace tqcache::cli
