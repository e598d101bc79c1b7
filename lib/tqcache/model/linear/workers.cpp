#include "tqcache/model/linear/workers.h"

#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <atomic>

#include "tqcache/base/thread_sanitizer.h"
#include "tqcache/base/threads.h"

namespace tqcache::model {
struct Workers::Arena {
  explicit Arena(std::size_t count) : arena(static_cast<int>(count)) {}
  tbb::task_arena arena;
};

// TBB has no more threads than processors, and prints a warning if more are requested.
Workers::Workers(unsigned n_threads) : count_(std::min(thread_count(n_threads), thread_count(0))) {
  if (count_ > 1) arena_ = std::make_unique<Arena>(count_);
}

Workers::Workers(Workers&&) noexcept = default;
Workers& Workers::operator=(Workers&&) noexcept = default;
Workers::~Workers() = default;

void Workers::run(std::size_t n, const std::function<void(std::size_t)>& body) const {
  run_in_slots(n, [&](std::size_t i, std::size_t) { body(i); });
}

void Workers::run_in_slots(std::size_t n,
                           const std::function<void(std::size_t, std::size_t)>& body) const {
  const std::size_t n_slots = std::min(count_, n);
  if (n_slots <= 1) {
    for (std::size_t i = 0; i < n; ++i) body(i, 0);
    return;
  }
  // Each slot takes the next chunk of work, so that a thread that waits for its processor does not
  // delay the others.
  std::atomic<std::size_t> next = 0;
  const auto work = [&](std::size_t slot) {
    for (std::size_t i = next++; i < n; i = next++) body(i, slot);
  };
#if TQC_THREAD_SANITIZER
  parallel_for(n_slots, static_cast<unsigned>(count_), work);  // see base/threads.cpp
#else
  arena_->arena.execute([&] { tbb::parallel_for(std::size_t{0}, n_slots, work); });
#endif
}

}  // namespace tqcache::model
