#pragma once
// server/tqcache/serve/embedded/request_queue.h: a bounded queue in front of something that serves
// one at a time.
//
//   RequestQueue queue(16);
//   std::optional<RequestQueue::Turn> turn = queue.join();
//   if (!turn) return busy();
//   if (!turn->wait([&] { return !client.is_gone(); })) return;
//   ... // alone, until `turn` is destroyed

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <utility>

namespace tqcache::serve {

// Threads: any number.
class RequestQueue {
 public:
  // `max_waiting`: requests besides the one that is served.
  explicit RequestQueue(std::size_t max_waiting) : max_waiting_(max_waiting) {}

  // A place in the queue, in the order of join(). Its destructor leaves the queue.
  class Turn {
   public:
    Turn(Turn&& other) noexcept
        : queue_(std::exchange(other.queue_, nullptr)), number_(other.number_) {}
    Turn& operator=(Turn&&) = delete;
    ~Turn() {
      if (queue_ != nullptr) queue_->leave(number_);
    }

    // Waits until this is the first place. Asks `goes_on` several times a second, and returns false
    // when it says no.
    bool wait(const std::function<bool()>& goes_on);

   private:
    friend class RequestQueue;
    Turn(RequestQueue& queue, std::uint64_t number) : queue_(&queue), number_(number) {}
    RequestQueue* queue_;
    std::uint64_t number_;
  };

  // Takes the last place; nullopt if the queue is full.
  std::optional<Turn> join();

  struct Counts {
    std::size_t running = 0;  // 0 or 1
    std::size_t waiting = 0;
  };
  Counts counts() const;
  std::size_t max_waiting() const { return max_waiting_; }

 private:
  void leave(std::uint64_t number);

  const std::size_t max_waiting_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::uint64_t> places_;  // the first one is served
  std::uint64_t next_ = 0;
};

}  // namespace tqcache::serve
