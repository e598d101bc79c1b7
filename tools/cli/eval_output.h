#pragma once
// tools/cli/eval_output.h: what the measurements of `tqcache eval` have in common: where results go.
//
// A table on standard output, or with --json an object; with --html a page beside either.

#include <CLI/CLI.hpp>
#include <string>

#include "cli/console.h"
#include "cli/outcome.h"
#include "tqcache/eval/report.h"

namespace tqcache::cli {

struct EvalOutput {
  std::string html;  // file to write; empty: none
  bool force = false;
};

// --html and --force; --json stands with every verb.
void add_eval_output_flags(CLI::App& app, EvalOutput& output);

// Refuses a page that cannot be written, before hours are spent on what goes into it.
Outcome<Done> check_eval_output(const EvalOutput& output);

// Writes the page first, so that a failure leaves no table that looks like success; then prints the
// report, or `json` if that was asked for.
Outcome<Done> give_report(const Console& console, const EvalOutput& output,
                          const eval::Report& report, const Json& json);

}  // namespace tqcache::cli
