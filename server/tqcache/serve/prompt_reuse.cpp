#include "tqcache/serve/prompt_reuse.h"

#include <algorithm>

namespace tqcache::serve {

std::string_view name_of(ReuseSource source) {
  switch (source) {
    case ReuseSource::kSlot:
      return "slot";
    case ReuseSource::kRam:
      return "ram";
    case ReuseSource::kStore:
      return "store";
    case ReuseSource::kNothing:
      break;
  }
  return "nothing";
}

Log::Fields reuse_fields(const PromptReuse& reuse) {
  Log::Fields fields = {{"tokens", std::to_string(reuse.n_tokens)},
                        {"reused", std::to_string(reuse.n_reused)},
                        {"from", std::string(name_of(reuse.from))}};
  if (!reuse.parts_at) return fields;
  fields.emplace_back("parts_at", std::to_string(*reuse.parts_at));
  fields.emplace_back("parts_of", std::to_string(reuse.parts_of));
  if (reuse.here.empty() && reuse.there.empty()) return fields;
  fields.emplace_back("here", reuse.here);
  fields.emplace_back("there", reuse.there);
  return fields;
}

std::vector<Header> reuse_headers(const PromptReuse& reuse) {
  std::vector<Header> headers;
  if (reuse.n_tokens > 0) headers.push_back({"X-Tqcache-Tokens", std::to_string(reuse.n_tokens)});
  headers.push_back({"X-Tqcache-Reused", std::to_string(reuse.n_reused)});
  headers.push_back({"X-Tqcache-From", std::string(name_of(reuse.from))});
  if (!reuse.parts_at) return headers;
  headers.push_back({"X-Tqcache-Parts-At", std::to_string(*reuse.parts_at)});
  headers.push_back({"X-Tqcache-Parts-Of", std::to_string(reuse.parts_of)});
  return headers;
}

void define_reuse_metrics(Metrics& metrics) {
  using Type = Metrics::Type;
  metrics.define("tqcache_reused_tokens_total", Type::kCounter,
                 "Tokens of prompts that were not computed, by where they came from.", false);
  metrics.define("tqcache_parted_prompts_total", Type::kCounter,
                 "Prompts that begin like a known one and go on otherwise, by the quarter of the "
                 "known one in which they part from it.",
                 false);
}

void count_reuse(Metrics& metrics, const PromptReuse& reuse) {
  if (reuse.n_reused > 0) {
    metrics.add("tqcache_reused_tokens_total", static_cast<double>(reuse.n_reused),
                {{"from", std::string(name_of(reuse.from))}});
  }
  if (!reuse.parts_at || *reuse.parts_at < 1 || reuse.parts_of < 1) return;
  const std::int64_t quarter = std::min<std::int64_t>(*reuse.parts_at * 4 / reuse.parts_of + 1, 4);
  metrics.add("tqcache_parted_prompts_total", 1, {{"quarter", std::to_string(quarter)}});
}

}  // namespace tqcache::serve
