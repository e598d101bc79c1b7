#include "verbs/eval_common.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <ctime>
#include <thread>

#include "cli/cache_io.h"
#include "cli/common_flags.h"
#include "cli/model_facts.h"
#include "cli/store_flags.h"
#include "cli/terminal.h"
#include "cli/verb.h"
#include "report/html_page.h"
#include "report/text_table.h"
#include "tqcache/base/posix.h"
#include "tqcache/base/system.h"
#include "tqcache/bytes.h"
#include "tqcache/codec/kernels/kernels.h"
#include "tqcache/file.h"
#include "tqcache/session.h"

namespace tqcache::cli {

namespace {

Result<void> write_page(const Console& console, const EvalOutput& output,
                        const eval::Report& report) {
  const std::string page = report::html_page(report);
  const Overwrite overwrite = output.force ? Overwrite::kAllow : Overwrite::kRefuse;
  TQC_TRY(in_file(output.html,
                  write_file_atomically(output.html, std::as_bytes(std::span(page)), overwrite)));
  note(console, fmt::format("{}: written", output.html));
  return {};
}

}  // namespace

void add_eval_output_flags(FlagSet& app, EvalOutput& output) {
  app.add("--html", output.html, "Also write an HTML page with all figures")
      ->type_name("FILE")
      ->file();
  add_force_flag(app, output.force);
}

Result<void> check_eval_output(const EvalOutput& output) {
  if (output.html.empty()) return {};
  if (output.html == "-") return usage_error("--html: standard output is used for the results");
  return check_output(output.html, output.force);
}

Result<void> give_report(const Console& console, const EvalOutput& output,
                         const eval::Report& report, const Json& json) {
  if (!output.html.empty()) TQC_TRY(write_page(console, output, report));
  const std::size_t columns =
      is_terminal(STDOUT_FILENO) ? std::max<std::size_t>(terminal_columns(STDOUT_FILENO), 40) : 100;
  return console.json ? print_json(json) : print(report::report_text(report, columns));
}

void add_run_facts(unsigned n_threads, const model::Model* model, eval::Report& report) {
  auto& facts = report.facts;
  if (model != nullptr) {
    facts.emplace_back("model weights", "sha256 " + to_hex(model->identity.weights_fingerprint));
  }
  facts.emplace_back("command line", command_line());
  facts.emplace_back("date", time_text(std::time(nullptr)) + " UTC");
  const std::string cpu = cpu_name();
  facts.emplace_back(
      "CPU", fmt::format("{}{}{}", cpu, cpu.empty() ? "" : ", ", codec::best_kernels().name));
  facts.emplace_back("threads", n_threads == 0
                                    ? fmt::format("all ({})", std::thread::hardware_concurrency())
                                    : std::to_string(n_threads));
  facts.emplace_back("program", "tqcache " TQCACHE_VERSION);
}

}  // namespace tqcache::cli
