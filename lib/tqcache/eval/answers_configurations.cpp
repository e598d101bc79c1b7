#include "tqcache/eval/answers_configurations.h"

#include <string>
#include <utility>

#include "tqcache/cache/convert.h"

namespace tqcache::eval {

Result<void> check_configurations(const model::Model& model,
                                  std::span<const cache::Configuration> configurations) {
  if (configurations.empty()) return Error{ErrorCode::kInvalidArgument, "no configuration"};
  TQC_TRY_ASSIGN(const cache::Cache empty, model::make_cache(model, Dtype::kF32));
  for (const cache::Configuration& each : configurations) {
    if (auto planned = cache::plan_layers(cache::describe(empty), each.options); !planned) {
      return in_context(each.name, std::move(planned).error());
    }
  }
  return {};
}

Result<void> check_context(const model::ModelConfig& config, std::int64_t n_tokens,
                           std::int64_t n_answer) {
  if (n_tokens + n_answer <= config.context_length) return {};
  return Error{ErrorCode::kInvalidArgument,
               "a prompt of " + std::to_string(n_tokens) + " tokens and an answer of up to " +
                   std::to_string(n_answer) + "; the model's context is " +
                   std::to_string(config.context_length)};
}

Result<cache::Cache> convert_copy(const cache::Cache& dense,
                                  const cache::Configuration& configuration, unsigned n_threads) {
  cache::ConvertOptions options = configuration.options;
  options.n_threads = n_threads;
  auto converted = cache::convert(dense, options);
  if (!converted) return in_context(configuration.name, std::move(converted).error());
  return converted;
}

}  // namespace tqcache::eval
