#pragma once
// tools/cli/tally.h: what becomes of several files that a verb works on. A bad one does not end the
// work.

#include <optional>

#include "cli/exit_code.h"
#include "cli/outcome.h"

namespace tqcache::cli {

class Tally {
 public:
  explicit Tally(bool json) : json_(json) {}

  void done() { n_done_ += 1; }

  // Tells of the failure, as report() does; of an interruption once.
  void failed(const Failure& failure);
  void failed(Error error) { failed(Failure{std::move(error), {}, false}); }

  // 0, 3 when only some failed, and the first failure's own code when all did; in any case 130
  // after an interruption.
  ExitCode exit_code() const;

  std::size_t n_failed() const { return n_failed_; }
  std::size_t n_interrupted() const { return n_interrupted_; }  // not worked on, or not to the end

 private:
  bool json_;
  std::size_t n_done_ = 0;
  std::size_t n_failed_ = 0;
  std::size_t n_interrupted_ = 0;
  std::optional<ExitCode> first_;
};

}  // namespace tqcache::cli
