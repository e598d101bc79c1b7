#pragma once
// eval/answers_configurations.h: what every evaluation of answers does with configurations.

#include <cstdint>
#include <span>

#include "tqcache/base/result.h"
#include "tqcache/cache/cache.h"
#include "tqcache/cache/configuration.h"
#include "tqcache/model/loading/model.h"

namespace tqcache::eval {

// Errors: kInvalidArgument when there is none; those of cache::plan_layers for this model, with the
//         configuration's name.
Result<void> check_configurations(const model::Model& model,
                                  std::span<const cache::Configuration> configurations);

// Errors: kInvalidArgument when `n_tokens` and an answer of `n_answer` tokens are more than the
//         model's context.
Result<void> check_context(const model::ModelConfig& config, std::int64_t n_tokens,
                           std::int64_t n_answer);

// The cache as a configuration keeps it. Errors: those of cache::convert, with its name.
Result<cache::Cache> convert_copy(const cache::Cache& dense,
                                  const cache::Configuration& configuration, unsigned n_threads);

}  // namespace tqcache::eval
