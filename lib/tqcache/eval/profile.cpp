#include "tqcache/eval/profile.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace tqcache::eval {
namespace {

Error mismatch(const std::string& what, const std::string& own, const std::string& of_cache) {
  return {ErrorCode::kMismatch, "the profile is of another model: " + what + " is " + own +
                                    ", that of the cache " + of_cache};
}

// The least that counts as a sensitivity: what is measured below may be rounding.
double least_above_0(const std::vector<double>& a, const std::vector<double>& b) {
  double least = std::numeric_limits<double>::infinity();
  for (const auto* list : {&a, &b}) {
    for (const double each : *list) {
      if (each > 0) least = std::min(least, each);
    }
  }
  return std::isfinite(least) ? least : 1;
}

// The place of y between two points of a line of logarithms.
double between(double x0, double x1, double y0, double y1, double y) {
  const double part = std::log(y / y0) / std::log(y1 / y0);
  return x0 * std::exp(part * std::log(x1 / x0));
}

}  // namespace

Result<void> check_profile(const Profile& profile, const cache::Identity& identity,
                           std::int64_t n_layers) {
  if (identity.weights_fingerprint == Sha256{}) {
    return Error{ErrorCode::kMismatch,
                 "a profile is of one model, and the cache does not say whose it is"};
  }
  if (identity.adapter_fingerprint) {
    return Error{ErrorCode::kMismatch, "the cache is of a model with an adapter, the profile not"};
  }
  if (profile.weights_fingerprint != identity.weights_fingerprint) {
    return mismatch("the weights fingerprint", to_hex(profile.weights_fingerprint),
                    to_hex(identity.weights_fingerprint));
  }
  if (profile.tokenizer_fingerprint != identity.tokenizer_fingerprint) {
    return mismatch("the tokenizer fingerprint", to_hex(profile.tokenizer_fingerprint),
                    to_hex(identity.tokenizer_fingerprint));
  }
  if (profile.n_layers() != n_layers) {
    return mismatch("the number of layers", std::to_string(profile.n_layers()),
                    std::to_string(n_layers));
  }
  return {};
}

Result<double> step_for_divergence(const Profile& profile, double kld) {
  const std::vector<CurvePoint>& curve = profile.curve;
  for (std::size_t i = 1; i < curve.size(); ++i) {
    const CurvePoint &a = curve[i - 1], &b = curve[i];
    if (!(kld >= a.kld && kld <= b.kld)) continue;
    return between(a.step, b.step, a.kld, b.kld, kld);
  }
  return Error{ErrorCode::kInvalidArgument,
               "a divergence of " + std::to_string(kld) + ": the profile knows " +
                   std::to_string(curve.front().kld) + " to " + std::to_string(curve.back().kld)};
}

std::optional<double> divergence_of_step(const Profile& profile, double step) {
  const std::vector<CurvePoint>& curve = profile.curve;
  for (std::size_t i = 1; i < curve.size(); ++i) {
    const CurvePoint &a = curve[i - 1], &b = curve[i];
    if (!(step >= a.step && step <= b.step)) continue;
    return between(a.kld, b.kld, a.step, b.step, step);
  }
  return std::nullopt;
}

cache::StepWeights weights_of(const std::vector<double>& key_sensitivity,
                              const std::vector<double>& value_sensitivity) {
  const double least = least_above_0(key_sensitivity, value_sensitivity);
  double logarithms = 0;
  for (const auto* list : {&key_sensitivity, &value_sensitivity}) {
    for (const double each : *list) logarithms += std::log(std::max(each, least));
  }
  const auto n = static_cast<double>(key_sensitivity.size() + value_sensitivity.size());
  const double mean = std::exp(logarithms / std::max(n, 1.0));
  const auto of_side = [&](const std::vector<double>& sensitivity) {
    std::vector<float> weights;
    for (const double each : sensitivity) {
      const double weight =
          std::clamp(std::sqrt(mean / std::max(each, least)), kLeastWeight, kMostWeight);
      weights.push_back(static_cast<float>(std::round(weight * 1000) / 1000));
    }
    return weights;
  };
  return {of_side(key_sensitivity), of_side(value_sensitivity)};
}

}  // namespace tqcache::eval
