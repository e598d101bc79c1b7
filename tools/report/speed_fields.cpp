#include "report/speed_fields.h"

#include "tqcache/base/system.h"
#include "tqcache/file.h"

namespace tqcache::cli {
void add_speed_fields(const SpeedFields& fields, Json& json) {
  json["prompt_tokens"] = fields.prompt_tokens;
  json["cached_tokens"] = fields.cached_tokens;
  json["generation_tokens"] = fields.generation_tokens;
  json["timed_generation_tokens"] = fields.timed_tokens;
  json["prompt_tps"] = rate(fields.prompt_tokens, fields.prompt_seconds);
  json["generation_tps"] = rate(fields.timed_tokens, fields.generation_seconds);
  json["generation_wall_time_s"] = fields.generation_seconds;
  json["peak_memory_bytes"] = peak_memory();
  json["cache_bytes"] = {{"allocated", fields.cache_bytes.allocated},
                         {"used", fields.cache_bytes.used}};
  json["native_working_set_bytes"] = fields.working_set_bytes;
  json["scorer_route"] = fields.route.step;
  json["prompt_route"] = fields.route.prompt;
  json["scorer_fallback"] =
      fields.route.fallback.empty() ? Json(nullptr) : Json(fields.route.fallback);
}

Json rate(std::int64_t n_tokens, double seconds) {
  if (n_tokens == 0 || seconds <= 0) return nullptr;
  return static_cast<double>(n_tokens) / seconds;
}

}  // namespace tqcache::cli
