#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <string>
#include <utility>

#include "tqcache/base/integers.h"
#include "tqcache/eval.h"
#include "tqcache/eval/total_progress.h"

namespace tqcache::eval {
namespace {

using cache::Configuration;

// About 3 bits per value, the middle of the range of archives.
constexpr float kReferenceStep = 0.25f;

// About 4.4 to 1.4 bits per value.
constexpr std::array<float, 7> kCurveSteps = {0.09f, 0.125f, 0.18f, 0.25f, 0.36f, 0.5f, 0.72f};

// The default of the archive tier.
constexpr std::int64_t kSinks = 4;

// As archives are quantized (format::choose_step()): one block has too few vectors for transforms.
cache::ConvertOptions quantized(float step) {
  cache::TensorPlan plan;
  plan.codec = {.mode = codec::Mode::kTrellis, .step = step};
  plan.fit_transforms = true;
  plan.n_sinks = kSinks;
  return {.keys = plan, .values = plan, .fit = cache::Fit::kPrompt};
}

Configuration named(cache::ConvertOptions options) {
  std::string name = cache::configuration_text(options);
  return {std::move(name), std::move(options)};
}

// Rounded to five digits; further digits depend on the CPU.
double rounded(double x) {
  std::array<char, 32> digits;
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), x,
                                 std::chars_format::scientific, 4);
  std::from_chars(digits.data(), end.ptr, x);
  return x;
}

void take_sensitivity(const PredictionCosts& costs, Profile& profile) {
  for (std::size_t i = 0; i < costs.ways.size(); ++i) {
    const double kld = rounded(std::max(costs.ways[i].kld_mean, 0.0));
    (i % 2 == 0 ? profile.key_sensitivity : profile.value_sensitivity).push_back(kld);
  }
  profile.weights = weights_of(profile.key_sensitivity, profile.value_sensitivity);
}

Result<void> take_curve(const PredictionCosts& costs, Profile& profile) {
  std::vector<CurvePoint> measured;
  for (std::size_t i = 0; i < costs.ways.size(); ++i) {
    measured.push_back({double{kCurveSteps[i]}, costs.ways[i].kld_mean});
  }
  profile.curve = ascending_curve(measured);
  if (profile.curve.size() < 2) {
    return Error{ErrorCode::kCorrupt,
                 "the divergence of the model's predictions does not grow with the error of its "
                 "keys and values; read more of the text (--max-windows, --window)"};
  }
  for (CurvePoint& point : profile.curve) {
    point = {rounded(point.step), rounded(point.kld)};
  }
  return {};
}

bool has_full_attention(const model::ModelConfig& config) {
  return std::ranges::any_of(config.layers, [](const model::LayerConfig& layer) {
    return layer.kind == model::LayerKind::kAttention && layer.window == 0;
  });
}

Profile profile_of(const model::Model& model) {
  Profile profile;
  profile.architecture = model.identity.architecture;
  profile.model_name = model.identity.model_name.substr(0, 128);
  profile.weights_fingerprint = model.identity.weights_fingerprint;
  profile.tokenizer_fingerprint = model.identity.tokenizer_fingerprint;
  profile.n_sinks = kSinks;
  return profile;
}

}  // namespace

std::vector<std::int32_t> spread_windows(std::span<const std::int32_t> ids, std::int64_t window,
                                         std::int64_t max_windows) {
  const std::int64_t n_all = (std::ssize(ids) - 1) / window;
  if (max_windows <= 0 || n_all <= max_windows) return {ids.begin(), ids.end()};
  std::vector<std::int32_t> taken;
  for (std::int64_t i = 0; i < max_windows; ++i) {
    // The window in the middle of each of `max_windows` equal parts.
    const std::int64_t number = (2 * i + 1) * n_all / (2 * max_windows);
    const auto part = ids.subspan(to_size(number * window), to_size(window));
    taken.insert(taken.end(), part.begin(), part.end());
  }
  taken.push_back(ids.back());
  return taken;
}

