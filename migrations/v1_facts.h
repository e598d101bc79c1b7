#pragma once
// migrations/v1_facts.h: what a file of version 1 says of the whole cache. Safe for untrusted
// input.
//
// All of it is optional, and most files of the time had none: such a cache is of unknown origin.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tqcache/base/result.h"
#include "tqcache/cache/cache.h"

namespace tqcache::migrations {

struct V1Facts {
  cache::Identity identity;  // with an architecture and both fingerprints, or none of the three
  bool is_origin_partial = false;  // some of the three were there, and left out
  std::optional<std::vector<std::int32_t>> tokens;
};

// Facts of other keys are left out. Errors: kCorrupt, kUnsupported, kTooLarge, naming the fact.
Result<V1Facts> read_facts(const std::vector<std::pair<std::string, std::string>>& metadata);

}  // namespace tqcache::migrations
