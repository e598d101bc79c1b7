#pragma once
// server/tqcache/serve/proxy_state.h: what the parts of a proxy share.
//
//   proxy.h             routes, and the way of a request
//   bound_server.h      which server is behind the proxy
//   task_order.h        one task after the other
//   prompt_lookup.h     what is known of a prompt before it is computed
//   slot_lease.h        the slot of a request
//   background_saves.h  what the slots hold goes into the store

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tqcache/serve/llama_server.h"
#include "tqcache/serve/operations.h"
#include "tqcache/serve/prompt_history.h"
#include "tqcache/serve/prompt_keeper.h"
#include "tqcache/serve/proxy.h"
#include "tqcache/serve/slot_folder.h"
#include "tqcache/serve/slot_saver.h"
#include "tqcache/serve/slot_table.h"
#include "tqcache/serve/upstream.h"

namespace tqcache::serve {

// Threads: any number, once the proxy has begun.
struct ProxyState {
  ProxyState(const ProxyOptions& options_in, std::unique_ptr<Upstream> upstream_in,
             Metrics& metrics_in, Log& log_in)
      : options(options_in),
        upstream(std::move(upstream_in)),
        server(*upstream, own_headers()),
        metrics(metrics_in),
        log(log_in),
        warnings(metrics, log),
        table(options.patience),
        are_apart(options.has_tenants && !options.keeper.share_tenants) {}

  // Of the proxy's own requests.
  std::vector<Header> own_headers() const {
    if (options.upstream_key.empty()) return {};
    return {{"Authorization", "Bearer " + options.upstream_key}};
  }

  const ProxyOptions options;
  const std::unique_ptr<Upstream> upstream;
  const LlamaServer server;
  Metrics& metrics;
  Log& log;
  Warnings warnings;
  SlotTable table;
  PromptHistory history;
  // Null: nothing is kept.
  std::unique_ptr<PromptKeeper> keeper;
  std::unique_ptr<SlotFolder> folder;
  std::unique_ptr<SlotSaver> saver;

  std::atomic<bool> are_apart;                // clients have different keys
  std::atomic<double> seconds_per_token = 0;  // of a prompt that the server computes
  // Called at the end of a request that used a slot; `was_sent`: it reached the server.
  std::function<void(bool was_sent)> on_request_end = [](bool) {};

  std::mutex usage_mutex;
  // Of prompts that were looked up: tokens, and those that were found.
  std::vector<std::pair<std::int64_t, std::int64_t>> usage;
};

}  // namespace tqcache::serve
