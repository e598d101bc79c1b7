#pragma once
// tools/cli/progress.h: a bar on the terminal for work that takes a while.

#include <chrono>
#include <cstdint>
#include <string>

#include "cli/console.h"
#include "tqcache/base/progress.h"

namespace tqcache::cli {

enum class Unit { kTokens, kBytes, kVectors, kLayers, kSides, kBlocks, kBlobs };

// Draws at most ten times a second on standard error, only when that is a terminal and the user
// did not ask for quiet, and takes the bar away at the end of the scope. In any case it passes
// Ctrl-C on to the work.
class ProgressBar {
 public:
  ProgressBar(const Console& console, std::string label, Unit unit);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // Takes the bar away until it is drawn again, so that something else can be said.
  void clear();

  // For a library function. Requires: the bar outlives its use.
  Progress callback();

 private:
  using Clock = std::chrono::steady_clock;

  void draw(std::uint64_t done, std::uint64_t total);

  std::string label_;
  Unit unit_;
  bool visible_;
  bool drawn_ = false;
  Clock::time_point start_ = Clock::now();
  Clock::time_point next_draw_;
};

}  // namespace tqcache::cli
