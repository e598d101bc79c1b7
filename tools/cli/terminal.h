#pragma once
// tools/cli/terminal.h: Terminals, signals and progress bars.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "cli/console.h"
#include "tqcache/error.h"
#include "tqcache/progress.h"

namespace tqcache::cli {

// SIGINT and SIGTERM set the flag and cut waiting reads short; a second one ends the process at
// once with the exit code of an interruption. SIGPIPE and SIGXFSZ are ignored: the write that meets
// them fails and is reported as what it is.
void install_signal_handlers();

bool interrupted();

// Lowers the flag: what was made so far is about to be saved, and only another Ctrl-C ends that.
void acknowledge_interrupt();

// Waits until `fd` can be read or is at its end. False when interrupted, at whatever moment: a
// signal just before a plain read() would be noticed only after it.
bool wait_readable(int fd);

bool is_terminal(int fd);

// Whether a line on this descriptor can be drawn over: a terminal that is not dumb.
bool can_redraw(int fd);

// The same, and the user has not set NO_COLOR (https://no-color.org).
bool can_color(int fd);

std::size_t terminal_columns(int fd);  // 80 when unknown

// One line without control characters: "a\nb" becomes "a\x0ab". A file name must not be able to
// move the cursor or to forge a second message.
std::string printable(std::string_view text);

// The same for text of several lines: keeps line ends and tabs.
std::string printable_lines(std::string_view text);

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
