#include "cli/archive_goal.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <limits>
#include <utility>
#include <variant>
#include <vector>

#include "cli/common_flags.h"
#include "cli/terminal.h"
#include "tqcache/error.h"
#include "tqcache/file.h"
#include "tqcache/format/predicted_blocks.h"
#include "tqcache/predict/predictor.h"
#include "tqcache/predict/rate.h"

namespace tqcache::cli {
namespace {

constexpr double kDefaultArchiveBits = 3.0;
constexpr double kDefaultPredictedBits = 1.5;

// The step of an archive that falls back from prediction, where the bits asked for are out of
// reach: about 3 bits per value.
constexpr float kUsualArchiveStep = 0.25f;

// A profile of any version, or a folder that is read when the cache's model is known.
Result<void> read_profile(const Console& console, const std::string& path, ArchiveGoal& goal) {
  if (std::filesystem::is_directory(path)) {
    goal.profile_folder = path;
    return {};
  }
  TQC_TRY_ASSIGN(const std::unique_ptr<ByteSource> source, open_file(path));
  std::array<std::byte, 20> start{};
  const std::size_t n_read = std::min<std::size_t>(start.size(), source->size());
  TQC_TRY(source->read_at(0, std::span(start).first(n_read)));
  if (!predict::looks_like_profile(start)) {
    TQC_TRY_ASSIGN(const Bytes bytes, read_file(path, eval::kMaxProfileBytes));
    TQC_TRY_ASSIGN(goal.profile, eval::parse_profile(bytes));
    if (goal.profile->is_measured()) return {};
    return invalid(
        "a profile of factors of keys, for caches in memory; archives need one that tqcache "
        "profile made without --quick and --from");
  }
  TQC_TRY_ASSIGN(goal.predictor, predict::read_profile(path, console.access.memory));
  predict::Profiles known = console.access.profiles;  // the source may need the same one
  known.add(goal.predictor);
  return {};
}

// Bits per value of the whole file, such as 2.4.
Result<std::optional<double>> archive_bits(const CodecFlags& codec) {
  if (!codec.bits) return std::optional<double>();
  double bits = 0;
  const char* const last = codec.bits->data() + codec.bits->size();
  const auto [end, error] = std::from_chars(codec.bits->data(), last, bits);
  if (error != std::errc{} || end != last) {
    return usage_error(fmt::format(
        "--bits: {} is not the number of bits of an archive, such as 2.4", *codec.bits));
  }
  return std::optional(bits);
}

// The profiles that the cache can be predicted with. A profile that was named has to fit; of a
// folder those that fit count.
Result<std::vector<std::shared_ptr<const predict::Predictor>>> fitting_predictors(
    const Console& console, const cache::CacheDesc& cache, const ArchiveGoal& goal) {
  std::vector<std::shared_ptr<const predict::Predictor>> all, fitting;
  if (goal.predictor != nullptr) all.push_back(goal.predictor);
  if (!goal.profile_folder.empty()) {
    TQC_TRY_ASSIGN(
        all, predict::profiles_of_model(goal.profile_folder, cache.identity.weights_fingerprint,
                                        console.access.memory));
  }
  std::string why = "no profile in the folder belongs to the model of the cache";
  for (const auto& each : all) {
    const auto fits = format::check_predictable(cache, each->profile());
    if (fits) fitting.push_back(each);
    if (fits) continue;
    if (fits.error().code != ErrorCode::kUnsupported && goal.predictor != nullptr) {
      return fits.error();
    }
    why = fits.error().message;
  }
  if (fitting.empty()) {
    const std::string bits = goal.predicted_kld
                                 ? fmt::format(" with {} bits per value", *goal.target.bits)
                                 : std::string();
    note(console, fmt::format("{}: an archive without prediction is made{}", why, bits));
  }
  return fitting;
}

// Chooses the profile and the step of a predicted archive: the least divergence to expect at the
// bits that were asked for, or the fewest bits at the divergence.
Result<void> plan_prediction(const Console& console, const cache::CacheReader& source,
                             const ArchiveGoal& goal, ArchivePlan& plan) {
  TQC_TRY_ASSIGN(const auto predictors, fitting_predictors(console, source.description(), goal));
  const std::int64_t n_sinks = std::max(plan.options.keys.n_sinks, plan.options.values.n_sinks);
  const unsigned n_threads = plan.options.n_threads;
  double least = std::numeric_limits<double>::infinity();
  for (const auto& each : predictors) {
    float step = 0;
    double cost = 0;
    if (goal.predicted_kld) {
      TQC_TRY_ASSIGN(const double found,
                     predict::step_of_divergence(each->profile(), *goal.predicted_kld));
      step = static_cast<float>(found);
      if (predictors.size() > 1) {
        TQC_TRY_ASSIGN(cost,
                       format::predicted_bits_of_step(source, each, n_sinks, step, n_threads));
      }
    } else {
      TQC_TRY_ASSIGN(
          const format::PredictedStep found,
          format::choose_predicted_step(source, each, n_sinks, goal.predicted_bits, n_threads));
      step = found.step;
      cost = predict::expected_divergence(each->profile(), double{step});
    }
    if (cost >= least) continue;
    least = cost;
    plan.predictor = each;
    plan.predicted_step = step;
    plan.expected_kld = predict::expected_divergence(each->profile(), double{step});
  }
  if (plan.predictor == nullptr) return {};
  TQC_TRY_ASSIGN(plan.predicted, format::predict_cache(cache::borrow(source), plan.predictor,
                                                       plan.predicted_step, n_sinks));
  return {};
}

// What a configuration has besides sink tokens and centering follows from the goal.
Result<void> check_settings(const cache::ConvertOptions& options) {
  const auto is_trellis = [](const cache::TensorPlan& plan) {
    return !plan.dense && plan.codec.mode == codec::Mode::kTrellis && !plan.fit_transforms;
  };
  if (is_trellis(options.keys) && is_trellis(options.values) && options.boundary.n == 0 &&
      options.windows == cache::WindowMode::kAsTheyAre && options.fit == cache::Fit::kFirstBlock &&
      options.weights == cache::StepWeights{} && options.calibration == nullptr) {
    return {};
  }
  return usage_error(
      "--config archive takes sink= and center= alone: the rest follows from --bits");
}

bool has_dense_tensors(const cache::CacheDesc& cache) {
  return std::ranges::any_of(cache.layers, [](const cache::LayerDesc& layer) {
    const auto* attention = std::get_if<cache::AttentionDesc>(&layer);
    return attention != nullptr && (!attention->k.quant || !attention->v.quant);
  });
}

}  // namespace

void add_archive_flags(FlagSet& app, ArchiveFlags& flags) {
  app.add("--target-mse", flags.target_mse,
          "With --config archive: mean squared error of a vector, relative to its squared length")
      ->type_name("E");
  app.add("--target-kld", flags.target_kld,
          "With --config archive and --profile: mean KL divergence to expect, in nats")
      ->type_name("NATS");
}

Result<ArchiveGoal> archive_goal(const Console& console, const CodecFlags& codec,
                                 const ArchiveFlags& flags, cache::ConvertOptions& options) {
  TQC_TRY(check_settings(options));
  if (flags.target_kld && codec.profile.empty()) {
    return usage_error("--target-kld needs a --profile, made by tqcache profile");
  }
  if (int{codec.bits.has_value()} + int{flags.target_mse.has_value()} +
          int{flags.target_kld.has_value()} >
      1) {
    return usage_error("--bits, --target-mse and --target-kld exclude each other");
  }
  // K or V that is already quantized is kept unless another size is asked for.
  options.keys.keep_packed = options.values.keep_packed =
      !codec.bits && !flags.target_mse && !flags.target_kld;
  TQC_TRY_ASSIGN(const std::optional<double> bits, archive_bits(codec));
  ArchiveGoal goal;
  if (!codec.profile.empty()) {
    TQC_TRY(in_file(codec.profile, read_profile(console, codec.profile, goal)));
  }
  if (goal.may_predict()) {
    if (flags.target_mse) {
      return usage_error("a profile of version 2 reaches --bits or --target-kld, no --target-mse");
    }
    goal.predicted_kld = flags.target_kld;
    if (flags.target_kld) {
      if (!(*flags.target_kld > 0)) return usage_error("--target-kld: not above 0");
      goal.target.bits = kDefaultArchiveBits;
      return goal;
    }
    goal.predicted_bits = bits.value_or(kDefaultPredictedBits);
    if (!(goal.predicted_bits >= 0.1 && goal.predicted_bits <= 8)) {
      return usage_error("--bits: not between 0.1 and 8");
    }
    // For what cannot be predicted.
    goal.target.bits = std::max(goal.predicted_bits, format::kMinArchiveBits);
    return goal;
  }
  if (flags.target_kld) {
    TQC_TRY_ASSIGN(goal.target.step, in_file(codec.profile, eval::step_for_divergence(
                                                                *goal.profile, *flags.target_kld)));
  } else if (flags.target_mse) {
    goal.target.mse = flags.target_mse;
  } else {
    goal.target.bits = bits.value_or(kDefaultArchiveBits);
  }
  return goal;
}

std::string ArchivePlan::text() const {
  return predictor == nullptr ? cache::configuration_text(options)
                              : fmt::format("predicted:{}", predicted_step);
}

Result<ArchivePlan> plan_archive(const Console& console, const cache::CacheReader& source,
                                 const ArchiveGoal& goal, const cache::ConvertOptions& options) {
  ArchivePlan plan{options, std::nullopt};
  if (goal.may_predict()) TQC_TRY(plan_prediction(console, source, goal, plan));
  if (plan.predictor != nullptr) return plan;
  ProgressBar bar(console, "measuring", Unit::kShare);
  const cache::CacheDesc& cache = source.description();
  if (goal.profile) {
    TQC_TRY(eval::check_profile(*goal.profile, cache.identity, std::ssize(cache.layers)));
    plan.options.weights = goal.profile->weights;
  }
  auto chosen = format::choose_step(source, plan.options, goal.target, bar.callback());
  if (!chosen && chosen.error().code == ErrorCode::kInvalidArgument && goal.may_predict()) {
    // The bits were meant for a predicted archive.
    note(console, fmt::format("{}: the step of about 3 bits is used", chosen.error().message));
    format::ArchiveTarget usual;
    usual.step = kUsualArchiveStep;
    chosen = format::choose_step(source, plan.options, usual, bar.callback());
  }
  TQC_TRY_ASSIGN(plan.options, std::move(chosen));
  if (goal.profile && has_dense_tensors(cache)) {
    plan.expected_kld =
        eval::divergence_of_step(*goal.profile, double{plan.options.keys.codec.step});
  }
  return plan;
}

}  // namespace tqcache::cli
