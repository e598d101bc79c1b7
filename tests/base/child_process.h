#pragma once
// A part of a test in a process of its own, with system calls made to fail or to kill it.

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <vector>

namespace tqcache::test {

// The exit status of a child when something it needs (root, seccomp) is not to be had here.
inline constexpr int kNotPossibleHere = 77;

// Runs `body` in a forked child and gives the status it returns, or minus the number of the
// signal that killed it.
template <class Body>
int in_child(Body body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body());
  int status = 0;
  if (child < 0 || ::waitpid(child, &status, 0) != child) return 99;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

// From now on the system calls `numbers` have `outcome` (SECCOMP_RET_ERRNO | errno, or
// SECCOMP_RET_KILL_PROCESS) for this process: call it in a child. False if seccomp is refused.
inline bool filter_system_calls(std::initializer_list<long> numbers, std::uint32_t outcome) {
  std::vector<sock_filter> program = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr))};
  for (const long number : numbers) {
    program.push_back(
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(number), 0, 1));
    program.push_back(BPF_STMT(BPF_RET | BPF_K, outcome));
  }
  program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  sock_fprog filter{static_cast<unsigned short>(program.size()), program.data()};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

inline bool fail_system_calls(std::initializer_list<long> numbers, int error_number) {
  return filter_system_calls(numbers, SECCOMP_RET_ERRNO | static_cast<std::uint32_t>(error_number));
}

}  // namespace tqcache::test
