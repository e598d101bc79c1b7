#pragma once
// tools/verbs/eval_common.h: common parts of the measurements of `tqcache eval`: what they write.
//
// The result is a table on standard output, or an object with --json; --html adds a page.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cli/console.h"
#include "cli/flags.h"
#include "tqcache/error.h"
#include "tqcache/model.h"
#include "tqcache/report.h"

namespace tqcache::cli {

struct EvalOutput {
  std::string html;  // file to write; empty: no page
  bool force = false;
};

// --html and --force; every verb has --json.
void add_eval_output_flags(FlagSet& app, EvalOutput& output);

// Rejects a page that cannot be written, before hours are spent on its content.
Result<void> check_eval_output(const EvalOutput& output);

// Writes the page first, so that a failure leaves no table that looks like success; then prints the
// report, or `json` with --json.
Result<void> give_report(const Console& console, const EvalOutput& output,
                         const eval::Report& report, const Json& json);

// Appends what a reader needs to repeat the measurement: the command line, the date, this program,
// the CPU, the number of threads and, unless it is null, the fingerprint of the model.
void add_run_facts(unsigned n_threads, const model::Model* model, eval::Report& report);

}  // namespace tqcache::cli
