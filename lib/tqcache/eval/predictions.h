#pragma once
// eval/predictions.h: what a way to keep a cache does to a model's predictions of a text.
//
// The text is cut into windows that do not overlap; what is left at the end is dropped. The model
// reads each window from nothing, once with a dense cache and once for every way, and of every
// token's prediction of the next one is told how much it differs from the dense run's.
//
// As coded, every key and value of a window is replaced by what its codes stand for before
// attention sees it, the current token's own included; means and outlier channels are those of the
// dense run of the same window, as cache::convert() takes them. As served, a real cache is filled
// as generation fills it: the incomplete token block and the one that has just become full are
// dense, and means are those of the first block.
//
// Spec: docs/reference/eval.md, "ppl and kld".

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "tqcache/base/progress.h"
#include "tqcache/base/result.h"
#include "tqcache/cache/configuration.h"
#include "tqcache/eval/coding_error.h"
#include "tqcache/model/loading/model.h"

namespace tqcache::eval {

struct PredictionOptions {
  std::int64_t window = 2048;    // tokens
  std::int64_t max_windows = 0;  // from the first on; 0: all of the text
  bool as_served = false;
  // Read in the place of each window's first token, which is predicted by the window before.
  std::optional<std::int32_t> begin_token = {};
  unsigned n_threads = 0;  // 0: all processors
};

// Memory that a window's keys and values take once it is full. Sides that stay dense count as f16,
// which files have; of the configuration that leaves all dense, as f32, which it is measured in.
struct WindowSize {
  std::uint64_t k_bytes = 0;
  std::uint64_t v_bytes = 0;
  double bits_per_value = 0;  // over all values
  double bits_per_packed_value =
      0;              // over those of packed token blocks: codes, scales, sink tokens
  double k_bits = 0;  // the same of packed keys alone, and of packed values; 0 of none
  double v_bits = 0;
};

// What one configuration costs.
struct PredictionCost {
  cache::Configuration configuration;
  WindowSize size = {};
  double perplexity = 0;  // of the tokens that do follow
  // The Kullback-Leibler divergence of predictions from the dense ones, in nats.
  double kld_mean = 0;
  double kld_median = 0;
  double kld_p99 = 0;
  double kld_max = 0;
  double top1 = 0;  // share of predictions whose most probable token is the dense run's
  // Empty where all stays dense, and as served.
  CodingErrors errors = {};
};

struct PredictionCosts {
  std::int64_t n_tokens = 0;  // of the text
  std::int64_t window = 0;
  std::int64_t n_windows = 0;
  bool as_served = false;
  std::optional<std::int32_t> begin_token;  // that each window began with
  double dense_perplexity = 0;
  std::vector<PredictionCost> ways;  // as `configurations` asks for them

  std::int64_t n_predictions() const { return n_windows * window; }
};

// Shapes:   ids: the text; the window behind the last one begins with the last token predicted.
// Progress: tokens read, in all runs together.
// Errors:   kInvalidArgument (an id out of range; a window below 1 token, beyond the model's
// context, or below a token
//           block where something is packed; a text that does not fill it and one token more),
//           kUnsupported (a configuration that the model's head_dim does not allow), kTooLarge (the
//           logits of a window take more than 16 GiB), kInterrupted, those of cache::convert(). The
//           message names the configuration.
// Bytes:    the same for any number of threads, on one kind of CPU.
Result<PredictionCosts> measure_predictions(const model::ModelConfig& config,
                                            const model::Weights& weights,
                                            const cache::Identity& identity,
                                            std::span<const std::int32_t> ids,
                                            std::span<const cache::Configuration> configurations,
                                            const PredictionOptions& options,
                                            const Progress& progress = {});

// The token that the model's texts begin with, if this one does: then each of its windows should.
std::optional<std::int32_t> begin_token_of(const model::Tokenizer& tokenizer,
                                           std::span<const std::int32_t> ids);

// With begin_token_of() the text, unless options have a token.
inline Result<PredictionCosts> measure_predictions(
    const model::Model& model, std::span<const std::int32_t> ids,
    std::span<const cache::Configuration> configurations, PredictionOptions options,
    const Progress& progress = {}) {
  if (!options.begin_token) options.begin_token = begin_token_of(model.tokenizer, ids);
  return measure_predictions(model.config, model.weights, model.identity, ids, configurations,
                             options, progress);
}

}  // namespace tqcache::eval
