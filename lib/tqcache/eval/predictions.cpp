#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "tqcache/base/integers.h"
#include "tqcache/base/threads.h"
#include "tqcache/bytes.h"
#include "tqcache/decoder.h"
#include "tqcache/error.h"
#include "tqcache/eval.h"
#include "tqcache/eval/distribution.h"
#include "tqcache/eval/divergence.h"
#include "tqcache/eval/measuring_filter.h"
#include "tqcache/eval/predicted.h"
#include "tqcache/eval/total_progress.h"
#include "tqcache/model.h"
#include "tqcache/predict/predictor.h"
#include "tqcache/quantize.h"

namespace tqcache::eval {
namespace {

using cache::kTokenBlock;

// The memory of K or V, over all layers.
struct TensorSize {
  std::uint64_t bytes = 0;
  std::uint64_t values = 0;
  std::uint64_t packed_bytes = 0;
  std::uint64_t packed_values = 0;
};

void add_tensor(const cache::Tensor& tensor, cache::HeadShape shape, std::int64_t n_tokens,
                std::uint64_t dense_value_bytes, TensorSize& size) {
  const std::uint64_t values_per_token = to_u64(shape.n_kv_heads * shape.head_dim);
  const auto* turbo = std::get_if<cache::TurboTensor>(&tensor);
  const std::int64_t n_blocks = turbo == nullptr ? 0 : n_tokens / kTokenBlock;
  for (std::int64_t block = 0; block < n_blocks; ++block) {
    size.packed_bytes += turbo->codec.packed_bytes(block);
    size.bytes += turbo->codec.packed_bytes(block);
  }
  size.packed_values += to_u64(n_blocks * kTokenBlock) * values_per_token;
  size.values += to_u64(n_tokens) * values_per_token;
  size.bytes += to_u64(n_tokens - n_blocks * kTokenBlock) * values_per_token * dense_value_bytes;
}

double bits_per_value(std::uint64_t bytes, std::uint64_t values) {
  return values == 0 ? 0 : 8.0 * static_cast<double>(bytes) / static_cast<double>(values);
}

}  // namespace

Result<WindowSize> window_size(const cache::Cache& empty, const cache::Configuration& configuration,
                               std::int64_t n_tokens) {
  auto converted = cache::convert(empty, configuration.options);
  if (!converted) return in_context(configuration.name, std::move(converted).error());
  const std::uint64_t dense_value_bytes = configuration.is_dense() ? 4 : 2;
  TensorSize k, v;
  for (const cache::Layer& each : converted->layers) {
    const cache::AttentionLayer* layer = cache::attention_of(each);
    if (layer == nullptr) continue;
    const std::int64_t n_held = cache::tokens_held(cache::describe(each), n_tokens);
    add_tensor(layer->k, layer->shape, n_held, dense_value_bytes, k);
    add_tensor(layer->v, layer->shape, n_held, dense_value_bytes, v);
  }
  WindowSize size;
  size.k_bytes = k.bytes;
  size.v_bytes = v.bytes;
  size.bits_per_value = bits_per_value(k.bytes + v.bytes, k.values + v.values);
  size.bits_per_packed_value =
      bits_per_value(k.packed_bytes + v.packed_bytes, k.packed_values + v.packed_values);
  size.k_bits = bits_per_value(k.packed_bytes, k.packed_values);
  size.v_bits = bits_per_value(v.packed_bytes, v.packed_values);
  return size;
}

namespace {

// ---- Comparison of predictions ----

// One prediction of a quantized run, compared with the dense one. Not finite if the logits of
// either run are not.
struct RowCost {
  double nll = 0;  // negative log-likelihood of the token that follows in the text; nats
  double kld = 0;  // nats
  bool same_top = false;
};

// The dense predictions of a window, kept for comparison with other runs.
//
// Shapes:  rows [n, vocab_size] of logits, next [n]: the tokens that follow.
// Bytes:   the same for any number of threads.
class PredictionRows {
 public:
  PredictionRows(std::size_t vocab_size, unsigned n_threads)
      : vocab_size_(vocab_size), n_threads_(n_threads) {}

