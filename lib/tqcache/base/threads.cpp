
#include "tqcache/base/threads.h"

#include <tbb/global_control.h>
#include <tbb/info.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <limits>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "tqcache/base/thread_sanitizer.h"

namespace tqcache {

namespace {

// The most threads that TBB gives this process, usually one per processor. If asked for more, TBB
// reserves memory for them and prints a warning.
std::size_t thread_limit() {
  return tbb::global_control::active_value(tbb::global_control::max_allowed_parallelism);
}

#if TQC_THREAD_SANITIZER
// Debian's TBB is not compiled for ThreadSanitizer, which does not see that its tasks wait for each
// other, and would call all of them races. It sees these threads.
void run_loop(std::size_t count, std::size_t n_threads,
              const std::function<void(std::size_t)>& body) {
  std::atomic<std::size_t> next = 0;
  std::mutex mutex;
  std::exception_ptr failure;
  const auto work = [&] {
    try {
      for (std::size_t i = next++; i < count; i = next++) body(i);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
      next = count;
    }
  };
  std::vector<std::thread> others;
  for (std::size_t i = 1; i < n_threads; ++i) others.emplace_back(work);
  work();
  for (std::thread& other : others) other.join();
  if (failure) std::rethrow_exception(failure);
}
#else
void run_loop(std::size_t count, std::size_t n_threads,
              const std::function<void(std::size_t)>& body) {
  // A separate arena also keeps a thread that waits here from running unrelated tasks, which could
  // need a lock that its caller holds.
  tbb::task_arena arena(static_cast<int>(n_threads));
  arena.execute([&] { tbb::parallel_for(std::size_t{0}, count, body); });
}
#endif

// The error of the smallest index that has failed so far.
class FirstError {
 public:
  // May still return true for a moment after a smaller index has failed; that costs one call.
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
  run_loop(count, threads, body);
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

namespace {

// The items in progress are [taken_, next_), never more than slots: item i has slot i % slots.
//
// A thread waits only while an item is in progress. Another thread then makes or takes that item
// and notifies, so any number of threads finishes, even fewer than requested.
class OrderedRun {
 public:
  OrderedRun(const OrderedWork& work, std::size_t n_slots) : work_(work), made_(n_slots) {}

  // The loop of each thread.
  void make_and_take() {
    std::unique_lock lock(mutex_);
    try {
      while (const std::optional<std::size_t> i = start_item(lock)) {
        Result<void> result = unlocked(lock, [&] { return work_.make(*i, slot_of(*i)); });
        // All smaller items have been started, so the smallest failure is always found.
        ended_ = ended_ || !result.ok();
        made_[slot_of(*i)] = std::move(result);
        take_made(lock);
        moved_.notify_all();
      }
    } catch (...) {
      if (!lock.owns_lock()) lock.lock();
      ended_ = true;
      moved_.notify_all();
      throw;
    }
  }

  Result<void> result() && { return std::move(result_); }

 private:
  std::size_t slot_of(std::size_t i) const { return i % made_.size(); }

  std::uint64_t bytes(std::size_t i) const { return work_.bytes ? work_.bytes(i) : 0; }

  template <class Call>
  static Result<void> unlocked(std::unique_lock<std::mutex>& lock, Call call) {
    lock.unlock();
    Result<void> result = call();
    lock.lock();
    return result;
  }

  bool has_room() const {
    if (next_ == taken_) return true;
    return next_ - taken_ < made_.size() && held_ + bytes(next_) <= work_.window_bytes;
  }

  // The next item to make, once there is room for it; nullopt if no items are left.
  std::optional<std::size_t> start_item(std::unique_lock<std::mutex>& lock) {
    moved_.wait(lock, [&] { return ended_ || next_ == work_.count || has_room(); });
    if (ended_ || next_ == work_.count) return std::nullopt;
    held_ += bytes(next_);
    return next_++;
  }

  // Takes the items that are ready, unless another thread is doing so: that thread continues until
  // it reaches an item that is not made yet.
  void take_made(std::unique_lock<std::mutex>& lock) {
    if (taking_) return;
    taking_ = true;
    while (taken_ < next_ && made_[slot_of(taken_)] && result_.ok()) {
      Result<void> result = *std::exchange(made_[slot_of(taken_)], std::nullopt);
      if (result) {
        result = unlocked(lock, [&] { return work_.take(taken_, slot_of(taken_)); });
      }
      if (!result) {
        result_ = std::move(result);
        ended_ = true;
        break;
      }
      held_ -= bytes(taken_);
      ++taken_;
      moved_.notify_all();
    }
    taking_ = false;
  }

  const OrderedWork& work_;
  std::mutex mutex_;
  std::condition_variable moved_;
  std::size_t next_ = 0;                           // the next item to make
  std::size_t taken_ = 0;                          // items taken
  std::uint64_t held_ = 0;                         // bytes of items in progress
  std::vector<std::optional<Result<void>>> made_;  // by slot; nullopt: not made yet
  bool taking_ = false;
  bool ended_ = false;  // no further item may be started
  Result<void> result_;
};

}  // namespace

Result<void> run_in_order(const OrderedWork& work, unsigned n_threads) {
  OrderedRun run(work, slot_count(n_threads));
  parallel_for(std::min<std::size_t>(work.count, thread_count(n_threads)), n_threads,
               [&](std::size_t) { run.make_and_take(); });
  return std::move(run).result();
}

}  // namespace tqcache
