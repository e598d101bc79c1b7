#pragma once
// tqcache/eval.h: measurements of what quantization costs a model: predictions, keys and values,
// attention, profiles of models, and the search for a configuration.
//
//   TQC_TRY_ASSIGN(const auto ways, cache::parse_configurations("turbo4,k4v3"));
//   TQC_TRY_ASSIGN(const auto costs, eval::measure_predictions(model, ids, ways, {.window = 512}));
//   double nats = costs.ways[0].kld_mean;
//
// Spec: docs/reference/eval.md, docs/reference/profile.md.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tqcache/bytes.h"
#include "tqcache/cache.h"
#include "tqcache/decoder.h"
#include "tqcache/error.h"
#include "tqcache/model.h"
#include "tqcache/predict.h"
#include "tqcache/progress.h"
#include "tqcache/quantize.h"
#include "tqcache/report.h"

namespace tqcache::eval {

// --- Quantization errors of keys and values by layer and kv head

// Sums over the values of head vectors; they add up over heads, layers and windows. Sink tokens,
// which are not quantized, are left out.
struct CodingError {
  double error = 0;     // |x - dequantized x|^2
  double energy = 0;    // |x|^2
  double variance = 0;  // |x - mean|^2 with the mean that the cache removes; energy if it has none

  void add(const CodingError& other);
  // Relative to the energy; 0 without any error.
  double relative() const { return error == 0 ? 0 : error / energy; }
  // Relative to the values that are quantized, to which the theoretical bound applies.
  double relative_to_variance() const { return error == 0 ? 0 : error / variance; }
};

// [n_layers, 2 (keys, values), n_kv_heads]; tensors that stay dense have sums of zero.
class CodingErrors {
 public:
  CodingErrors() = default;
  CodingErrors(std::size_t n_layers, std::size_t n_kv_heads)
      : n_kv_heads_(n_kv_heads), cells_(n_layers * 2 * n_kv_heads) {}

  std::size_t n_layers() const { return n_kv_heads_ == 0 ? 0 : cells_.size() / 2 / n_kv_heads_; }
  std::size_t n_kv_heads() const { return n_kv_heads_; }

  CodingError& at(std::size_t layer, std::size_t tensor, std::size_t kv_head) {
    return cells_[(layer * 2 + tensor) * n_kv_heads_ + kv_head];
  }
  const CodingError& at(std::size_t layer, std::size_t tensor, std::size_t kv_head) const {
    return cells_[(layer * 2 + tensor) * n_kv_heads_ + kv_head];
  }
  // Over all layers and kv heads.
  CodingError total(std::size_t tensor) const;

 private:
  std::size_t n_kv_heads_ = 0;
  std::vector<CodingError> cells_;
};

// --- The effect of cache configurations on a model's predictions of a text
//
// The text is cut into windows that do not overlap; an incomplete window at the end is dropped. The
// model reads each window with an empty cache, once dense and once for every configuration. Each
// next-token prediction is compared with that of the dense run.
//
// As coded: every key and value of a window, including those of the current token, is quantized and
// dequantized before attention uses it. Means and outlier channels are those of the dense run of
// the same window, as in cache::convert(). As served: a real cache is filled as in generation. Its
// incomplete token block and the last complete one are dense, and means are those of the first
// block.
//
// Spec: docs/reference/eval.md, "ppl and kld".

struct PredictionOptions {
  std::int64_t window = 2048;    // tokens
  std::int64_t max_windows = 0;  // counted from the first; 0: the whole text
  bool as_served = false;
  // Replaces each window's first token, which only the previous window predicts.
  std::optional<std::int32_t> begin_token = {};
  unsigned n_threads = 0;  // 0: all processors
  // If set, every configuration, the dense one too, reads the window token by token, as decode
  // steps do. The dense run that all are compared with reads it in chunks, which multiply in f32.
  std::optional<model::ActivationBits> activations = {};
  // For configurations with a predicted step; it belongs to the model.
  std::shared_ptr<const predict::Predictor> predictor = {};
};

// The memory of the keys and values of a full window. Dense values count as f16, as in files. The
// configuration without quantization counts as f32, in which it is measured.
struct WindowSize {
  std::uint64_t k_bytes = 0;
  std::uint64_t v_bytes = 0;
  double bits_per_value = 0;  // over all values
  // Over the values of quantized token blocks: codes, scales, sink tokens.
  double bits_per_packed_value = 0;
  double k_bits = 0;  // the same for quantized keys only; 0 if no keys are quantized
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
  // Standard errors, as if the predictions were independent.
  double perplexity_error = 0;
  double kld_error = 0;  // of the mean
  double top1_error = 0;
  // Empty if everything stays dense, or as served.
  CodingErrors errors = {};
};

struct PredictionCosts {
  std::int64_t n_tokens = 0;  // of the text
  std::int64_t window = 0;
  std::int64_t n_windows = 0;
  bool as_served = false;
  std::optional<model::ActivationBits> activations = {};
  std::optional<std::int32_t> begin_token = {};  // at the start of each window
  double dense_perplexity = 0;
  double dense_perplexity_error = 0;  // standard error, as above
  std::vector<PredictionCost> ways;   // [configurations]

