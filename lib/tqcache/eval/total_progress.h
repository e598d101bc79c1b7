#pragma once
// eval/total_progress.h: the progress of several runs, reported as that of one.

#include <cstdint>
#include <functional>

#include "tqcache/progress.h"

namespace tqcache::eval {

// All runs count in the same units, for example tokens.
//
// Requires: `whole` outlives this, and this outlives the functions that it returns.
class TotalProgress {
 public:
  TotalProgress(const Progress& whole, std::uint64_t total) : whole_(whole), total_(total) {}

  // For the next run.
  Progress next_run() {
    return [this, before = done_](std::uint64_t done, std::uint64_t) {
      return !whole_ || whole_(before + done, total_);
    };
  }
  // For work between the runs, which is not counted but can be interrupted.
  Progress check() {
    return [this](std::uint64_t, std::uint64_t) { return report(0); };
  }
  std::function<bool()> keep_going() {
    return [this] { return report(0); };
  }

  // Reports the progress of the current run. False: stop.
  bool report(std::uint64_t done_in_run) const {
    return !whole_ || whole_(done_ + done_in_run, total_);
  }

  // Ends a run of that size.
  void finish_run(std::uint64_t size) { done_ += size; }

 private:
  const Progress& whole_;
  std::uint64_t total_;
  std::uint64_t done_ = 0;
};

}  // namespace tqcache::eval
