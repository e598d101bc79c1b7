#pragma once
// research/answers.h: comparison of a model's answers with the expected ones, and counts of correct
// answers.
//
// Both texts are normalized first: lower case; punctuation and symbols (Unicode categories P and S)
// removed; each run of white space replaced by one space, none at the ends; composed characters
// (NFC). Articles stay. So "Your parrot is called Max." and "your  parrot is called MAX" are the
// same answer, and so are "1,234" and "1234".

#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tqcache/report.h"

namespace tqcache::research {

// The normalized text. Bytes that are not UTF-8 are left out.
std::string plain_answer(std::string_view text);

struct Match {
  bool exact = false;  // the answer equals an expected one
  bool found = false;  // the answer contains an expected one
};

// A number is not found inside a longer one: "2134" does not contain 13. An expected answer without
// a letter or a digit matches nothing.
Match match_answer(std::string_view given, std::span<const std::string> expected);

// Counts that add up over trials.
struct AnswerScore {
  std::int64_t trials = 0;
  std::int64_t exact = 0;      // the answer equals the expected one
  std::int64_t found = 0;      // the answer contains the requested value
  std::int64_t forced = 0;     // every token of the expected answer is the most likely one
  double log_probability = 0;  // sum over trials of the mean over the expected answer's tokens

  void add(const AnswerScore& other) {
    trials += other.trials;
    exact += other.exact;
    found += other.found;
    forced += other.forced;
    log_probability += other.log_probability;
  }

  // A count or the log-probability, divided by the number of trials. NaN without trials.
  double mean(double sum) const {
    return trials == 0 ? std::nan("") : sum / static_cast<double>(trials);
  }
  double mean(std::int64_t count) const { return mean(static_cast<double>(count)); }
};

// ---- Scores in a report ----

// `first`, then "trials", "found", "+-" (its standard error), "exact", "forced" and
// "log-probability".
std::vector<std::string> score_columns(std::vector<std::string> first);

// A row of these columns. Shapes: `first` is as long as that of score_columns().
std::vector<eval::Cell> score_row(std::vector<eval::Cell> first, const AnswerScore& score);

// The share of trials in which the value was found; rows and columns are still to be added. Colors
// go from 0 to 1, so that a small loss looks small.
eval::HeatMap found_map(std::string title, std::string row_label, std::string column_label);

// Shapes: scores [columns of the map].
void add_found_row(eval::HeatMap& map, std::string name, std::span<const AnswerScore> scores);

// The meaning of the columns, as a note of the report.
inline constexpr std::string_view kScoreNote =
    "Found: the model's answer contains the value that was asked for; +-: one standard error. "
    "Exact: the answer equals "
    "the expected one. Forced: every token of the expected answer is the most likely one. "
    "Log-probability: the mean over the tokens of the expected answer.";

}  // namespace tqcache::research
