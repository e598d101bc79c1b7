// Signals, waiting, the locale and the size of a terminal on Linux and macOS.

#ifndef _WIN32

#include <langinfo.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif

#include <array>
#include <cerrno>
#include <clocale>
#include <csignal>
#include <ctime>

#include "cli/terminal.h"
#include "tqcache/base/posix.h"
#include "tqcache/base/system.h"

namespace tqcache::cli {
namespace {

// Signal handlers can only access globals.
volatile std::sig_atomic_t g_interrupted = 0;
volatile std::sig_atomic_t g_terminated = 0;
volatile std::sig_atomic_t g_ends_at_first = 0;
volatile std::sig_atomic_t g_continued = 0;
int g_wake_pipe[2] = {-1, -1};  // holds a byte after a signal

volatile std::sig_atomic_t g_first_second = 0, g_first_ms = 0;  // when the first signal came

// One key press or one `timeout` can send the same signal twice in a row.
bool is_another_signal() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  const auto second = static_cast<std::sig_atomic_t>(now.tv_sec);
  const auto ms = static_cast<std::sig_atomic_t>(now.tv_nsec / 1'000'000);
  const int gap = second - g_first_second;
  if (g_interrupted != 0) return gap > 1 || gap * 1000 + ms - g_first_ms > 100;
  g_first_second = second;
  g_first_ms = ms;
  return false;
}

void handle(int signal) {
  const int saved_errno = errno;
  if (g_ends_at_first != 0 || is_another_signal())
    ::_exit(static_cast<int>(ExitCode::kInterrupted));
  g_interrupted = 1;
  if (signal == SIGTERM) g_terminated = 1;
  [[maybe_unused]] const ssize_t ignored = posix::write(g_wake_pipe[1], "", 1);
  errno = saved_errno;
}

void handle_continued(int) {
  const int saved_errno = errno;
  g_continued = 1;
  [[maybe_unused]] const ssize_t ignored = posix::write(g_wake_pipe[1], "", 1);
  errno = saved_errno;
}

void drain_wake_pipe() {
  std::array<char, 64> woken;
  while (posix::read(g_wake_pipe[0], woken.data(), woken.size()) > 0) {
  }
}

}  // namespace

void install_signal_handlers() {
  // Without a pipe, poll() ignores the negative descriptor, and only the flag remains.
  [[maybe_unused]] const int ignored = open_pipe(g_wake_pipe);
  struct sigaction action = {};
  action.sa_handler = handle;  // without SA_RESTART, so that a waiting call returns
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  action.sa_handler = handle_continued;
  action.sa_flags = SA_RESTART;
  sigaction(SIGCONT, &action, nullptr);
  action.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &action, nullptr);
  sigaction(SIGXFSZ, &action, nullptr);
}

void forbid_core_dumps() {
#ifdef __linux__
  // The limit alone does not hold for a program that the kernel's core_pattern names.
  [[maybe_unused]] const int not_set = ::prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
#endif
  const rlimit none = {0, 0};
  [[maybe_unused]] const int ignored = ::setrlimit(RLIMIT_CORE, &none);
}

EndsAtFirstSignal::EndsAtFirstSignal() { g_ends_at_first = 1; }
EndsAtFirstSignal::~EndsAtFirstSignal() { g_ends_at_first = 0; }

bool interrupted() { return g_interrupted != 0; }

bool terminated() { return g_terminated != 0; }

void acknowledge_interrupt() {
  drain_wake_pipe();
  g_interrupted = 0;
}

bool wait_readable(int fd, const std::function<void()>& on_continued) {
  std::array<pollfd, 2> waiting = {{{fd, POLLIN, 0}, {g_wake_pipe[0], POLLIN, 0}}};
  while (!interrupted()) {
    if (g_continued != 0) {
      // An interrupt whose byte goes as well has set its flag before.
      g_continued = 0;
      drain_wake_pipe();
      if (on_continued) on_continued();
      continue;
    }
    const int n = ::poll(waiting.data(), waiting.size(), -1);
    if (n < 0 && errno != EINTR) return true;  // read() will report the error
    if (n > 0 && waiting[0].revents != 0) return !interrupted();
  }
  return false;
}

void choose_locale() {
  // Numbers keep the format of the C locale.
  std::setlocale(LC_CTYPE, "");
  for (const char* name : {"C.UTF-8", "en_US.UTF-8"}) {
    if (has_utf8()) return;
    std::setlocale(LC_CTYPE, name);
  }
}

bool has_utf8() { return std::string_view(::nl_langinfo(CODESET)) == "UTF-8"; }

bool is_terminal(int fd) { return posix::isatty(fd) == 1; }

std::size_t terminal_columns(int fd) {
  winsize size = {};
  if (::ioctl(fd, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return size.ws_col;
}

}  // namespace tqcache::cli

#endif  // _WIN32
