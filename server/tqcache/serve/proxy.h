#pragma once
// server/tqcache/serve/proxy.h: a proxy before llama-server that keeps its prompts in a store.
//
// Everything is passed on unchanged. Requests that generate text get two more fields, id_slot and
// cache_prompt. Before that, the longest stored prefix of their prompt is restored into a slot, if
// that saves work. What the slots hold is saved in the background.
//
// llama-server compares the tokens of a prompt with those of a slot itself. So a wrong belief of
// the proxy, or another rendering of a prompt, costs time and never gives a wrong answer. Whatever
// goes wrong, the request is passed on and the prompt is read as usual.
//
// Clients with different keys do not notice each other in the slots either: a slot is erased before
// it is given to another client, requests to which the proxy chooses no slot reuse no tokens, and
// /slots is refused.

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "tqcache/error.h"
#include "tqcache/serve/http_server.h"
#include "tqcache/serve/operations.h"
#include "tqcache/serve/prompt_keeper.h"
#include "tqcache/serve/prompt_ledger.h"
#include "tqcache/serve/prompt_page.h"
#include "tqcache/serve/slot_table.h"
#include "tqcache/serve/upstream.h"
#include "tqcache/serve/write_budget.h"
#include "tqcache/store.h"

namespace tqcache::serve {

struct ProxyOptions {
  UpstreamOptions upstream = {};
  // Sent to the upstream server in place of the client's key. Empty: the client's is passed on.
  std::string upstream_key = {};

  // The folder of llama-server's --slot-save-path, and the store. Null or empty: nothing is kept.
  std::filesystem::path slot_dir = {};
  store::Backend* backend = nullptr;
  KeeperOptions keeper = {};
  std::optional<WriteLimit> max_write = {};  // slot files on a disk, and new bytes of the store
  std::int64_t min_tokens = 256;             // shorter prompts are not kept: the store has none
  // A conversation that has rested this long is saved; before that, if a task for another one could
  // clear or take its slot.
  std::chrono::milliseconds idle_save{1000};
  // Clients with different keys are expected (and keeper.share_tenants does not allow them to
  // share). Otherwise that is found out when the second key comes.
  bool has_tenants = false;
  PromptLedger* ledger = nullptr;  // learns which prompts are kept; null: there is no page
  std::string store_name = {};     // for the page
  PageAccess page_access = {};
  bool shows_headers = false;  // answers say what was reused (reuse_headers())
  bool shows_prompts = false;  // the log may show words of prompts
  // How long a request waits for a slot.
  std::chrono::milliseconds slot_timeout{600'000};
  // How much of that it waits for the running request that it continues, while another slot is
  // free.
  std::chrono::milliseconds patience = SlotTable::kPatience;
};

// Threads: any number.
class Proxy {
 public:
  // `metrics` and `log` must outlive it. Errors: kInvalidArgument; kBusy (another proxy uses the
  // folder); kIo, kNotFound (the folder).
  static Result<std::unique_ptr<Proxy>> open(const ProxyOptions& options, Metrics& metrics,
                                             Log& log);
  virtual ~Proxy() = default;

  // Handles what no route of the server matches, and /health. Requires: this outlives the server.
  virtual void attach(HttpServer& server) = 0;

  // Asks the upstream server again who it is, with the next request.
  virtual void reload() = 0;

  // The program ends: call it before the server is stopped. What the proxy itself asks the upstream
  // server ends after this time at the latest, also if that never answers.
  virtual void end_calls_within(std::chrono::milliseconds grace) = 0;

  // Saves what the slots hold and the store does not, as far as that is possible in time. Then
  // nothing is saved any more. An upstream server that does not answer costs a second or two.
  // Requires: the server has been stopped.
  virtual void flush(std::chrono::milliseconds limit) = 0;
};

}  // namespace tqcache::serve
