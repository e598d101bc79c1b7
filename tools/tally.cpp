#include "tally.h"

#include "console.h"

namespace tqcache::cli {

void Tally::failed(const Failure& failure) {
  n_failed_ += 1;
  const bool by_user = failure.error.code == ErrorCode::kInterrupted;
  if (by_user && first_ == ExitCode::kInterrupted) return;
  const ExitCode code = report(failure, json_);
  if (!first_ || by_user) first_ = code;
}

ExitCode Tally::exit_code() const {
  if (!first_) return ExitCode::kDone;
  if (*first_ == ExitCode::kInterrupted || n_done_ == 0) return *first_;
  return ExitCode::kDoneInPart;
}

}  // namespace tqcache::cli
