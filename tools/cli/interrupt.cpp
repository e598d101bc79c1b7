#include "cli/interrupt.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>

namespace tqcache::cli {
namespace {

// A signal handler can reach nothing but globals.
volatile std::sig_atomic_t g_interrupted = 0;
int g_wake_pipe[2] = {-1, -1};  // holds a byte once a signal came

void handle(int) {
  const int saved_errno = errno;
  g_interrupted = 1;
  [[maybe_unused]] const ssize_t ignored = ::write(g_wake_pipe[1], "", 1);
  errno = saved_errno;
}

}  // namespace

void install_signal_handlers() {
  // Without the pipe poll() passes over its negative descriptor, and the flag is left.
  [[maybe_unused]] const int ignored = ::pipe2(g_wake_pipe, O_CLOEXEC | O_NONBLOCK);
  struct sigaction action = {};
  action.sa_handler = handle;  // without SA_RESTART, so that a waiting call returns
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  action.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &action, nullptr);
  sigaction(SIGXFSZ, &action, nullptr);
}

bool interrupted() { return g_interrupted != 0; }

void acknowledge_interrupt() {
  std::array<char, 64> woken;
  while (::read(g_wake_pipe[0], woken.data(), woken.size()) > 0) {
  }
  g_interrupted = 0;
}

bool wait_readable(int fd) {
  std::array<pollfd, 2> waiting = {{{fd, POLLIN, 0}, {g_wake_pipe[0], POLLIN, 0}}};
  while (!interrupted()) {
    const int n = ::poll(waiting.data(), waiting.size(), -1);
    if (n < 0 && errno != EINTR) return true;  // the read will tell what is wrong
    if (n > 0 && waiting[0].revents != 0) return !interrupted();
  }
  return false;
}

}  // namespace tqcache::cli