  // Drops the previous window and reserves memory for `n_kept` predictions.
  void begin_window(std::size_t n_kept);

  // Takes the dense predictions of the next tokens and returns the negative log-likelihood of each.
  // Keeps the logits only if `keep` is set.
  std::vector<double> add(std::span<const float> rows, std::span<const std::int32_t> next,
                          bool keep);

  // Compares predictions from token `first` of the window on. Requires: their logits were kept.
  std::vector<RowCost> compare(std::size_t first, std::span<const float> rows,
                               std::span<const std::int32_t> next) const;

 private:
  std::size_t vocab_size_;
  unsigned n_threads_;
  std::vector<Softmax> softmaxes_;  // of each token
  std::vector<std::size_t> tops_;   // most probable tokens
  AlignedFloats logits_;            // [tokens, vocab_size], if kept
};

constexpr std::size_t kRowsPerJob = 8;  // the rows of a job share scratch memory

// Calls body(row, scratch) for every row.
void for_rows(std::size_t n, unsigned n_threads,
              const std::function<void(std::size_t, std::vector<float>&)>& body) {
  const std::size_t n_jobs = (n + kRowsPerJob - 1) / kRowsPerJob;
  parallel_for(n_jobs, n_threads, [&](std::size_t job) {
    std::vector<float> scratch;
    const std::size_t first = job * kRowsPerJob;
    for (std::size_t row = first; row < std::min(first + kRowsPerJob, n); ++row) {
      body(row, scratch);
    }
  });
}

void PredictionRows::begin_window(std::size_t n_kept) {
  softmaxes_.clear();
  tops_.clear();
  logits_.clear();
  logits_.reserve(n_kept * vocab_size_);
}

std::vector<double> PredictionRows::add(std::span<const float> rows,
                                        std::span<const std::int32_t> next, bool keep) {
  const std::size_t first = softmaxes_.size();
  softmaxes_.resize(first + next.size());
  tops_.resize(first + next.size());
  std::vector<double> nlls(next.size());
  for_rows(next.size(), n_threads_, [&](std::size_t i, std::vector<float>& scratch) {
    const auto row = rows.subspan(i * vocab_size_, vocab_size_);
    softmaxes_[first + i] = softmax_of(row, scratch);
    tops_[first + i] = most_probable(row, softmaxes_[first + i]);
    nlls[i] = negative_log_likelihood(row, softmaxes_[first + i], next[i]);
  });
  if (keep) logits_.insert(logits_.end(), rows.begin(), rows.end());
  return nlls;
}

std::vector<RowCost> PredictionRows::compare(std::size_t first, std::span<const float> rows,
                                             std::span<const std::int32_t> next) const {
  std::vector<RowCost> costs(next.size());
  for_rows(next.size(), n_threads_, [&](std::size_t i, std::vector<float>& scratch) {
    const std::size_t token = first + i;
    const auto dense = std::span(logits_).subspan(token * vocab_size_, vocab_size_);
    const auto row = rows.subspan(i * vocab_size_, vocab_size_);
    const Softmax softmax = softmax_of(row, scratch);
    costs[i].nll = negative_log_likelihood(row, softmax, next[i]);
    costs[i].kld = divergence(dense, softmaxes_[token], row, softmax, scratch);
    costs[i].same_top = most_probable(row, softmax) == tops_[token];
  });
  return costs;
}

// ---- Measurement ----

using cache::Configuration;

constexpr std::uint64_t kMaxLogitBytes = std::uint64_t{16} << 30;

Result<void> check_window(const model::ModelConfig& config, std::int64_t window,
                          std::int64_t n_tokens, bool packs) {
  if (window < 1) return invalid(fmt::format("a window of {} tokens; it needs at least 1", window));
  if (packs && window < cache::kTokenBlock) {
    return invalid(
        fmt::format("a window of {} tokens: at least {} are needed to fill a token block, which is "
                    "what gets quantized",
                    window, cache::kTokenBlock));
  }
  if (window > config.context_length) {
    return invalid(fmt::format("a window of {} tokens: the model's context has {}", window,
                               config.context_length));
  }
  if (n_tokens <= window) {
    return invalid(
        fmt::format("the text has {} tokens; a window of {} and the token after it need {}",
                    n_tokens, window, window + 1));
  }
  const std::uint64_t bytes = to_u64(window) * to_u64(config.vocab_size) * sizeof(float);
  if (!packs || bytes <= kMaxLogitBytes) return {};
  return too_large(
      fmt::format("a window of {} tokens: its logits take {} bytes, more than the limit of {}",
                  window, bytes, kMaxLogitBytes));
}

Result<void> check_ids(std::span<const std::int32_t> ids, std::int64_t vocab_size) {
  const auto outside =
      std::ranges::find_if(ids, [&](std::int32_t id) { return id < 0 || id >= vocab_size; });
  if (outside == ids.end()) return {};
  return invalid(
      fmt::format("token id {} is out of range; the model has {} tokens", *outside, vocab_size));
}

// First tokens of a window that stay dense where keys and values are predicted, as in archives.
constexpr std::int64_t kPredictedSinks = 4;

Result<void> check_predicted(const cache::Cache& empty, const PredictionOptions& options) {
  if (options.as_served) return invalid("a predicted archive is not used as it is served");
  if (options.predictor == nullptr) return invalid("a predicted configuration needs a profile");
  return predict::check_profile(options.predictor->profile(), cache::describe(empty));
}

// The predictions of one run so far.
struct Tally {
  double nll = 0;  // sum of negative log-likelihoods
  double nll_squared = 0;
  std::uint64_t n_same_top = 0;
  Distribution kld;
};

class PredictionMeasurement {
 public:
  PredictionMeasurement(const model::ModelConfig& config, const model::Weights& weights,
                        const cache::Cache& empty, const PredictionOptions& options,
                        PredictionCosts& costs)
      : decoder_(config, weights, options.n_threads),
        step_decoder_(config, weights, options.n_threads, model::Scorer::kFast,
                      options.activations.value_or(model::ActivationBits::k16)),
        empty_(empty),
        options_(options),
        costs_(costs),
        rows_(to_size(config.vocab_size), options.n_threads),
        tallies_(costs.ways.size()) {
    std::int64_t n_kv_heads = 0;
    for (std::int64_t i = 0; i < config.n_cache_layers(); ++i) {
      n_kv_heads = std::max(n_kv_heads, config.layer(i).heads.n_kv_heads);
    }
    for (PredictionCost& way : costs_.ways) {
      if (way.configuration.is_dense() || options.as_served) continue;
      if (way.configuration.predicted_step > 0) continue;
      way.errors = CodingErrors(to_size(config.n_cache_layers()), to_size(n_kv_heads));
    }
  }

