#pragma once
// eval/answers_report.h: scores of answers as columns of a table, and as cells of a heat map.

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tqcache/eval/answers_score.h"
#include "tqcache/eval/report.h"

namespace tqcache::eval {

// `first`, then "trials", "found", "exact", "forced" and "log-probability".
std::vector<std::string> score_columns(std::vector<std::string> first);

// A row for them. Shapes: first as many as those of score_columns().
std::vector<Cell> score_row(std::vector<Cell> first, const AnswerScore& score);

// The share of trials in which the value was found, without rows or columns yet. Colors go from 0
// to 1, so that a small loss looks small.
HeatMap found_map(std::string title, std::string row_label, std::string column_label);

// Shapes: scores as many as the map has columns.
void add_found_row(HeatMap& map, std::string name, std::span<const AnswerScore> scores);

// What they mean, for people.
inline constexpr std::string_view kScoreNote =
    "Found: what was asked for stands in the model's answer. Exact: the answer is word for word "
    "the expected one. Forced: every token of the expected answer is the most likely one. "
    "Log-probability: the mean over the tokens of the expected answer.";

}  // namespace tqcache::eval
