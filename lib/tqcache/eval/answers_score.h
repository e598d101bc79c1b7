#pragma once
// eval/answers_score.h: how often answers were right, as counts that add up.

#include <cmath>
#include <cstdint>

namespace tqcache::eval {

struct AnswerScore {
  std::int64_t trials = 0;
  std::int64_t exact = 0;      // the answer is the expected one (eval/answers.h)
  std::int64_t found = 0;      // the answer holds the value that was asked for
  std::int64_t forced = 0;     // every token of the expected answer is the most likely one
  double log_probability = 0;  // sum of the means over the expected answer's tokens

  void add(const AnswerScore& other) {
    trials += other.trials;
    exact += other.exact;
    found += other.found;
    forced += other.forced;
    log_probability += other.log_probability;
  }

  // Of a count, or of the log-probability: the mean over trials. NaN without one.
  double mean(double sum) const {
    return trials == 0 ? std::nan("") : sum / static_cast<double>(trials);
  }
  double mean(std::int64_t count) const { return mean(static_cast<double>(count)); }
};

}  // namespace tqcache::eval