  // Shapes: ids [window + 1].
  Result<void> measure_window(std::span<const std::int32_t> ids, bool packs,
                              TotalProgress& progress) {
    rows_.begin_window(packs ? ids.size() - 1 : 0);
    TQC_TRY_ASSIGN(const cache::Cache dense, run_dense(ids, packs, progress));
    for (std::size_t i = 0; i < costs_.ways.size(); ++i) {
      const Configuration& configuration = costs_.ways[i].configuration;
      if (costs_.is_reference(configuration)) continue;
      if (auto done = run_way(ids, dense, i, progress); !done) {
        if (done.error().code == ErrorCode::kInterrupted) return done;
        return in_context(configuration.name, std::move(done).error());
      }
    }
    return {};
  }

  void finish() {
    const auto n = static_cast<double>(costs_.n_predictions());
    const std::uint64_t count = to_u64(costs_.n_predictions());
    costs_.dense_perplexity = std::exp(dense_nll_ / n);
    // d exp(x) = exp(x) dx
    costs_.dense_perplexity_error =
        costs_.dense_perplexity * standard_error_of_mean(dense_nll_, dense_nll_squared_, count);
    for (std::size_t i = 0; i < costs_.ways.size(); ++i) {
      PredictionCost& way = costs_.ways[i];
      const Tally& tally = tallies_[i];
      const bool is_dense = costs_.is_reference(way.configuration);
      way.perplexity = is_dense ? costs_.dense_perplexity : std::exp(tally.nll / n);
      way.top1 = is_dense ? 1 : static_cast<double>(tally.n_same_top) / n;
      way.perplexity_error =
          is_dense ? costs_.dense_perplexity_error
                   : way.perplexity * standard_error_of_mean(tally.nll, tally.nll_squared, count);
      way.kld_error = tally.kld.standard_error();
      way.top1_error = std::sqrt(way.top1 * (1 - way.top1) / n);
      way.kld_mean = tally.kld.mean();
      way.kld_median = tally.kld.quantile(0.5);
      way.kld_p99 = tally.kld.quantile(0.99);
      way.kld_max = tally.kld.max();
    }
  }

