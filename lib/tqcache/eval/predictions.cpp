#include "tqcache/eval/predictions.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>

#include "tqcache/base/integers.h"
#include "tqcache/base/result.h"
#include "tqcache/cache/convert.h"
#include "tqcache/eval/distribution.h"
#include "tqcache/eval/prediction_rows.h"
#include "tqcache/eval/window_size.h"
#include "tqcache/model/decoder.h"
#include "tqcache/model/loading/model.h"

namespace tqcache::eval {
namespace {

using cache::Configuration;

constexpr std::uint64_t kMaxLogitBytes = std::uint64_t{16} << 30;

std::uint64_t to_unsigned(std::int64_t n) { return static_cast<std::uint64_t>(n); }

Result<cache::Cache> make_empty(const model::ModelConfig& config, const cache::Identity& identity,
                                Dtype dtype) {
  return model::make_cache(config, identity, dtype);
}

Result<void> check_window(const model::ModelConfig& config, std::int64_t window,
                          std::int64_t n_tokens, bool packs) {
  if (window < 1) return invalid("a window of " + std::to_string(window) + " tokens");
  if (packs && window < cache::kTokenBlock) {
    return invalid("a window of " + std::to_string(window) +
                   " tokens: " + std::to_string(cache::kTokenBlock) +
                   " at least fill a token block to be packed");
  }
  if (window > config.context_length) {
    return invalid("a window of " + std::to_string(window) + " tokens: the model's context has " +
                   std::to_string(config.context_length));
  }
  if (n_tokens <= window) {
    return invalid("the text has " + std::to_string(n_tokens) + " tokens; a window of " +
                   std::to_string(window) + " and the one that follows it need " +
                   std::to_string(window + 1));
  }
  const std::uint64_t bytes = to_unsigned(window) * to_unsigned(config.vocab_size) * sizeof(float);
  if (!packs || bytes <= kMaxLogitBytes) return {};
  return Error{ErrorCode::kTooLarge, "a window of " + std::to_string(window) +
                                         " tokens: its logits take " + std::to_string(bytes) +
                                         " bytes, " + std::to_string(kMaxLogitBytes) +
                                         " are the limit"};
}

Result<void> check_ids(std::span<const std::int32_t> ids, std::int64_t vocab_size) {
  const auto outside =
      std::ranges::find_if(ids, [&](std::int32_t id) { return id < 0 || id >= vocab_size; });
  if (outside == ids.end()) return {};
  return invalid("token id " + std::to_string(*outside) + " is not one of the model's " +
                 std::to_string(vocab_size));
}

// What has been seen of one run's predictions.
struct Tally {
  double surprise = 0;
  std::uint64_t n_same_top = 0;
  Distribution kld;
};

// Of the runs that are one evaluation, which of the tokens they read has been read.
class RunProgress {
 public:
  RunProgress(const Progress& progress, std::uint64_t total) : progress_(progress), total_(total) {}

  Progress of_next_run(std::int64_t n_tokens) {
    const std::uint64_t before = begun_;
    begun_ += to_unsigned(n_tokens);
    if (!progress_) return {};
    return [this, before](std::uint64_t done, std::uint64_t) {
      return progress_(before + done, total_);
    };
  }

 private:
  const Progress& progress_;
  std::uint64_t total_;
  std::uint64_t begun_ = 0;
};

class PredictionMeasurement {
 public:
  PredictionMeasurement(const model::ModelConfig& config, const model::Weights& weights,
                        const cache::Cache& empty, const PredictionOptions& options,
                        PredictionCosts& costs)
      : decoder_(config, weights, options.n_threads),
        empty_(empty),
        options_(options),
        costs_(costs),
        rows_(to_size(config.vocab_size), options.n_threads),
        tallies_(costs.ways.size()) {
    for (PredictionCost& way : costs_.ways) {
      if (way.configuration.is_dense() || options.as_served) continue;
      way.errors = CodingErrors(to_size(config.n_layers), to_size(config.n_kv_heads));
    }
  }

