#pragma once
// server/tqcache/serve/task_order.h: the right to send the next task to llama-server (SlotTable).
//
//   TaskOrder order(table, bound, &client, deadline);
//   if (!order) return not_in_time(client);
//   order.sending(slot);
//   ... send the task, and wait for the head of its answer ...
//
// It ends with the object, or when the server has begun the task.

#include <chrono>
#include <cstdint>
#include <optional>
#include <utility>

#include "tqcache/serve/http_message.h"
#include "tqcache/serve/slot_table.h"

namespace tqcache::serve {

class BoundServer;

class TaskOrder {
 public:
  // Waits for it. `client` may be null. False: not in time, or the client is gone.
  TaskOrder(SlotTable& table, BoundServer& bound, Client* client,
            std::chrono::steady_clock::time_point deadline);
  ~TaskOrder() { end(); }
  TaskOrder(TaskOrder&& other) noexcept
      : table_(other.table_), number_(std::exchange(other.number_, 0)) {}
  TaskOrder(const TaskOrder&) = delete;
  TaskOrder& operator=(const TaskOrder&) = delete;
  TaskOrder& operator=(TaskOrder&&) = delete;

  explicit operator bool() const { return number_ != 0; }
  // SlotTable::sending() and SlotTable::begun_in().
  void sending(std::optional<std::size_t> slot) { table_.sending(number_, slot); }
  std::optional<std::size_t> begun_in() const { return table_.begun_in(number_); }
  void end() { table_.end_order(std::exchange(number_, 0)); }

 private:
  SlotTable& table_;
  std::uint64_t number_ = 0;
};

}  // namespace tqcache::serve