std::vector<Configuration> sensitivity_configurations(std::int64_t n_layers) {
  std::vector<Configuration> all;
  for (std::size_t layer = 0; layer < to_size(n_layers); ++layer) {
    for (const bool of_keys : {true, false}) {
      cache::ConvertOptions options = quantized(kReferenceStep);
      (of_keys ? options.values : options.keys).dense = true;
      std::vector<float>& weights = of_keys ? options.weights.keys : options.weights.values;
      weights.assign(to_size(n_layers), 0);
      weights[layer] = 1;
      all.push_back(named(std::move(options)));
    }
  }
  return all;
}

std::vector<Configuration> curve_configurations(const cache::StepWeights& weights) {
  std::vector<Configuration> all;
  for (const float step : kCurveSteps) {
    cache::ConvertOptions options = quantized(step);
    options.weights = weights;
    all.push_back(named(std::move(options)));
  }
  return all;
}

Result<Profile> quick_profile(const model::Model& model, std::span<const std::int32_t> ids,
                              const ProfileOptions& options, const Progress& progress) {
  if (options.window < cache::kTokenBlock) {
    return invalid(fmt::format("a window of {} tokens: keys are quantized in blocks of {}",
                               options.window, cache::kTokenBlock));
  }
  if (std::ssize(ids) <= options.window) {
    return invalid(fmt::format("a text of {} tokens is shorter than a window of {} and one more",
                               ids.size(), options.window));
  }
  const auto begin_token = begin_token_of(model.tokenizer, ids);
  std::vector<std::int32_t> taken = spread_windows(ids, options.window, options.max_windows);
  const std::size_t window = to_size(options.window);
  const std::size_t n_windows = (taken.size() - 1) / window;
  TotalProgress runs(progress, n_windows * window);
  KeyMoments moments;
  for (std::size_t i = 0; i < n_windows; ++i) {
    const auto part = std::span(taken).subspan(i * window, window);
    if (begin_token) part[0] = *begin_token;
    TQC_TRY(add_text(model, part, moments, options.n_threads, runs.next_run()));
    runs.finish_run(window);
    if (!runs.report(0)) return interrupted_error();
  }
  Profile profile = profile_of(model);
  profile.window = options.window;
  profile.n_windows = static_cast<std::int64_t>(n_windows);
  profile.key_factors = key_factors(moments);
  profile.key_losses = key_losses(moments);
  return profile;
}

Result<Profile> measure_profile(const model::Model& model, std::span<const std::int32_t> ids,
                                const ProfileOptions& options, const Progress& progress) {
  const PredictionOptions measure{.window = options.window,
                                  .begin_token = begin_token_of(model.tokenizer, ids),
                                  .n_threads = options.n_threads};
  const auto taken = options.window < 1 ? std::vector<std::int32_t>(ids.begin(), ids.end())
                                        : spread_windows(ids, options.window, options.max_windows);
  const auto tensors = sensitivity_configurations(model.config.n_cache_layers());
  const auto n_read = taken.empty() ? 0 : taken.size() - 1;
  // Windows without a full block, and models without full attention, have no factors.
  const bool has_factors = options.window >= cache::kTokenBlock && has_full_attention(model.config);
  const std::uint64_t total =
      n_read * (tensors.size() + kCurveSteps.size() + 2 + (has_factors ? 1 : 0));
  TotalProgress runs(progress, total);
  Profile profile = profile_of(model);
  profile.step = rounded(double{kReferenceStep});
  TQC_TRY_ASSIGN(const PredictionCosts alone,
                 measure_predictions(model, taken, tensors, measure, runs.next_run()));
  runs.finish_run(n_read * (tensors.size() + 1));
  take_sensitivity(alone, profile);
  profile.window = options.window;
  profile.n_windows = alone.n_windows;
  const auto curve = curve_configurations(profile.weights);
  TQC_TRY_ASSIGN(const PredictionCosts together,
                 measure_predictions(model, taken, curve, measure, runs.next_run()));
  TQC_TRY(take_curve(together, profile));
  runs.finish_run(n_read * (curve.size() + 1));
  if (!has_factors) return profile;
  TQC_TRY_ASSIGN(Profile quick, quick_profile(model, ids, options, runs.next_run()));
  profile.key_factors = std::move(quick.key_factors);
  profile.key_losses = std::move(quick.key_losses);
  return profile;
}

}  // namespace tqcache::eval