  std::int64_t n_predictions() const { return n_windows * window; }
  // The configuration is the dense run itself.
  bool is_reference(const cache::Configuration& configuration) const {
    return configuration.is_dense() && !activations;
  }
};

// Shapes:   ids: the text. One token must follow the last window, which predicts it.
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

// The model's begin token if the text begins with it; then each window should begin with it, too.
std::optional<std::int32_t> begin_token_of(const tokenizer::Tokenizer& tokenizer,
                                           std::span<const std::int32_t> ids);

// Uses begin_token_of(text) if the options have no begin token.
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

// The report's facts begin with those of the windows; the caller puts model and text in front.
Report predictions_report(const PredictionCosts& costs, PredictionFocus focus);

// --- The difference between two caches of the same prompt by layer and head: in keys and values
// (tqcache/cache.h) and in the attention over them
//
// An error of a key matters only if queries attend to the key. With a model, the last tokens of the
// prompt are run again over the reference cache, which yields the model's real queries; each of
// them attends to the keys and values of both caches.
//
//   weights  KL(p || q) of the attention weights, p from the reference, q from the other, in nats
//   output   sum |a - b|^2 / sum |a|^2 of the attention output, a from the reference

struct AttentionError {
  double weights_kl = 0;       // mean over queries
  double output_error = 0;     // relative, over all queries
  std::int64_t n_queries = 0;  // tokens, for each query head
};

struct LayerAttentionError {
  std::int64_t layer = 0;
  std::vector<AttentionError> heads;  // [n_heads], query heads
};

// Attention errors for the last `n_queries` tokens that both caches hold, limited to one token
// block.
//
// Requires: diff(a, b) succeeded; n_queries of at least 1.
// Errors:   kMismatch if `a` or its shapes do not belong to the model; kUnsupported if the tokens
//           of `a` are hidden; kInvalidArgument if there are fewer than two common tokens, or a
//           layer without full attention; kInterrupted.
// Progress: layers done.
// Memory:   a token block of K and V of each cache, and the decoder's memory for a chunk.
// Bytes:    the same for any number of threads, on one kind of CPU.
Result<std::vector<LayerAttentionError>> attention_errors(
    const model::Model& model, const cache::Cache& a, const cache::Cache& b, std::int64_t n_queries,
    unsigned n_threads, const Progress& progress = {});

// Tables and heat maps of the errors of keys and values by layer and kv head, and, if measured, of
// the attention errors by layer and query head.
Report cache_report(const cache::CacheDifference& diff,
                    const std::optional<std::vector<LayerAttentionError>>& attention);

// --- A model's profile: the sensitivity of its layers to quantization, measured once and kept in a
// file
//
// The same error hurts some layers more than others, and keys more or less than values. The
// sensitivity of a tensor (K or V of a layer) is the divergence of the model's predictions when
// only that tensor is quantized. Divergences add up and grow with the square of the quantization
// step; the number of bits falls with the logarithm of the step. So a given number of bits is used
// best if each tensor's step is proportional to 1 / sqrt(sensitivity): these are the weights. A
// curve maps steps to expected divergences with these weights, so that a step can be chosen for a
// divergence.
//
// Spec: docs/reference/profile.md.

// Limits. A larger file is rejected without reading it.
inline constexpr std::uint64_t kMaxProfileBytes = 16 << 20;
inline constexpr std::size_t kMaxCurvePoints = 64;

// A quantization step, and the mean divergence in nats when every tensor is quantized with this
// step times its weight.
struct CurvePoint {
  double step = 0;
  double kld = 0;