 private:
  Result<cache::Cache> run_dense(std::span<const std::int32_t> ids, bool keep,
                                 TotalProgress& progress) {
    cache::Cache cache = empty_;
    const model::LogitsSink sink = [&](std::int64_t first, std::int64_t n,
                                       std::span<const float> rows) {
      for (const double each : rows_.add(rows, next_of(ids, first, n), keep)) {
        dense_nll_ += each;
        dense_nll_squared_ += each * each;
      }
    };
    TQC_TRY(
        decoder_.prefill_all_logits(cache, ids.first(ids.size() - 1), sink, progress.next_run()));
    progress.finish_run(to_u64(options_.window));
    if (!std::isfinite(dense_nll_)) return not_finite();
    return cache;
  }

  Result<void> run_way(std::span<const std::int32_t> ids, const cache::Cache& dense, std::size_t i,
                       TotalProgress& progress) {
    const Configuration& configuration = costs_.ways[i].configuration;
    cache::ConvertOptions convert = configuration.options;
    convert.n_threads = options_.n_threads;
    const bool is_predicted = configuration.predicted_step > 0;
    cache::Cache packed = empty_;  // outlives the filter
    if (!is_predicted && !configuration.is_dense()) {
      TQC_TRY_ASSIGN(packed, cache::convert(options_.as_served ? empty_ : dense, convert));
    }
    cache::Cache cache = options_.as_served ? packed : empty_;
    model::KvFilter filter;
    PredictedSize predicted;
    if (is_predicted) {
      filter =
          predicted_filter(options_.predictor, empty_.identity.rope, configuration.predicted_step,
                           kPredictedSinks, ids.first(ids.size() - 1), predicted);
    } else if (!options_.as_served && !configuration.is_dense()) {
      filter = measuring_filter(packed, costs_.ways[i].errors);
    }
    Tally& tally = tallies_[i];
    bool is_finite = true;
    const model::LogitsSink sink = [&](std::int64_t first, std::int64_t n,
                                       std::span<const float> rows) {
      for (const RowCost& row : rows_.compare(to_size(first), rows, next_of(ids, first, n))) {
        is_finite = is_finite && std::isfinite(row.kld) && std::isfinite(row.nll);
        if (is_finite) add(row, tally);
      }
    };
    TQC_TRY(read(cache, ids.first(ids.size() - 1), sink, progress.next_run(), filter));
    progress.finish_run(to_u64(options_.window));
    if (!is_finite) return not_finite();
    if (is_predicted) add_size(predicted, i);
    return {};
  }

  // In chunks, or token by token.
  Result<void> read(cache::Cache& cache, std::span<const std::int32_t> ids,
                    const model::LogitsSink& sink, const Progress& progress,
                    const model::KvFilter& filter) {
    if (!options_.activations) {
      return decoder_.prefill_all_logits(cache, ids, sink, progress, filter);
    }
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const auto of_token = [&](std::int64_t, std::int64_t n, std::span<const float> rows) {
        sink(static_cast<std::int64_t>(i), n, rows);
      };
      if (!progress(i, ids.size())) return Error{ErrorCode::kInterrupted, "eval: stopped"};
      TQC_TRY(step_decoder_.prefill_all_logits(cache, ids.subspan(i, 1), of_token, {}, filter));
    }
    return {};
  }

