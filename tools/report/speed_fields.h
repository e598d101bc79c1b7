#pragma once
// tools/report/speed_fields.h: the JSON fields for speed and memory that generate and bench share.

#include <cstdint>

#include "cli/console.h"
#include "tqcache/cache.h"
#include "tqcache/decoder.h"
#include "tqcache/model.h"

namespace tqcache::cli {

struct SpeedFields {
  std::int64_t prompt_tokens = 0;
  std::int64_t cached_tokens = 0;      // in the cache before the prompt
  std::int64_t generation_tokens = 0;  // generated
  std::int64_t timed_tokens = 0;       // of these, the number with a decode step
  double prompt_seconds = 0;
  double generation_seconds = 0;
  cache::ByteCount cache_bytes;
  std::uint64_t working_set_bytes = 0;
  model::KernelPath route;
};

// Adds the fields under the names used in docs and scripts, with this process's peak memory.
void add_speed_fields(const SpeedFields& fields, Json& json);

// Null if the divisor is zero.
Json rate(std::int64_t n_tokens, double seconds);

}  // namespace tqcache::cli
