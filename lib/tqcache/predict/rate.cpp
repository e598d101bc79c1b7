#include "tqcache/predict/rate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace tqcache::predict {
namespace {

// The squared error of a component that is large against the step, in squared steps: half the price
// of a bit in nats, .31 / (2 ln 2).
constexpr double kError = 0.2236;

// Of sensitivities: what is left of their ratio after maps have followed them (calibration).
constexpr double kRestOfSensitivity = 0.15;

constexpr double kFarBelow = 0.25;  // of the divergences of the curve's ends
constexpr double kFarAbove = 2;

// The sum over all components of all tensors, of f(squared deviation in steps), divided by their
// number.
template <class F>
double mean_of_components(const TensorProfile& tensor, double step, F f) {
  double sum = 0;
  for (const float each : tensor.deviation) {
    const double deviation = double{each} / step;
    sum += f(deviation * deviation);
  }
  return sum / static_cast<double>(tensor.deviation.size());
}

// The divergence if the sensitivities were exact and added up.
double divergence_by_sensitivity(const Profile& profile, double step) {
  const auto log_of = [](const TensorProfile& tensor) {
    const double sensitivity{tensor.sensitivity};
    return sensitivity > 1e-12 ? std::log(std::min(sensitivity, 1e12)) : std::log(1e-12);
  };
  double mean = 0;
  for (const TensorProfile& tensor : profile.tensors) {
    mean += log_of(tensor) / static_cast<double>(profile.tensors.size());
  }
  double sum = 0;
  for (const TensorProfile& tensor : profile.tensors) {
    const double error = mean_of_components(
        tensor, step, [](double squared) { return squared * kError / (squared + kError); });
    sum += std::exp(kRestOfSensitivity * (log_of(tensor) - mean)) * error;
  }
  return sum * step * step;
}

// The step between the least and the largest one at which `f`, which grows with the logarithm of
// the step, has the value.
template <class F>
double step_where(F f, double value) {
  double low = std::log(double{kMinStep}), high = std::log(double{kMaxStep});
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (f(std::exp(middle)) > value ? high : low) = middle;
  }
  return std::exp(low);
}

}  // namespace

double rate_of_step(const Profile& profile, double step) {
  double sum = 0;
  for (const TensorProfile& tensor : profile.tensors) {
    sum += mean_of_components(tensor, step,
                              [](double squared) { return 0.5 * std::log2(1 + squared / kError); });
  }
  return sum / static_cast<double>(profile.tensors.size());
}

double step_of_rate(const Profile& profile, double rate) {
  return step_where([&](double step) { return -rate_of_step(profile, step); }, -rate);
}

double expected_divergence(const Profile& profile, double step) {
  const double found = divergence_by_sensitivity(profile, step);
  const std::vector<CurvePoint>& curve = profile.curve;
  if (curve.empty()) return found;
  // What was measured differs by a factor, whose logarithm is linear between the points of the
  // curve, and constant beyond them.
  const auto factor_at = [&](const CurvePoint& point) {
    return std::log(double{point.kld} / divergence_by_sensitivity(profile, double{point.step}));
  };
  const auto above = std::ranges::upper_bound(
      curve, step, {}, [](const CurvePoint& point) { return double{point.step}; });
  if (above == curve.begin()) return found * std::exp(factor_at(curve.front()));
  if (above == curve.end()) return found * std::exp(factor_at(curve.back()));
  const CurvePoint& below = *std::prev(above);
  const double low = std::log(double{below.step}), high = std::log(double{above->step});
  const double share = (std::log(step) - low) / (high - low);
  return found * std::exp((1 - share) * factor_at(below) + share * factor_at(*above));
}

Result<double> step_of_divergence(const Profile& profile, double divergence) {
  double least = expected_divergence(profile, double{kMinStep});
  double most = expected_divergence(profile, double{kMaxStep});
  if (!profile.curve.empty()) {
    least = std::max(least, kFarBelow * double{profile.curve.front().kld});
    most = std::min(most, kFarAbove * double{profile.curve.back().kld});
  }
  if (!(divergence >= least && divergence <= most)) {
    return invalid(
        fmt::format("a divergence of {:.3g} nats: the profile tells steps from {:.3g} "
                    "to {:.3g}",
                    divergence, least, most));
  }
  return step_where([&](double step) { return expected_divergence(profile, step); }, divergence);
}

}  // namespace tqcache::predict
