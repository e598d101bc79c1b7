#pragma once
// server/tqcache/serve/prompt_lookup.h: what a proxy finds out about a prompt before it chooses a
// slot for it: its tokens, what the store has of it, and where it parts from the nearest known one.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tqcache/serve/llama_server.h"
#include "tqcache/serve/prompt_history.h"
#include "tqcache/serve/prompt_keeper.h"
#include "tqcache/serve/prompt_reuse.h"
#include "tqcache/serve/proxy_state.h"
#include "tqcache/serve/slot_table.h"

namespace tqcache::serve {

struct PromptLookup {
  std::vector<std::int32_t> tokens = {};             // empty: too short to be kept
  std::int64_t n_tokens = 0;                         // of the prompt, or a guess
  std::int64_t common_bytes = 0, common_tokens = 0;  // SlotTable::Wanted
  std::optional<Parting> parting = {};               // from the nearest known prompt
  PromptKeeper::Found found = {};
};

// Asks the server for the tokens, and the store for their longest prefix, when what waits for the
// store and may be it is there. What fails is logged, and nothing is found. `server` has the key of
// the client.
void look_up(ProxyState& state, PromptLookup& lookup, const Asked& asked, const std::string& tenant,
             const LlamaServer& server, Client& client);

// What can be said of a prompt before it is computed where `choice` says. `lookup` may be null.
PromptReuse expected_reuse(const ProxyState& state, const Asked& asked, const std::string& tenant,
                           const SlotTable::Choice& choice, const PromptLookup* lookup,
                           const LlamaServer& server);

}  // namespace tqcache::serve
