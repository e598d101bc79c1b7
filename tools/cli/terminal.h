#pragma once
// tools/cli/terminal.h: terminals, signals and progress bars.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "cli/console.h"
#include "tqcache/error.h"
#include "tqcache/progress.h"

namespace tqcache::cli {

// SIGINT and SIGTERM set the flag and interrupt waiting reads; a second one ends the process at
// once with the exit code of an interruption. SIGCONT is seen by wait_readable(). SIGPIPE and
// SIGXFSZ are ignored: the write fails instead, with an error of its own.
void install_signal_handlers();

// The memory of the program holds prompts and secrets, which must not be left in a file when it
// crashes. Other processes of the user cannot attach to it either (ptrace), nor read its memory.
void forbid_core_dumps();

bool interrupted();

// Whether SIGTERM has arrived; acknowledge_interrupt() does not clear this.
bool terminated();

// Clears the flag before results are saved: only another Ctrl-C ends the saving.
void acknowledge_interrupt();

// While one exists, the first signal ends the process at once, as a second one always does. For
// work that cannot be asked to stop, and that leaves nothing behind.
class EndsAtFirstSignal {
 public:
  EndsAtFirstSignal();
  ~EndsAtFirstSignal();
  EndsAtFirstSignal(const EndsAtFirstSignal&) = delete;
  EndsAtFirstSignal& operator=(const EndsAtFirstSignal&) = delete;
};

// Waits until `fd` can be read or is at its end. Returns false if interrupted, at any moment: a
// plain read() would miss a signal that arrives just before it. `on_continued` is called if the
// program was stopped meanwhile (Ctrl-Z) and goes on.
bool wait_readable(int fd, const std::function<void()>& on_continued = {});

// Chooses the locale of the environment, or one with UTF-8 if that has none: containers, cron and
// ssh often leave it unset, and terminals send UTF-8 all the same.
void choose_locale();

// Whether the locale has UTF-8.
bool has_utf8();

bool is_terminal(int fd);

// Whether a line on this descriptor can be redrawn: a terminal that is not dumb.
bool can_redraw(int fd);

// As above, and the user has not set NO_COLOR (https://no-color.org).
bool can_color(int fd);

std::size_t terminal_columns(int fd);  // 80 when unknown

// One line without control characters, marks that change the direction of writing, and bytes that
// are no UTF-8: "a\nb" becomes "a\x0ab". A file name must not move the cursor, forge a second
// message or look like another name.
std::string printable(std::string_view text);

// As above for text of several lines: keeps line ends, tabs and the marks U+061C, U+200E and
// U+200F.
std::string printable_lines(std::string_view text);

// kShare: of nothing that a user counts; only the percentage is shown.
enum class Unit { kTokens, kBytes, kVectors, kLayers, kBlocks, kBlobs, kShare };

// Draws at most ten times a second on standard error, if that is a terminal and --quiet is not
// given, and removes the bar at the end of the scope. Always passes Ctrl-C on to the work.
class ProgressBar {
 public:
  ProgressBar(const Console& console, std::string label, Unit unit);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // Removes the bar until it is drawn again, so that other text can be printed.
  void clear();

  // A callback for a library function. Requires: the bar outlives its use.
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
