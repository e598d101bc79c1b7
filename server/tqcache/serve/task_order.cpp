#include "tqcache/serve/task_order.h"

#include "tqcache/serve/bound_server.h"

namespace tqcache::serve {

TaskOrder::TaskOrder(SlotTable& table, BoundServer& bound, Client* client,
                     std::chrono::steady_clock::time_point deadline)
    : table_(table) {
  constexpr std::chrono::milliseconds kLookInterval{20};
  while ((number_ = table.take_order(kLookInterval)) == 0) {
    if (std::chrono::steady_clock::now() > deadline) return;
    if (client != nullptr && client->is_gone()) return;
    // Its holder waits for its answer; the server says earlier that it has begun.
    if (table.is_sending()) {
      [[maybe_unused]] const auto ignored = bound.observe();
    }
  }
}

}  // namespace tqcache::serve
