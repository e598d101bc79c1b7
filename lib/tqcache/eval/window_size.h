#pragma once
// eval/window_size.h: what the keys and values of a window take in a configuration.

#include <cstdint>

#include "tqcache/base/result.h"
#include "tqcache/cache/configuration.h"
#include "tqcache/eval/predictions.h"

namespace tqcache::eval {

// Shapes: `empty` is a dense f16 cache without a token.
// Errors: those of cache::convert(); the message names the configuration.
Result<WindowSize> window_size(const cache::Cache& empty, const cache::Configuration& configuration,
                               std::int64_t n_tokens);

}  // namespace tqcache::eval