  // Shapes: ids [window + 1].
  Result<void> measure_window(std::span<const std::int32_t> ids, bool packs,
                              RunProgress& progress) {
    rows_.begin_window(packs ? ids.size() - 1 : 0);
    TQC_TRY_ASSIGN(const cache::Cache dense, run_dense(ids, packs, progress));
    for (std::size_t i = 0; i < costs_.ways.size(); ++i) {
      const Configuration& configuration = costs_.ways[i].configuration;
      if (configuration.is_dense()) continue;
      if (auto done = run_way(ids, dense, i, progress); !done) {
        if (done.error().code == ErrorCode::kInterrupted) return done;
        return in_context(configuration.name, std::move(done).error());
      }
    }
    return {};
  }

  void finish() {
    const auto n = static_cast<double>(costs_.n_predictions());
    costs_.dense_perplexity = std::exp(dense_surprise_ / n);
    for (std::size_t i = 0; i < costs_.ways.size(); ++i) {
      PredictionCost& way = costs_.ways[i];
      const Tally& tally = tallies_[i];
      const bool is_dense = way.configuration.is_dense();
      way.perplexity = is_dense ? costs_.dense_perplexity : std::exp(tally.surprise / n);
      way.top1 = is_dense ? 1 : static_cast<double>(tally.n_same_top) / n;
      way.kld_mean = tally.kld.mean();
      way.kld_median = tally.kld.quantile(0.5);
      way.kld_p99 = tally.kld.quantile(0.99);
      way.kld_max = tally.kld.max();
    }
  }

 private:
  Result<cache::Cache> run_dense(std::span<const std::int32_t> ids, bool keep,
                                 RunProgress& progress) {
    cache::Cache cache = empty_;
    const model::LogitsSink sink = [&](std::int64_t first, std::int64_t n,
                                       std::span<const float> rows) {
      for (const double each : rows_.add(rows, next_of(ids, first, n), keep)) {
        dense_surprise_ += each;
      }
    };
    TQC_TRY(decoder_.prefill_all_logits(cache, ids.first(ids.size() - 1), sink,
                                        progress.of_next_run(options_.window)));
    if (!std::isfinite(dense_surprise_)) return not_finite();
    return cache;
  }

  Result<void> run_way(std::span<const std::int32_t> ids, const cache::Cache& dense, std::size_t i,
                       RunProgress& progress) {
    cache::ConvertOptions convert = costs_.ways[i].configuration.options;
    convert.n_threads = options_.n_threads;
    TQC_TRY_ASSIGN(const cache::Cache packed,
                   cache::convert(options_.as_served ? empty_ : dense, convert));
    cache::Cache cache = options_.as_served ? packed : empty_;
    model::KvFilter filter;
    if (!options_.as_served) filter = measuring_filter(packed, costs_.ways[i].errors);
    Tally& tally = tallies_[i];
    bool is_finite = true;
    const model::LogitsSink sink = [&](std::int64_t first, std::int64_t n,
                                       std::span<const float> rows) {
      for (const RowCost& row : rows_.compare(to_size(first), rows, next_of(ids, first, n))) {
        is_finite = is_finite && std::isfinite(row.kld) && std::isfinite(row.surprise);
        if (is_finite) add(row, tally);
      }
    };
    TQC_TRY(decoder_.prefill_all_logits(cache, ids.first(ids.size() - 1), sink,
                                        progress.of_next_run(options_.window), filter));
    if (!is_finite) return not_finite();
    return {};
  }

  static void add(const RowCost& row, Tally& tally) {
    tally.surprise += row.surprise;
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

  model::Decoder decoder_;
  const cache::Cache& empty_;
  const PredictionOptions& options_;
  PredictionCosts& costs_;
  PredictionRows rows_;
  std::vector<Tally> tallies_;
  double dense_surprise_ = 0;
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
  const auto n_packed = std::ranges::count_if(
      configurations, [](const Configuration& each) { return !each.is_dense(); });
  PredictionCosts costs;
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

  TQC_TRY_ASSIGN(const cache::Cache in_files, make_empty(config, identity, Dtype::kF16));
  for (const Configuration& each : configurations) {
    TQC_TRY_ASSIGN(const WindowSize size, window_size(in_files, each, options.window));
    costs.ways.push_back({.configuration = each, .size = size});
  }
  TQC_TRY_ASSIGN(const cache::Cache empty, make_empty(config, identity, Dtype::kF32));
  PredictionMeasurement measurement(config, weights, empty, options, costs);
  RunProgress runs(progress, to_unsigned(costs.n_predictions() * (1 + n_packed)));
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
