#pragma once
// base/threads.h: loops over independent pieces of work, on a given number of threads.

#include <cstddef>
#include <cstdint>
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

// Work on a long row of pieces, made many at a time and taken one after another: sections that are
// compressed on all threads, and written in their order.
struct OrderedWork {
  std::size_t count = 0;
  // Pieces that are on their way at the same time have different slots, numbered from 0.
  std::function<Result<void>(std::size_t i, std::size_t slot)> make;  // of several pieces at once
  std::function<Result<void>(std::size_t i, std::size_t slot)> take;  // one at a time, in order
  // Memory that piece i holds from the beginning of its make() to the end of its take(). Empty: it
  // does not count.
  std::function<std::uint64_t(std::size_t i)> bytes = {};
  // Pieces on their way hold no more than this together; a single one may be larger.
  std::uint64_t window_bytes = 0;
};

// How many slots run_in_order() uses: more than threads, so that none waits for a slow piece.
std::size_t slot_count(unsigned n_threads);

// Calls make(i, slot) and then take(i, slot) for every piece. While one thread takes, others make.
//
// Errors:  that of the smallest i whose make() failed, or of the first take() that did; an
// exception
//          comes out in the calling thread. Every smaller i has been taken, no larger one has.
// Threads: at most thread_count(n_threads), and no more than there are processors. With one, all
//          calls are made here, each piece being taken before the next is made. Waits for all.
Result<void> run_in_order(const OrderedWork& work, unsigned n_threads);

}  // namespace tqcache
