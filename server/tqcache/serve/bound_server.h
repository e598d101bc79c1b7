#pragma once
// server/tqcache/serve/bound_server.h: which server is behind a proxy: its model, what its slot
// files look like, and whether it was restarted.

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>

#include "tqcache/error.h"
#include "tqcache/serve/proxy_state.h"

namespace tqcache::serve {

// Threads: any number.
class BoundServer {
 public:
  // `state` must outlive it.
  explicit BoundServer(ProxyState& state) : state_(state) {}

  // Whether prompts can be kept now. Asks the upstream server who it is, at first and after it was
  // restarted. A request waits while that is found out.
  bool is_ready();
  // Whether that has to be asked: nothing is known of the server, or it may be another one.
  bool must_bind() const { return must_bind_; }
  // It may be another one.
  void ask_again() { must_bind_ = true; }
  // It does not answer: when it does again, what it has done before is not known.
  void note_lost();

  // Looks at the slots. Returns whether the server was restarted. Errors: LlamaServer::slots().
  Result<bool> observe();
  // Whether it sleeps (--sleep-idle-seconds), or does not answer. Asking does not wake it.
  bool is_asleep() const;

  // A request had adapters, or changed them: what llama-server has in RAM may be of those.
  void note_adapters();
  bool has_adapters() const { return has_adapters_; }
  // SlotTable::note_nothing_older().
  void note_nothing_older();
  // Tells the table what decides about slots now.
  void set_rules();

 private:
  Result<void> bind();
  Result<PromptKeeper::BoundModel> probe(PromptKeeper::Bound model, const ServerProps& props);
  Result<PromptKeeper::BoundModel> write_probe(PromptKeeper::Bound model, const ServerProps& props,
                                               std::size_t which, const KnownSlot& now);
  Result<void> try_restore(const PromptKeeper::Bound& model, std::int64_t slot,
                           const std::shared_ptr<const ByteSource>& saved);

  ProxyState& state_;
  std::atomic<bool> must_bind_ = true;
  std::atomic<bool> is_older_ = false;         // SlotTable::Rules
  std::atomic<bool> has_seen_server_ = false;  // since it was started, as far as is known
  std::atomic<bool> has_adapters_ = false;     // a request since then had some

  std::mutex mutex_;  // of all below
  std::chrono::steady_clock::time_point next_bind_;
  ServerProps props_;  // of the server that is bound
};

}  // namespace tqcache::serve
