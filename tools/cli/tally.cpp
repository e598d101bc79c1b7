#include "cli/tally.h"

#include "cli/console.h"
#include "cli/interrupt.h"

namespace tqcache::cli {

void Tally::failed(const Failure& failure) {
  if (failure.error.code == ErrorCode::kInterrupted) {
    n_interrupted_ += 1;
    if (n_interrupted_ == 1) report(Failure{interrupted_error(), {}, false}, json_);
    return;
  }
  n_failed_ += 1;
  const ExitCode code = report(failure, json_);
  if (!first_) first_ = code;
}

ExitCode Tally::exit_code() const {
  if (n_interrupted_ > 0) return ExitCode::kInterrupted;
  if (!first_) return ExitCode::kDone;
  return n_done_ == 0 ? *first_ : ExitCode::kDoneInPart;
}

}  // namespace tqcache::cli