  // The mean size over the windows, in bits of sections alone.
  void add_size(const PredictedSize& size, std::size_t i) {
    WindowSize& of_way = costs_.ways[i].size;
    const double share = 1 / static_cast<double>(costs_.n_windows);
    of_way.bits_per_value += share * size.bits_per_value();
    of_way.bits_per_packed_value += share * size.bits_per_value();
    of_way.k_bytes += (size.bytes - size.value_bytes) / to_u64(costs_.n_windows);
    of_way.v_bytes += size.value_bytes / to_u64(costs_.n_windows);
  }

  static void add(const RowCost& row, Tally& tally) {
    tally.nll += row.nll;
    tally.nll_squared += row.nll * row.nll;
    tally.n_same_top += row.same_top ? 1 : 0;
    tally.kld.add(row.kld);
  }

  static std::span<const std::int32_t> next_of(std::span<const std::int32_t> ids,
                                               std::int64_t first, std::int64_t n) {
    return ids.subspan(to_size(first) + 1, to_size(n));
  }

  static Error not_finite() {
    return {ErrorCode::kCorrupt, "the model's predictions are not finite"};
  }

  model::Decoder decoder_;       // of chunks
  model::Decoder step_decoder_;  // token by token
  const cache::Cache& empty_;
  const PredictionOptions& options_;
  PredictionCosts& costs_;
  PredictionRows rows_;
  std::vector<Tally> tallies_;
  double dense_nll_ = 0;
  double dense_nll_squared_ = 0;
};

}  // namespace

std::optional<std::int32_t> begin_token_of(const tokenizer::Tokenizer& tokenizer,
                                           std::span<const std::int32_t> ids) {
  const std::optional<std::int32_t> begin = tokenizer.begin_token();
  if (!tokenizer.adds_begin_token() || !begin || ids.empty()) return std::nullopt;
  return ids.front() == *begin ? begin : std::nullopt;
}

Result<PredictionCosts> measure_predictions(const model::ModelConfig& config,
                                            const model::Weights& weights,
                                            const cache::Identity& identity,
                                            std::span<const std::int32_t> ids,
                                            std::span<const Configuration> configurations,
                                            const PredictionOptions& options,
                                            const Progress& progress) {
  PredictionCosts costs;
  costs.activations = options.activations;
  const auto n_packed = std::ranges::count_if(
      configurations, [&](const Configuration& each) { return !costs.is_reference(each); });
  costs.n_tokens = std::ssize(ids);
  costs.window = options.window;
  costs.as_served = options.as_served;
  costs.begin_token = options.begin_token;
  TQC_TRY(check_window(config, options.window, costs.n_tokens, n_packed > 0));
  TQC_TRY(check_ids(ids, config.vocab_size));
  if (options.begin_token)
    TQC_TRY(check_ids(std::span(&*options.begin_token, 1), config.vocab_size));
  costs.n_windows = (costs.n_tokens - 1) / options.window;
  if (options.max_windows > 0) costs.n_windows = std::min(costs.n_windows, options.max_windows);

  TQC_TRY_ASSIGN(const cache::Cache in_files, model::make_cache(config, identity, Dtype::kF16));
  for (const Configuration& each : configurations) {
    WindowSize size;
    if (each.predicted_step > 0) {
      TQC_TRY(check_predicted(in_files, options));
    } else {
      TQC_TRY_ASSIGN(size, window_size(in_files, each, options.window));
    }
    costs.ways.push_back({.configuration = each, .size = size});
  }
  TQC_TRY_ASSIGN(const cache::Cache empty, model::make_cache(config, identity, Dtype::kF32));
  PredictionMeasurement measurement(config, weights, empty, options, costs);
  TotalProgress runs(progress, to_u64(costs.n_predictions() * (1 + n_packed)));
  for (std::int64_t i = 0; i < costs.n_windows; ++i) {
    const auto part = ids.subspan(to_size(i * options.window), to_size(options.window + 1));
    std::vector<std::int32_t> window(part.begin(), part.end());
    if (options.begin_token) window.front() = *options.begin_token;
    TQC_TRY(measurement.measure_window(window, n_packed > 0, runs));
  }
  measurement.finish();
  return costs;
}

}  // namespace tqcache::eval
