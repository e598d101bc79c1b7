#pragma once
// eval/predictions.h: the effect of cache configurations on a model's predictions of a text.
//
// The text is cut into windows that do not overlap; an incomplete window at the end is dropped. The
// model reads each window with an empty cache, once dense and once for every configuration. Each
// next-token prediction is compared with that of the dense run.
//
// As coded: every key and value of a window, those of the current token included, is quantized and
// dequantized before attention sees it; means and outlier channels are those of the dense run of
// the same window, as in cache::convert(). As served: a real cache is filled as in generation: the
// incomplete token block and the one that was filled last are dense, and means are those of the
// first block.
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
#include "tqcache/eval/report.h"
#include "tqcache/model/loading/model.h"

namespace tqcache::eval {

struct PredictionOptions {
  std::int64_t window = 2048;    // tokens
  std::int64_t max_windows = 0;  // counted from the first; 0: the whole text
  bool as_served = false;
  // Replaces each window's first token, which the previous window predicts.
  std::optional<std::int32_t> begin_token = {};
  unsigned n_threads = 0;  // 0: all processors
};

// The memory of the keys and values of a full window. Dense ones count as f16, as in files; those
// of the configuration that leaves everything dense as f32, in which it is measured.
struct WindowSize {
  std::uint64_t k_bytes = 0;
  std::uint64_t v_bytes = 0;
  double bits_per_value = 0;  // over all values
  // Over the values of quantized token blocks: codes, scales, sink tokens.
  double bits_per_packed_value = 0;
  double k_bits = 0;  // the same for quantized keys only; 0 if there are none
  double v_bits = 0;
};

// Shapes: `empty` is a dense f16 cache without tokens.
// Errors: those of cache::convert(); the message names the configuration.
Result<WindowSize> window_size(const cache::Cache& empty, const cache::Configuration& configuration,
                               std::int64_t n_tokens);

// The size of one configuration and the quality of its predictions.
struct PredictionCost {
  cache::Configuration configuration;
  WindowSize size = {};
  double perplexity = 0;
  // The Kullback-Leibler divergence of predictions from the dense ones, in nats.
  double kld_mean = 0;
  double kld_median = 0;
  double kld_p99 = 0;
  double kld_max = 0;
  double top1 = 0;  // share of predictions whose most probable token is the dense run's
  // Empty if everything stays dense, and as served.
  CodingErrors errors = {};
};

struct PredictionCosts {
  std::int64_t n_tokens = 0;  // of the text
  std::int64_t window = 0;
  std::int64_t n_windows = 0;
  bool as_served = false;
  std::optional<std::int32_t> begin_token;  // at the start of each window
  double dense_perplexity = 0;
  std::vector<PredictionCost> ways;  // [configurations]

  std::int64_t n_predictions() const { return n_windows * window; }
};

// Shapes:   ids: the text. The last window needs one token after it, which it predicts.
// Progress: tokens read, over all runs.
// Errors:   kInvalidArgument (an id out of range; a window below 1 token, beyond the model's
//           context, or below a token block if a configuration quantizes; a text shorter than a
//           window and one token), kUnsupported (a configuration that the model's head_dim
//           does not allow), kTooLarge (the logits of a window take more than 16 GiB),
//           kInterrupted, those of cache::convert(). The message names the configuration.
// Bytes:    the same for any number of threads, on one kind of CPU.
Result<PredictionCosts> measure_predictions(const model::ModelConfig& config,
                                            const model::Weights& weights,
                                            const cache::Identity& identity,
                                            std::span<const std::int32_t> ids,
                                            std::span<const cache::Configuration> configurations,
                                            const PredictionOptions& options,
                                            const Progress& progress = {});

// The model's begin token, if the text begins with it: then each of its windows should, too.
std::optional<std::int32_t> begin_token_of(const tokenizer::Tokenizer& tokenizer,
                                           std::span<const std::int32_t> ids);

// Uses begin_token_of() the text if the options have no begin token.
inline Result<PredictionCosts> measure_predictions(
    const model::Model& model, std::span<const std::int32_t> ids,
    std::span<const cache::Configuration> configurations, PredictionOptions options,
    const Progress& progress = {}) {
  if (!options.begin_token) options.begin_token = begin_token_of(model.tokenizer, ids);
  return measure_predictions(model.config, *model.weights, model.identity, ids, configurations,
                             options, progress);
}

// What the report shows first: perplexity, or divergence from the dense run.
enum class PredictionFocus { kPerplexity, kDivergence };

// The report's facts begin with those of the windows; the caller puts model and text before them.
Report predictions_report(const PredictionCosts& costs, PredictionFocus focus);

}  // namespace tqcache::eval
