#pragma once
// tools/verbs/eval_verbs.h: what `tqcache eval` can measure: verbs of their own behind the word eval.

#include <span>

#include "cli/cli.h"

namespace tqcache::cli {

// Each stands in its own eval_*.cpp.
Action define_eval_ppl(CLI::App& app);
Action define_eval_kld(CLI::App& app);
Action define_eval_needle(CLI::App& app);
Action define_eval_jsonl(CLI::App& app);
Action define_eval_memory(CLI::App& app);
Action define_eval_cache(CLI::App& app);

// In the order of `tqcache eval --help`.
std::span<const Verb> eval_verbs();

}  // namespace tqcache::cli
