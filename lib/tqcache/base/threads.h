#pragma once
// base/threads.h: one loop over independent pieces of work, on a given number of threads.

#include <cstddef>
#include <functional>

#include "tqcache/base/result.h"

namespace tqcache {

// The number of threads that `requested` means: itself, or for 0 the processors this process
// may run on.
unsigned thread_count(unsigned requested);

// Calls body(i) for every i in [0, count), on at most thread_count(n_threads) threads, and no
// more than there are processors.
//
// Requires: body(i) may run at the same time as body(j). A call should be worth a task switch
//           (some microseconds): loop over blocks, not over single values.
// Errors:   an exception from a body ends the loop (some calls may be left out) and comes out
//           here, in the calling thread.
// Threads:  returns when all calls have returned; with one thread they run in order, here.
//           Loops may be nested.
void parallel_for(std::size_t count, unsigned n_threads,
                  const std::function<void(std::size_t)>& body);

// The same for work that can fail: gives the error of the smallest failing i, so that the
// message does not depend on timing. After a failure pieces with a larger i may be left out;
// those with a smaller i are not.
Result<void> parallel_try(std::size_t count, unsigned n_threads,
                          const std::function<Result<void>(std::size_t)>& body);

}  // namespace tqcache
