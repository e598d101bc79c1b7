// Pieces made in parallel and taken in order, over a window that moves along the row.

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "tqcache/base/threads.h"

namespace tqcache {
namespace {

// Pieces on their way are those in [taken_, next_), never more than slots: i % slots is one's own.
//
// A thread waits only while a piece is on its way, and then another thread makes or takes it and
// will tell: so any number of threads gets to the end, even if they are less than were asked for.
class OrderedRun {
 public:
  OrderedRun(const OrderedWork& work, std::size_t n_slots) : work_(work), made_(n_slots) {}

  // What each thread does.
  void make_and_take() {
    std::unique_lock lock(mutex_);
    try {
      while (const std::optional<std::size_t> i = begin_piece(lock)) {
        Result<void> result = unlocked(lock, [&] { return work_.make(*i, slot_of(*i)); });
        // Every smaller one has begun already, so that the smallest failure is always found.
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

  // The next piece to make, once there is room for it; nullopt when there is none.
  std::optional<std::size_t> begin_piece(std::unique_lock<std::mutex>& lock) {
    moved_.wait(lock, [&] { return ended_ || next_ == work_.count || has_room(); });
    if (ended_ || next_ == work_.count) return std::nullopt;
    held_ += bytes(next_);
    return next_++;
  }

  // Takes what has become ready, unless another thread is at it: that one goes on until it finds a
  // piece that is not made yet.
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
  std::size_t next_ = 0;                           // the next piece to make
  std::size_t taken_ = 0;                          // pieces taken
  std::uint64_t held_ = 0;                         // bytes of pieces on their way
  std::vector<std::optional<Result<void>>> made_;  // by slot; nullopt: not made yet
  bool taking_ = false;
  bool ended_ = false;  // no further piece is to be begun
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
