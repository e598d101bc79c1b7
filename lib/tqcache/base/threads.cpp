#include "tqcache/base/threads.h"

#include <tbb/global_control.h>
#include <tbb/info.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <mutex>
#include <optional>

namespace tqcache {
namespace {

// The most threads TBB gives this process, as a rule one a processor: when asked for more it
// reserves memory for them and prints a warning.
std::size_t thread_limit() {
  return tbb::global_control::active_value(tbb::global_control::max_allowed_parallelism);
}

// The error of the smallest index that has failed so far.
class FirstError {
 public:
  // May still answer true for a moment after a smaller index has failed: that costs a call, no
  // more.
  bool may_matter(std::size_t index) const { return index < smallest_.load(); }

  void note(std::size_t index, Error error) {
    const std::lock_guard lock(mutex_);
    if (!may_matter(index)) return;
    smallest_ = index;
    error_ = std::move(error);
  }

  Result<void> take() && {
    if (!error_) return {};
    return *std::move(error_);
  }

 private:
  std::atomic<std::size_t> smallest_ = std::numeric_limits<std::size_t>::max();
  std::mutex mutex_;
  std::optional<Error> error_;
};

}  // namespace

unsigned thread_count(unsigned requested) {
  return requested != 0 ? requested : static_cast<unsigned>(tbb::info::default_concurrency());
}

std::size_t slot_count(unsigned n_threads) {
  return 4 * std::min<std::size_t>(thread_count(n_threads), thread_limit());
}

void parallel_for(std::size_t count, unsigned n_threads,
                  const std::function<void(std::size_t)>& body) {
  const std::size_t threads =
      std::min<std::size_t>({count, thread_count(n_threads), thread_limit()});
  if (threads <= 1) {
    for (std::size_t i = 0; i < count; ++i) body(i);
    return;
  }
  // An arena of its own also keeps a thread that waits here from picking up foreign work, which
  // could need a lock that its caller holds.
  tbb::task_arena arena(static_cast<int>(threads));
  arena.execute([&] { tbb::parallel_for(std::size_t{0}, count, body); });
}

Result<void> parallel_try(std::size_t count, unsigned n_threads,
                          const std::function<Result<void>(std::size_t)>& body) {
  FirstError first;
  parallel_for(count, n_threads, [&](std::size_t i) {
    if (!first.may_matter(i)) return;
    if (Result<void> result = body(i); !result) first.note(i, std::move(result).error());
  });
  return std::move(first).take();
}

}  // namespace tqcache
