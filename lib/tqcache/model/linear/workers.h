#pragma once
// model/linear/workers.h: threads that stay alive between the many short loops of a decode step.
//
// parallel_for in base makes an arena for every loop, which costs more than a whole product with a
// small matrix.

#include <cstddef>
#include <functional>
#include <memory>

namespace tqcache::model {

class Workers {
 public:
  // n_threads 0: all processors that this process may run on; more are never used.
  explicit Workers(unsigned n_threads);
  Workers(Workers&&) noexcept;
  Workers& operator=(Workers&&) noexcept;
  ~Workers();

  std::size_t count() const { return count_; }

  // Calls body(i) for every i in [0, n).
  //
  // Requires: body(i) may run at the same time as body(j).
  // Threads:  returns when all calls have returned; with one worker they run in order in this
  //           thread.
  void run(std::size_t n, const std::function<void(std::size_t)>& body) const;

  // The same for work that needs memory of its own: body(i, slot), where two calls with the same
  // slot, in [0, count()), never run at once.
  void run_in_slots(std::size_t n,
                    const std::function<void(std::size_t i, std::size_t slot)>& body) const;

 private:
  struct Arena;
  std::size_t count_;
  std::unique_ptr<Arena> arena_;  // nullptr with one worker
};

}  // namespace tqcache::model
