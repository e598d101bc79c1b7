#pragma once
// tqcache/progress.h: a callback that receives the progress of long work and can stop it.
//
//   tqcache::Progress progress = [](std::uint64_t done, std::uint64_t total) {
//     std::printf("%llu of %llu\n", done, total);
//     return !stop_was_asked_for;
//   };

#include <cstdint>
#include <functional>
#include <utility>

#include "tqcache/error.h"

namespace tqcache {

// Called from time to time, from one thread at a time, with the work done and the total work, in
// the unit that the called function documents. Returns false to stop: the work then ends with
// ErrorCode::kInterrupted and leaves nothing behind. May be empty.
using Progress = std::function<bool(std::uint64_t done, std::uint64_t total)>;

// Calls `progress`, if it is not empty. Errors: kInterrupted if it returns false.
inline Result<void> report_progress(const Progress& progress, std::uint64_t done,
                                    std::uint64_t total) {
  if (!progress || progress(done, total)) return {};
  return interrupted_error();
}

// The work done so far, reported whenever it grows. `progress` must outlive it.
class ProgressCounter {
 public:
  ProgressCounter(const Progress& progress, std::uint64_t total)
      : progress_(progress), total_(total) {}

  // Errors: kInterrupted.
  Result<void> add(std::uint64_t amount) {
    return report_progress(progress_, done_ += amount, total_);
  }

  std::uint64_t done() const { return done_; }

 private:
  const Progress& progress_;
  std::uint64_t total_;
  std::uint64_t done_ = 0;
};

}  // namespace tqcache
