#pragma once
// faults/failing_calls.h: the C library's calls for files, with a wish for failures. They stand in
// the place of its own for the whole program.
//
// What victim.h does to a process of its own from outside, seen from within: thousands of failures
// in a second, and the program lives to tell which branches it took.

#include <cstdint>
#include <string_view>

namespace tqcache::faults {

// Lets the `number`th call from now on fail with `error`, counted from 1 over all kinds of calls,
// and all after it if `for_good`; and calls of kind `always` ("link") besides, every time, with
// `always_error`, uncounted.
struct CallFailures {
  std::int64_t number = 0;  // 0: none
  int error = 0;
  bool for_good = false;
  std::string_view always = {};
  int always_error = 0;
};

// In force while it lives. One at a time, and all calls from one thread at a time.
class FailingCalls {
 public:
  explicit FailingCalls(CallFailures failures);
  ~FailingCalls();
  FailingCalls(const FailingCalls&) = delete;
  FailingCalls& operator=(const FailingCalls&) = delete;

  // Whether the call came, and the name of the first that failed: "fsync".
  bool came() const;
  std::string_view name() const;
};

}  // namespace tqcache::faults
