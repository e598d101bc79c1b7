#include "tqcache/eval/answers_report.h"

#include <utility>

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

HeatMap found_map(std::string title, std::string row_label, std::string column_label) {
  HeatMap map;
  map.title = std::move(title);
  map.row_label = std::move(row_label);
  map.column_label = std::move(column_label);
  map.unit = "share of trials";
  map.more_is_better = true;
  map.decimals = 2;
  map.low = 0;
  map.high = 1;
  return map;
}

void add_found_row(HeatMap& map, std::string name, std::span<const AnswerScore> scores) {
  map.rows.push_back(std::move(name));
  map.values.emplace_back();
  for (const AnswerScore& score : scores) map.values.back().push_back(score.mean(score.found));
}

}  // namespace tqcache::eval
