#pragma once
// model/linear/workers.h: threads that stay alive between the many short loops of a decode step.
//
// base's parallel_for makes an arena for every loop, which costs more than a whole product of a
// small matrix.

#include <cstddef>
#include <functional>
#include <memory>

namespace tqcache::model {

class Workers {
 public:
  // n_threads 0: all processors this process may run on, which are also the most that are used.
  explicit Workers(unsigned n_threads);
  Workers(Workers&&) noexcept;
  Workers& operator=(Workers&&) noexcept;
  ~Workers();

  std::size_t count() const { return count_; }

  // Calls body(i) for every i in [0, n).
  //
  // Requires: body(i) may run at the same time as body(j).
  // Threads:  returns when all calls have returned; with one worker they run in order, here.
  void run(std::size_t n, const std::function<void(std::size_t)>& body) const;

  // The same for work that needs memory of its own: body(i, slot), where no two calls with the
  // same slot, of [0, count()), run at once.
  void run_in_slots(std::size_t n,
                    const std::function<void(std::size_t i, std::size_t slot)>& body) const;

 private:
  struct Arena;
  std::size_t count_;
  std::unique_ptr<Arena> arena_;  // null with one worker
};

}  // namespace tqcache::model
