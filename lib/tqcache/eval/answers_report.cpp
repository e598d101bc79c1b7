#include "tqcache/eval/answers_report.h"

namespace tqcache::eval {

std::vector<std::string> score_columns(std::vector<std::string> first) {
  first.insert(first.end(), {"trials", "found", "exact", "forced", "log-probability"});
  return first;
}

std::vector<Cell> score_row(std::vector<Cell> first, const AnswerScore& score) {
  first.emplace_back(Number{static_cast<double>(score.trials), 0});
  for (const std::int64_t count : {score.found, score.exact, score.forced}) {
    first.emplace_back(Number{score.mean(count), 3});
  }
  first.emplace_back(Number{score.mean(score.log_probability), 4});
  return first;
}

}  // namespace tqcache::eval
