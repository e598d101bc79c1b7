#include <string>
#include <utility>

#include "tqcache/eval/answers_report.h"
#include "tqcache/eval/memory_run.h"

namespace tqcache::eval {
namespace {

std::string turns_name(std::int64_t turns) {
  if (turns == 0) return "after loading";
  return std::to_string(turns) + (turns == 1 ? " turn later" : " turns later");
}

HeatMap heat_map(const MemoryOptions& options, const std::string& name,
                 const std::vector<std::vector<AnswerScore>>& scores) {
  HeatMap map = found_map("Remembered, " + name, "fact", "asked");
  for (const std::int64_t turns : options.turns) map.columns.push_back(turns_name(turns));
  for (std::size_t f = 0; f < kFactKinds.size(); ++f) {
    add_found_row(map, std::string(kFactKinds[f]), scores[f]);
  }
  return map;
}

}  // namespace

Report memory_report(const MemoryOptions& options, const MemoryResult& result) {
  Report report;
  report.title = "Memory of a saved conversation";
  report.facts = {{"conversations", std::to_string(options.trials)},
                  {"tokens when saved, at least", std::to_string(options.n_tokens)},
                  {"seed", std::to_string(options.seed)}};
  Table summary = {"Memory", score_columns({"configuration"}), {}};
  Table by_turn = {"By turn", score_columns({"configuration", "when"}), {}};
  for (std::size_t c = 0; c < result.scores.size(); ++c) {
    const std::string& name = options.configurations[c].name;
    AnswerScore all;
    for (std::size_t t = 0; t < options.turns.size(); ++t) {
      AnswerScore sum;
      for (const auto& of_fact : result.scores[c]) sum.add(of_fact[t]);
      by_turn.rows.push_back(score_row({name, turns_name(options.turns[t])}, sum));
      all.add(sum);
    }
    summary.rows.push_back(score_row({name}, all));
  }
  report.figures.emplace_back(std::move(summary));
  report.figures.emplace_back(std::move(by_turn));
  for (std::size_t c = 0; c < result.scores.size(); ++c) {
    report.figures.emplace_back(
        heat_map(options, options.configurations[c].name, result.scores[c]));
  }
  report.notes = {
      std::string(kScoreNote),
      "The cache was converted, written to a file and read back before anything was asked."};
  return report;
}

}  // namespace tqcache::eval
