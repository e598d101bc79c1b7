#pragma once
// server/tqcache/serve/background_saves.h: the threads of a proxy that save what the slots hold
// while nobody waits for it, and at the end of the program.

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "tqcache/error.h"
#include "tqcache/serve/bound_server.h"
#include "tqcache/serve/proxy_state.h"
#include "tqcache/serve/write_budget.h"

namespace tqcache::serve {

// Threads: any number.
class BackgroundSaves {
 public:
  // Both must outlive it.
  BackgroundSaves(ProxyState& state, BoundServer& bound) : state_(state), bound_(bound) {}
  // Ends what waits for the server. Without flush() before, what is not saved is lost.
  ~BackgroundSaves();
  BackgroundSaves(const BackgroundSaves&) = delete;
  BackgroundSaves& operator=(const BackgroundSaves&) = delete;

  // Makes the saver of `state`, and begins. Requires: `state` has a keeper and a folder.
  void begin();

  // Something has ended. `must_look`: the slots may hold something else.
  void wake(bool must_look);

  // Proxy::flush(). Afterwards nothing is saved any more.
  void flush(std::chrono::milliseconds limit);

 private:
  std::string budget_path() const;
  bool may_write(std::uint64_t bytes);
  void save_budget();
  void save_scores();
  void look();
  std::chrono::milliseconds look_interval() const;
  void save_resting();
  void save_rest(std::chrono::steady_clock::time_point deadline, bool is_unsaved);
  void put();
  void stop_threads();

  ProxyState& state_;
  BoundServer& bound_;
  std::optional<WriteBudget> budget_;

  std::mutex mutex_;  // of all below
  std::condition_variable wake_;
  bool must_look_ = false, must_stop_ = false;
  std::thread looker_, putter_;
};

}  // namespace tqcache::serve
