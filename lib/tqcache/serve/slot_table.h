#pragma once
// lib/tqcache/serve/slot_table.h: what a proxy knows about the slots of llama-server.

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tqcache/error.h"
#include "tqcache/serve/http_message.h"
#include "tqcache/serve/llama_server.h"

namespace tqcache::serve {

// A slot as the proxy believes it to be. A wrong belief costs time only: llama-server compares the
// tokens of a prompt with those of the slot itself.
struct KnownSlot {
  std::string prompt;                 // the last one that was sent to it; empty: unknown, or none
  std::optional<std::string> tenant;  // whose tokens it holds; absent: unknown
  std::int64_t n_tokens = 0;          // that it held when that was last asked
  std::int64_t n_stored = 0;          // of these, known to be in the store
  std::int64_t n_prompt = 0;          // of the last prompt; the answer follows. 0: unknown
  std::optional<std::int64_t> task;
  std::string running;       // the prompt of the request that uses it
  std::uint64_t change = 0;  // SlotTable::change() when it was acquired or released last
  bool is_used = false;      // by a request, or while it is saved
  bool has_changed = false;  // by a request since `task` was last read
  bool has_content = false;
  std::chrono::steady_clock::time_point last_use;
};

// Chooses a slot for each request, and lets one request or one save at a time use it.
//
// Threads: any number.
class SlotTable {
 public:
  // How long a prompt waits for the running request that it continues.
  static constexpr std::chrono::milliseconds kPatience{2000};

  explicit SlotTable(std::chrono::milliseconds patience = kPatience) : patience_(patience) {}

  // Forgets everything, for instance because the upstream server was restarted. Slots in use stay
  // so until they are released.
  void reset(std::size_t n_slots);
  std::size_t size() const;

  // Grows whenever a slot is acquired or released.
  std::uint64_t change() const;

  // Takes note of what the server says about its slots. A slot that did something that this proxy
  // did not ask for, or that lost its history in a restart, has unknown content from then on.
  // Returns whether the server has been restarted.
  //
  // `change` is that of the moment before the server was asked: what it says about slots that were
  // used since then is out of date.
  bool observe(const std::vector<SlotState>& states, std::uint64_t change);

  struct Choice {
    std::size_t slot = 0;
    KnownSlot before;          // its state at that moment
    std::size_t n_common = 0;  // bytes that its prompt and the new one have in common
    bool is_warm = false;      // the new prompt continues the one of the slot
  };
  // Takes the slot that fits best; waits while all are in use. nullopt: the client is gone, or no
  // slot became free in time.
  //
  // A prompt that continues the one of a running request waits for it for a moment: the next turn
  // of a conversation often arrives before the end of the last one was seen here.
  //
  // A slot whose prompt the new one continues comes first. Otherwise a slot is taken of whose
  // prompt the new one shares at least half, then an empty one, then the one that was used least
  // recently.
  std::optional<Choice> acquire(std::string_view prompt, std::string_view tenant, Client* client,
                                std::chrono::milliseconds limit);
  // Takes this slot if nobody uses it and its state is the wanted one. A slot that is not wanted is
  // not in use for a moment: a request that comes then would take another one.
  std::optional<KnownSlot> try_acquire(std::size_t slot,
                                       const std::function<bool(const KnownSlot&)>& is_wanted);

  // Gives a slot back, with what is known about it now. Requires: acquired.
  void release(std::size_t slot, KnownSlot now);

  std::vector<KnownSlot> snapshot() const;
  std::size_t n_waiting() const;

 private:
  std::optional<Choice> choose(std::string_view prompt, std::string_view tenant) const;
  bool continues_running(std::string_view prompt, std::string_view tenant) const;

  const std::chrono::milliseconds patience_;
  mutable std::mutex mutex_;
  std::condition_variable released_;
  std::vector<KnownSlot> slots_;
  std::size_t n_waiting_ = 0;
  std::uint64_t change_ = 0;
};

}  // namespace tqcache::serve