  bool operator==(const CurvePoint&) const = default;
};

struct Profile {
  // The model.
  std::string architecture;
  std::string model_name;  // for display
  Sha256 weights_fingerprint{};
  Sha256 tokenizer_fingerprint{};
  // The sample.
  std::int64_t window = 0;  // tokens
  std::int64_t n_windows = 0;
  std::int64_t n_sinks = 0;  // dense tokens at the start of each window
  // Mean divergence with only one tensor quantized, with `step`. [n_layers]
  double step = 0;
  std::vector<double> key_sensitivity;
  std::vector<double> value_sensitivity;
  cache::StepWeights weights;     // [n_layers] each
  std::vector<CurvePoint> curve;  // two or more, ascending in both
  // Factors of keys for codes in memory, cache::Calibration::key_factors. Empty: older files.
  std::vector<std::vector<std::int8_t>> key_factors;
  // What 4 bits without factors are expected to take from the keys of each layer, as
  // cache::TensorLoss; 0 for layers without factors. [n_layers], or empty: not known (older files).
  std::vector<double> key_losses;

  // Whether archives can use it: a profile of only factors has no sensitivities and no curve.
  bool is_measured() const { return !curve.empty(); }
  std::int64_t n_layers() const {
    return static_cast<std::int64_t>(is_measured() ? weights.keys.size() : key_factors.size());
  }
  bool operator==(const Profile&) const = default;
};

// The bytes of a file: version 1, or version 3 if it holds only factors. Equal profiles give equal
// bytes.
Bytes profile_bytes(const Profile& profile);

// Safe for untrusted input.
// Errors: kCorrupt (not a profile, truncated or changed, a field missing or out of range),
//         kUnsupported (an unknown version), kTooLarge.
Result<Profile> parse_profile(ByteView file);

// Checks that `profile` was measured on the model of a cache with this identity and number of
// layers. Errors: kMismatch, naming both fingerprints or numbers, or if the cache does not name its
// model.
Result<void> check_profile(const Profile& profile, const cache::Identity& identity,
                           std::int64_t n_layers);

// A curve of these measurements, of ascending steps. Few predictions have noise: neighbors whose
// divergences do not ascend become one point, with the geometric means of both numbers.
std::vector<CurvePoint> ascending_curve(std::span<const CurvePoint> measured);

// The step whose expected divergence is `kld`, interpolated linearly in the logarithms between two
// points of the curve.
// Errors: kInvalidArgument outside the curve; the message names its range.
Result<double> step_for_divergence(const Profile& profile, double kld);

// The inverse: the divergence of a step; nullopt outside the curve.
std::optional<double> divergence_of_step(const Profile& profile, double step);

// 1 / sqrt(sensitivity), scaled to a geometric mean of 1, clamped to kLeastWeight..kMostWeight and
// rounded to three decimals.
//
// Shapes: [n_layers] each; a sensitivity of 0 or less counts as the least one above 0.
cache::StepWeights weights_of(const std::vector<double>& key_sensitivity,
                              const std::vector<double>& value_sensitivity);

inline constexpr double kLeastWeight = 0.5;
inline constexpr double kMostWeight = 2.0;

struct ProfileOptions;

// --- Factors of keys (docs/reference/codec.md §8, "Factors")

// What the factors of a model's keys follow from: sums over the tokens that were read, for each
// component of each kv head. [n_layers, n_kv_heads * head_dim]; empty for layers without full
// attention.
struct KeyMoments {
  std::vector<cache::HeadShape> shapes;     // [n_layers]
  std::vector<std::vector<double>> left;    // squares of what the mean of the first block leaves
  std::vector<std::vector<double>> weight;  // squares of the queries that look at a kv head
  // Components i and i + n_pairs rotate together; below 0: not known yet.
  std::int64_t n_pairs = -1;
  std::int64_t n_tokens = 0;
};

// Adds the keys of a cache, without those of its last block, if it is not full, and the first four
// tokens. The weights stay as they are: a cache has no queries.
//
// Errors: kInvalidArgument (fewer than 256 tokens; keys that are quantized; no layer with full
//         attention; other layers than before), those of the reader.
Result<void> add_keys(const cache::CacheReader& cache, KeyMoments& moments, unsigned n_threads);

// Adds the keys and queries of the model for one text, read from an empty cache.
//
// Progress: tokens read. Errors: those of the decoder and of add_keys().
Result<void> add_text(const model::Model& model, std::span<const std::int32_t> ids,
                      KeyMoments& moments, unsigned n_threads, const Progress& progress = {});

// What 4 bits without factors take from the keys of each layer: [n_layers], as Profile::key_losses.
// The error of a rotation is the same in all components of a head, so the share is .0095 times the
// mean of what the first block's mean leaves, by the median over pairs.
std::vector<double> key_losses(const KeyMoments& moments);

// The factors, as in cache::Calibration. c^4 is the weight of a pair of components by what the mean
// leaves of it, which makes the weighted error least; without queries all weights are equal.
std::vector<std::vector<std::int8_t>> key_factors(const KeyMoments& moments);

// A profile of only factors, for codes in memory: one pass over some windows of the text.
//
// Progress: tokens read. Errors: those of add_text(); kInvalidArgument for a text shorter than a
// window, or windows below 256 tokens.
Result<Profile> quick_profile(const model::Model& model, std::span<const std::int32_t> ids,
                              const ProfileOptions& options, const Progress& progress = {});

// --- Measurement of a model's profile on a sample of text
//
// The model reads some windows, spread over the sample: once with a dense cache; once for K and
// once for V of each layer, with only that tensor quantized; then once for each point of the curve,
// with all tensors quantized and their quantization steps weighted by the measured sensitivities.
//
// Spec: docs/reference/profile.md.

struct ProfileOptions {
  std::int64_t window = 2048;    // tokens
  std::int64_t max_windows = 4;  // spread over the text; 0: the whole text
  unsigned n_threads = 0;        // 0: all processors
};

// The tokens of `max_windows` equally spaced windows of `ids`, joined, and the last token of `ids`,
// which the last window predicts. All of `ids` if it has no more windows than that. Requires: a
// window of 1 or more.
std::vector<std::int32_t> spread_windows(std::span<const std::int32_t> ids, std::int64_t window,
                                         std::int64_t max_windows);

// The first measurements: [2 n_layers], keys before values. Each quantizes K or V of one layer and
// leaves everything else dense.
std::vector<cache::Configuration> sensitivity_configurations(std::int64_t n_layers);

// The second measurements: everything quantized with weighted steps, from finest to coarsest.
std::vector<cache::Configuration> curve_configurations(const cache::StepWeights& weights);

// Progress: tokens read, over all runs.
// Errors:   those of measure_predictions(); kCorrupt if the divergence does not grow with the
//           quantization step.
Result<Profile> measure_profile(const model::Model& model, std::span<const std::int32_t> ids,
                                const ProfileOptions& options, const Progress& progress = {});

// --- Search for the smallest configuration that is good enough for a model, or the best one that
// fits into a given size
//
// The search runs over a ladder of sizes. A rung is one size with a few ways to divide its bits
// between keys and values; the best of them counts, because models differ in which need more. More
// bits are assumed to be better, so few rungs need measuring: three per round, between the largest
// rung known to be too small and the smallest one known to be good enough. The three share a dense
// run.
//
// Spec: docs/explain/quality.md, "advise".

using Rung = std::vector<cache::Configuration>;  // of one size

// From 2 bits for keys and values to 8, smallest first.
std::vector<Rung> advice_ladder();

// Calls measure_predictions(); tests replace it.
using MeasureConfigurations =
    std::function<Result<PredictionCosts>(std::span<const cache::Configuration>)>;

struct Advice {
  PredictionCosts costs;              // everything measured, by size, the best of each size first
  std::optional<std::size_t> choice;  // index in costs.ways; absent if none is good enough
};

// The smallest configuration with a mean KL divergence of at most `max_kld`.
// Requires: a ladder with no empty rung.
// Errors:   those of `measure`.
Result<Advice> advise_by_divergence(std::span<const Rung> ladder, double max_kld,
                                    const MeasureConfigurations& measure);

// The best configuration of the first `n_fitting` rungs, which are those that fit. Measures the
// last of them, the one before it, which may turn out better, and the first one that does not fit,
// to show what more space would gain.
// Requires: a ladder with no empty rung, n_fitting of 1 to its size.
// Errors:   those of `measure`.
Result<Advice> advise_by_size(std::span<const Rung> ladder, std::size_t n_fitting,
                              const MeasureConfigurations& measure);

// The size of the keys and values of `n_tokens` tokens: quantized token blocks, the incomplete
// block and sliding windows that stay dense as f16. A file adds a few KB; its compression saves a
// few percent.
struct CacheBytes {
  std::int64_t n_tokens = 0;
  std::uint64_t bytes = 0;
  std::uint64_t dense_bytes = 0;  // the same in f16
};

// Errors: those of cache::convert(); the message names the configuration.
Result<CacheBytes> cache_bytes(const model::ModelConfig& config, const cache::Identity& identity,
                               const cache::Configuration& configuration, std::int64_t n_tokens);

// The report of the measurements, with the advice and the expected sizes.
// Shapes: sizes [ways][lengths].
Report advice_report(const Advice& advice, std::span<const std::vector<CacheBytes>> sizes);

}  // namespace tqcache::eval
