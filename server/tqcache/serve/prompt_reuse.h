#pragma once
// server/tqcache/serve/prompt_reuse.h: what of one prompt did not have to be computed, and why no
// more of it, for the log, the metrics, the headers of the answer, and the page.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tqcache/serve/http_message.h"
#include "tqcache/serve/operations.h"

namespace tqcache::serve {

// Where the first tokens of a prompt came from: the slot that held them, the RAM of the server
// (llama-server's --cache-ram, or the cache of the last conversation), or the store.
enum class ReuseSource { kNothing, kSlot, kRam, kStore };
std::string_view name_of(ReuseSource source);  // "nothing", "slot", "ram", "store"

struct PromptReuse {
  std::int64_t n_tokens = 0;  // of the prompt; 0: unknown
  std::int64_t n_reused = 0;  // of these
  ReuseSource from = ReuseSource::kNothing;
  // The first token that is another one than in the nearest known prompt, and the number of tokens
  // of that one. Absent: the prompt continues a known one, or none is known.
  std::optional<std::int64_t> parts_at = {};
  std::int64_t parts_of = 0;
  // Words around that place, in this prompt and in the other one; empty unless the server may show
  // words of prompts.
  std::string here = {}, there = {};
  std::int64_t time = 0;  // seconds since 1970
};

// Of a line `event=prompt tokens=12000 reused=37 from=slot parts_at=37 parts_of=11950`.
Log::Fields reuse_fields(const PromptReuse& reuse);

// X-Tqcache-Tokens, X-Tqcache-Reused, X-Tqcache-From, X-Tqcache-Parts-At and X-Tqcache-Parts-Of,
// without those that are not known. No words of prompts.
std::vector<Header> reuse_headers(const PromptReuse& reuse);

// tqcache_reused_tokens_total{from} and tqcache_parted_prompts_total{quarter}.
void define_reuse_metrics(Metrics& metrics);
void count_reuse(Metrics& metrics, const PromptReuse& reuse);

}  // namespace tqcache::serve
