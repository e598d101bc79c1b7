#include "tqcache/serve/prompt_lookup.h"

#include <chrono>
#include <ctime>

#include "tqcache/cache.h"

namespace tqcache::serve {
namespace {

// How long a prompt waits until what it may begin with is in the store.
constexpr std::chrono::milliseconds kPutPatience{10'000};

}  // namespace

void look_up(ProxyState& state, PromptLookup& lookup, const Asked& asked, const std::string& tenant,
             const LlamaServer& server, Client& client) {
  lookup.n_tokens = std::ssize(asked.prompt) / 4 + 1;
  const auto find = [&]() -> Result<void> {
    std::vector<std::int32_t> tokens = asked.tokens;
    // A text with fewer bytes has fewer tokens.
    if (tokens.empty()) {
      if (std::ssize(asked.prompt) < state.options.min_tokens) return {};
      TQC_TRY_ASSIGN(tokens, server.tokenize(asked.prompt, &client));
    }
    lookup.n_tokens = std::ssize(tokens);
    state.metrics.add("tqcache_prompt_tokens_total", static_cast<double>(lookup.n_tokens));
    if (lookup.n_tokens < state.options.min_tokens) return {};
    lookup.tokens = std::move(tokens);
    lookup.common_bytes = state.table.longest_common(asked.prompt, tenant);
    if (lookup.common_bytes > 0) {
      const auto size = static_cast<std::size_t>(lookup.common_bytes);
      TQC_TRY_ASSIGN(const auto begin, server.tokens_of(asked.prompt.substr(0, size),
                                                        !asked.tokens.empty(), &client));
      lookup.common_tokens = std::ssize(begin);
    }
    state.saver->wait_for(asked.prompt, tenant, client, kPutPatience);
    TQC_TRY_ASSIGN(lookup.found, state.keeper->find(lookup.tokens, tenant));
    state.metrics.add("tqcache_store_lookups_total");
    if (lookup.found.n_tokens() > 0) state.metrics.add("tqcache_store_hits_total");
    const std::lock_guard lock(state.usage_mutex);
    if (state.usage.size() < 1000)
      state.usage.emplace_back(lookup.n_tokens, lookup.found.n_tokens());
    return {};
  };
  if (const Result<void> found = find(); found) {
    state.warnings.clear("lookup");
  } else if (found.error().code != ErrorCode::kInterrupted) {
    state.warnings.add("lookup", found.error().message);
  }
}

PromptReuse expected_reuse(const ProxyState& state, const Asked& asked, const std::string& tenant,
                           const SlotTable::Choice& choice, const PromptLookup* lookup,
                           const LlamaServer& server) {
  PromptReuse reuse;
  reuse.time = std::time(nullptr);
  reuse.n_reused = choice.n_tokens;
  reuse.from = choice.from;
  if (lookup == nullptr) return reuse;
  reuse.n_tokens = lookup->n_tokens;
  const std::optional<Parting>& parting = lookup->parting;
  if (!parting && state.options.ledger != nullptr) {
    // After a restart the texts are gone, and blocks of tokens can be compared.
    const auto kept =
        state.options.ledger->nearest({tenant, state.keeper->model_name()}, lookup->tokens);
    if (kept && kept->n_common + cache::kTokenBlock < kept->n_tokens) {
      reuse.parts_at = kept->n_common;
      reuse.parts_of = kept->n_tokens;
    }
  }
  if (!parting || parting->at >= parting->of || parting->at >= asked.prompt.size()) return reuse;
  const auto begin =
      server.tokens_of(asked.prompt.substr(0, parting->at), !asked.tokens.empty(), nullptr);
  reuse.parts_at = begin ? std::ssize(*begin) : 0;
  const double per_byte =
      static_cast<double>(reuse.n_tokens) / static_cast<double>(asked.prompt.size());
  reuse.parts_of = static_cast<std::int64_t>(per_byte * static_cast<double>(parting->of));
  if (state.options.shows_prompts) {
    reuse.here = parting->here;
    reuse.there = parting->there;
  }
  return reuse;
}

}  // namespace tqcache::serve
