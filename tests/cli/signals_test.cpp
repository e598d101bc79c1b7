// Ctrl-C and SIGTERM, once and twice.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/terminal.h"

namespace tqcache::test {
namespace signals_test {

constexpr int kPauseMicroseconds = 50'000;

// A process that never looks whether it was interrupted. Returns its pid when its handlers are
// there.
pid_t start_deaf_process() {
  int ready[2];
  if (::pipe(ready) != 0) return -1;
  const pid_t child = ::fork();
  if (child == 0) {
    cli::install_signal_handlers();
    (void)!::write(ready[1], "r", 1);
    for (;;) ::pause();
  }
  char byte = 0;
  const bool is_ready = ::read(ready[0], &byte, 1) == 1;
  ::close(ready[0]);
  ::close(ready[1]);
  return is_ready ? child : -1;
}

// Sends signals until it ends, for at most a minute, and returns its exit status; -1: it did not.
int end_with_signals(pid_t child, int first, int later) {
  int status = 0;
  ::kill(child, first);
  for (int i = 0; i < 1200; ++i) {
    ::usleep(kPauseMicroseconds);
    if (::waitpid(child, &status, WNOHANG) == child) {
      return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
    }
    ::kill(child, later);
  }
  ::kill(child, SIGKILL);
  ::waitpid(child, &status, 0);
  return -1;
}

TEST(Signals, ASecondOneEndsTheProcessAtOnce) {
  EXPECT_EQ(end_with_signals(start_deaf_process(), SIGINT, SIGINT), 130);
  EXPECT_EQ(end_with_signals(start_deaf_process(), SIGTERM, SIGTERM), 130);
  EXPECT_EQ(end_with_signals(start_deaf_process(), SIGINT, SIGTERM), 130);
}

// Sends itself a signal while a model would be read, or after that.
int status_after_signal(bool meanwhile) {
  const pid_t child = ::fork();
  if (child == 0) {
    cli::install_signal_handlers();
    {
      const cli::EndsAtFirstSignal scope;
      if (meanwhile) ::raise(SIGINT);
    }
    ::raise(SIGINT);
    ::_exit(cli::interrupted() ? 7 : 8);
  }
  int status = 0;
  if (::waitpid(child, &status, 0) != child || !WIFEXITED(status)) return -1;
  return WEXITSTATUS(status);
}

TEST(Signals, TheFirstOneEndsWorkThatCannotBeAskedToStop) {
  EXPECT_EQ(status_after_signal(true), 130);
  EXPECT_EQ(status_after_signal(false), 7);
}

TEST(Signals, TheFirstOneOnlySetsTheFlag) {
  const pid_t child = ::fork();
  if (child == 0) {
    cli::install_signal_handlers();
    ::raise(SIGINT);
    ::raise(SIGINT);  // as one key press can send it, through a wrapper
    ::_exit(cli::interrupted() ? 7 : 8);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 7);
}

}  // namespace signals_test
}  // namespace tqcache::test
