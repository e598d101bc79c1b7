#include "tqcache/serve/embedded/request_queue.h"

#include <algorithm>
#include <chrono>

namespace tqcache::serve {

std::optional<RequestQueue::Turn> RequestQueue::join() {
  const std::lock_guard lock(mutex_);
  if (places_.size() > max_waiting_) return std::nullopt;
  places_.push_back(next_);
  return Turn(*this, next_++);
}

RequestQueue::Counts RequestQueue::counts() const {
  const std::lock_guard lock(mutex_);
  if (places_.empty()) return {};
  return {.running = 1, .waiting = places_.size() - 1};
}

void RequestQueue::leave(std::uint64_t number) {
  const std::lock_guard lock(mutex_);
  places_.erase(std::find(places_.begin(), places_.end(), number));
  changed_.notify_all();
}

bool RequestQueue::Turn::wait(const std::function<bool()>& goes_on) {
  constexpr std::chrono::milliseconds kLook{50};
  std::unique_lock lock(queue_->mutex_);
  for (;;) {
    if (queue_->places_.front() == number_) return true;
    queue_->changed_.wait_for(lock, kLook);
    lock.unlock();
    const bool is_wanted = goes_on();
    lock.lock();
    if (!is_wanted) return false;
  }
}

}  // namespace tqcache::serve
