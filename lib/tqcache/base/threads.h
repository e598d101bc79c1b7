#pragma once
// base/threads.h: parallel loops on a given number of threads.

#include <cstddef>
#include <cstdint>
#include <functional>

#include "tqcache/error.h"

namespace tqcache {

// `requested`, or for 0 the number of processors that this process may use.
unsigned thread_count(unsigned requested);

// Calls body(i) for every i in [0, count), on at most thread_count(n_threads) threads, and no
// more than there are processors.
//
// Requires: body(i) may run at the same time as body(j). A call should be worth a task switch
//           (some microseconds): loop over blocks, not over single values.
// Errors:   an exception from a body ends the loop (some calls may be skipped) and is rethrown in
//           the calling thread.
// Threads:  returns when all calls have returned. With one thread they run in order, in the caller.
//           Loops may be nested.
void parallel_for(std::size_t count, unsigned n_threads,
                  const std::function<void(std::size_t)>& body);

// The same for work that can fail. Returns the error of the smallest failing i, so that the message
// does not depend on timing. After a failure, calls with a larger i may be skipped; calls with a
// smaller i are not.
Result<void> parallel_try(std::size_t count, unsigned n_threads,
                          const std::function<Result<void>(std::size_t)>& body);

// A pipeline: items are made in parallel and taken one at a time in their order. Example: sections
// are compressed on all threads and written in order.
struct OrderedWork {
  std::size_t count = 0;
  // Items that are in progress at the same time have different slots, numbered from 0.
  std::function<Result<void>(std::size_t i, std::size_t slot)> make;  // several items at once
  std::function<Result<void>(std::size_t i, std::size_t slot)> take;  // one at a time, in order
  // Memory of item i from the start of its make() to the end of its take(). Empty: not counted.
  std::function<std::uint64_t(std::size_t i)> bytes = {};
  // Upper limit for the memory of all items in progress; a single item may be larger.
  std::uint64_t window_bytes = 0;
};

// The number of slots of run_in_order(): more than threads, so that no thread waits for a slow
// item.
std::size_t slot_count(unsigned n_threads);

// Calls make(i, slot) and then take(i, slot) for every item. While one thread takes, others make.
//
// Errors:  that of the smallest i whose make() failed, or of the first take() that failed. An
//          exception is rethrown in the calling thread. All smaller items have been taken, no
//          larger one has.
// Threads: at most thread_count(n_threads), and no more than there are processors. With one, all
//          calls run in the caller, and each item is taken before the next is made.
Result<void> run_in_order(const OrderedWork& work, unsigned n_threads);

}  // namespace tqcache
