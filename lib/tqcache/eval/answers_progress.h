#pragma once
// eval/answers_progress.h: the progress of many pieces of work as that of one.

#include <cstdint>
#include <functional>

#include "tqcache/base/progress.h"

namespace tqcache::eval {

// Requires: `whole` outlives this, and this outlives what it gives.
class Pieces {
 public:
  Pieces(const Progress& whole, std::uint64_t total) : whole_(whole), total_(total) {}

  // For a piece that counts in the same units.
  Progress piece() {
    return [this](std::uint64_t done, std::uint64_t) { return tell(done_ + done); };
  }
  // For work between the pieces, that only wants to know whether to go on.
  Progress check() {
    return [this](std::uint64_t, std::uint64_t) { return tell(done_); };
  }
  std::function<bool()> keep_going() {
    return [this] { return tell(done_); };
  }
  void finish(std::uint64_t size) { done_ += size; }

 private:
  bool tell(std::uint64_t done) { return !whole_ || whole_(done, total_); }

  const Progress& whole_;
  std::uint64_t total_;
  std::uint64_t done_ = 0;
};

}  // namespace tqcache::eval
