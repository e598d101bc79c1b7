#pragma once
// server/tqcache/serve/slot_lease.h: a slot of llama-server that a request uses: what it brings of
// the prompt before, and what the answer says at its end.

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tqcache/serve/bound_server.h"
#include "tqcache/serve/prompt_lookup.h"
#include "tqcache/serve/prompt_reuse.h"
#include "tqcache/serve/proxy_state.h"
#include "tqcache/serve/slot_table.h"
#include "tqcache/serve/task_order.h"

namespace tqcache::serve {

// The last owner gives the slot back, with what is known about it then.
//
// Threads: one at a time.
class SlotLease {
 public:
  // `state` and `bound` must outlive it. Requires: the slot of `taken` was taken.
  SlotLease(ProxyState& state, BoundServer& bound, SlotTable::Choice taken)
      : choice(std::move(taken)), now(choice.before), state_(state), bound_(bound) {}
  ~SlotLease();
  SlotLease(const SlotLease&) = delete;
  SlotLease& operator=(const SlotLease&) = delete;

  // Saves what the slot, and others, would lose, and brings the beginning of the prompt into the
  // slot: `choice` then says what came of it. Returns whether the request may reuse what the slot
  // holds. `order` is held at the end, unless another one keeps it for too long.
  bool prepare(std::optional<PromptLookup>& lookup, const std::string& tenant,
               const LlamaServer& server, Client& client,
               std::chrono::steady_clock::time_point deadline, std::optional<TaskOrder>& order);

  // With windows or recurrent state a prompt can only go on from a state that was stored. Computes
  // the blocks that the prompt has in common with a stored one before the rest, and saves that
  // state: the next prompt that begins alike, as with the same system prompt, goes on from there.
  // Requires: prepare() has said that the request may reuse what the slot holds; llama-server takes
  // the slot that it is told. `order` as in prepare().
  void compute_common(const PromptLookup& lookup, const Asked& asked, const std::string& tenant,
                      const LlamaServer& server, Client& client,
                      std::chrono::steady_clock::time_point deadline,
                      std::optional<TaskOrder>& order);

  // The request goes to the server: from now on the slot holds something else.
  void note_sent();

  // `response` with a stream that keeps the lease, and remembers what the answer says about tokens.
  // `is_first`: the first event of the stream says it, too.
  static Response watched(Response response, std::shared_ptr<SlotLease> lease, bool is_first);

  SlotTable::Choice choice;
  KnownSlot now;
  PromptReuse reuse;  // as far as it is known before the answer

 private:
  class WatchingSink;

  Result<std::int64_t> restore(PromptLookup& lookup, const LlamaServer& server, Client& client,
                               std::chrono::steady_clock::time_point deadline,
                               std::optional<TaskOrder>& order);
  void read_another(std::span<const std::int32_t> prompt);
  void read_answer();
  void report(std::int64_t n_reused);

  ProxyState& state_;
  BoundServer& bound_;
  std::vector<std::int32_t> restored_;  // these tokens
  std::string head_, tail_;             // of the answer
  std::int64_t n_ahead_ = 0;            // tokens that compute_common() has computed
  bool was_touched_ = false;            // the slot holds something else than before
  bool was_sent_ = false;
};

// Erases the slots of other clients, if clients are kept apart: of a request that llama-server
// places itself, it would tell how much of it others have sent. Returns false if one of them is in
// use, or cannot be erased. Requires: the order of tasks is held.
bool erase_others(ProxyState& state, const std::string& tenant);

}  // namespace tqcache::serve
