#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "tqcache/base/json.h"
#include "tqcache/cache/profile_text.h"
#include "tqcache/error.h"
#include "tqcache/eval.h"

namespace tqcache::eval {
namespace {

Error mismatch(const std::string& what, const std::string& own, const std::string& of_cache) {
  return {ErrorCode::kMismatch, "the profile belongs to another model: " + what + " is " + own +
                                    ", that of the cache is " + of_cache};
}

// The least sensitivity above 0. Measurements below it are rounding errors.
double least_above_0(const std::vector<double>& a, const std::vector<double>& b) {
  double least = std::numeric_limits<double>::infinity();
  for (const auto* list : {&a, &b}) {
    for (const double each : *list) {
      if (each > 0) least = std::min(least, each);
    }
  }
  return std::isfinite(least) ? least : 1;
}

// Linear interpolation between two points in log-log space.
double between(double x0, double x1, double y0, double y1, double y) {
  const double part = std::log(y / y0) / std::log(y1 / y0);
  return x0 * std::exp(part * std::log(x1 / x0));
}

}  // namespace

Result<void> check_profile(const Profile& profile, const cache::Identity& identity,
                           std::int64_t n_layers) {
  if (identity.weights_fingerprint == Sha256{}) {
    return Error{ErrorCode::kMismatch,
                 "the cache does not name its model, so no profile can be matched to it"};
  }
  if (identity.adapter_fingerprint) {
    return Error{ErrorCode::kMismatch,
                 "the cache belongs to a model with an adapter, the profile to one without"};
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

std::vector<CurvePoint> ascending_curve(std::span<const CurvePoint> measured) {
  struct Pool {
    double log_step = 0, log_kld = 0, n = 0;  // sums
    CurvePoint point() const { return {std::exp(log_step / n), std::exp(log_kld / n)}; }
  };
  // A profile keeps five digits, so a tenth of a per mille is no ascent.
  constexpr double kAscent = 1.0001;
  std::vector<Pool> pools;
  for (const CurvePoint& each : measured) {
    pools.push_back({std::log(each.step), std::log(std::max(each.kld, 1e-12)), 1});
    while (pools.size() > 1 &&
           pools.back().point().kld < kAscent * pools[pools.size() - 2].point().kld) {
      const Pool last = pools.back();
      pools.pop_back();
      Pool& pool = pools.back();
      pool = {pool.log_step + last.log_step, pool.log_kld + last.log_kld, pool.n + last.n};
    }
  }
  std::vector<CurvePoint> curve;
  for (const Pool& pool : pools) curve.push_back(pool.point());
  return curve;
}

Result<double> step_for_divergence(const Profile& profile, double kld) {
  const std::vector<CurvePoint>& curve = profile.curve;
  for (std::size_t i = 1; i < curve.size(); ++i) {
    const CurvePoint &a = curve[i - 1], &b = curve[i];
    if (!(kld >= a.kld && kld <= b.kld)) continue;
    return between(a.step, b.step, a.kld, b.kld, kld);
  }
  return invalid(fmt::format("a divergence of {:f}: the profile knows {:f} to {:f}", kld,
                             curve.front().kld, curve.back().kld));
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
  const auto of_tensor = [&](const std::vector<double>& sensitivity) {
    std::vector<float> weights;
    for (const double each : sensitivity) {
      const double weight =
          std::clamp(std::sqrt(mean / std::max(each, least)), kLeastWeight, kMostWeight);
      weights.push_back(static_cast<float>(std::round(weight * 1000) / 1000));
    }
    return weights;
  };
  return {of_tensor(key_sensitivity), of_tensor(value_sensitivity)};
}

namespace {

constexpr std::size_t kMaxNameBytes = 256;
constexpr double kMostLoss = 1e6;
constexpr double kMostDivergence = 1000;  // nats: above that of any vocabulary

// --- writing

// A weight is rounded to three decimals; this removes the further digits of its f64.
double rounded(float weight) { return std::round(double{weight} * 1000) / 1000; }

Json weights_json(const std::vector<float>& weights) {
  Json list = Json::array();
  for (const float each : weights) list.push_back(rounded(each));
  return list;
}

Json body_of(const Profile& profile) {
  Json body;
  body["architecture"] = profile.architecture;
  body["model_name"] = profile.model_name;
  body["weights_fingerprint"] = to_hex(profile.weights_fingerprint);
  body["tokenizer_fingerprint"] = to_hex(profile.tokenizer_fingerprint);
  body["window"] = profile.window;
  body["windows"] = profile.n_windows;
  body["sink_tokens"] = profile.n_sinks;
  body["layers"] = profile.n_layers();
  if (!profile.key_factors.empty()) {
    body["key_factors"] = cache::factors_json(profile.key_factors);
  }
  if (!profile.key_losses.empty()) body["key_losses"] = profile.key_losses;
  if (!profile.is_measured()) return body;
  body["step"] = profile.step;
  body["key_sensitivity"] = profile.key_sensitivity;
  body["value_sensitivity"] = profile.value_sensitivity;
  body["key_weights"] = weights_json(profile.weights.keys);
  body["value_weights"] = weights_json(profile.weights.values);
  body["curve"] = Json::array();
  for (const CurvePoint& point : profile.curve) body["curve"].push_back({point.step, point.kld});
  return body;
}

// --- reading

Result<std::string> get_name(const Json& body, const char* key) {
  TQC_TRY_ASSIGN(std::string text, get_string(body, key));
  if (text.size() > kMaxNameBytes) return corrupt(std::string(key) + ": too long");
  return text;
}

Result<std::int64_t> get_count(const Json& body, const char* key, std::int64_t low,
                               std::int64_t high) {
  TQC_TRY_ASSIGN(const std::int64_t count, get_int(body, key));
  if (count < low || count > high) return corrupt(std::string(key) + ": out of range");
  return count;
}

// A number in [low, high].
Result<double> as_number(const Json& value, const char* key, double low, double high) {
  if (!value.is_number()) return corrupt(std::string(key) + ": not a number");
  const double number = value.get<double>();
  if (!(number >= low && number <= high)) return corrupt(std::string(key) + ": out of range");
  return number;
}

Result<std::vector<double>> get_numbers(const Json& body, const char* key, std::int64_t n,
                                        double low, double high) {
  TQC_TRY_ASSIGN(const Json* list, get_array(body, key));
  if (std::cmp_not_equal(list->size(), n)) {
    return corrupt(std::string(key) + ": not one number per layer");
  }
  std::vector<double> numbers;
  for (const Json& each : *list) {
    TQC_TRY_ASSIGN(numbers.emplace_back(), as_number(each, key, low, high));
  }
  return numbers;
}

Result<std::vector<float>> get_weights(const Json& body, const char* key, std::int64_t n) {
  TQC_TRY_ASSIGN(const auto numbers, get_numbers(body, key, n, double{cache::kMinStepWeight},
                                                 double{cache::kMaxStepWeight}));
  std::vector<float> weights;
  for (const double each : numbers) weights.push_back(static_cast<float>(each));
  return weights;
}

Result<CurvePoint> read_point(const Json& pair) {
  if (!pair.is_array() || pair.size() != 2) return corrupt("curve: not a list of pairs");
  CurvePoint point;
  TQC_TRY_ASSIGN(point.step,
                 as_number(pair[0], "curve", double{codec::kMinStep}, double{codec::kMaxStep}));
  TQC_TRY_ASSIGN(point.kld, as_number(pair[1], "curve", 0, kMostDivergence));
  return point;
}

Result<std::vector<CurvePoint>> get_curve(const Json& body) {
  TQC_TRY_ASSIGN(const Json* list, get_array(body, "curve"));
  if (list->size() < 2 || list->size() > kMaxCurvePoints)
    return corrupt("curve: not 2 to 64 points");
  std::vector<CurvePoint> curve;
  for (const Json& each : *list) {
    TQC_TRY_ASSIGN(const CurvePoint point, read_point(each));
    const bool ascends =
        curve.empty() || (point.step > curve.back().step && point.kld > curve.back().kld);
    if (!ascends || point.kld == 0) return corrupt("curve: does not ascend from above 0");
    curve.push_back(point);
  }
  return curve;
}

Result<void> read_sample(const Json& body, Profile& profile) {
  TQC_TRY_ASSIGN(profile.window, get_count(body, "window", 1, cache::kMaxTokens));
  TQC_TRY_ASSIGN(profile.n_windows, get_count(body, "windows", 1, cache::kMaxTokens));
  TQC_TRY_ASSIGN(profile.n_sinks, get_count(body, "sink_tokens", 0, cache::kTokenBlock));
  return {};
}

Result<void> read_measured(const Json& body, Profile& profile) {
  TQC_TRY_ASSIGN(const std::int64_t n, get_count(body, "layers", 1, cache::kMaxLayers));
  TQC_TRY_ASSIGN(profile.step, get_number_or(body, "step", 0));
  if (profile.step < codec::kMinStep || profile.step > codec::kMaxStep) {
    return corrupt("step: missing or out of range");
  }
  TQC_TRY_ASSIGN(profile.key_sensitivity,
                 get_numbers(body, "key_sensitivity", n, 0, kMostDivergence));
  TQC_TRY_ASSIGN(profile.value_sensitivity,
                 get_numbers(body, "value_sensitivity", n, 0, kMostDivergence));
  TQC_TRY_ASSIGN(profile.weights.keys, get_weights(body, "key_weights", n));
  TQC_TRY_ASSIGN(profile.weights.values, get_weights(body, "value_weights", n));
  TQC_TRY_ASSIGN(profile.curve, get_curve(body));
  return {};
}

}  // namespace

Bytes profile_bytes(const Profile& profile) {
  return cache::profile_text(profile.is_measured() ? 1 : 3, body_of(profile));
}

Result<Profile> parse_profile(ByteView file) {
  TQC_TRY_ASSIGN(const cache::ProfileText text, cache::parse_profile_text(file));
  const Json& body = text.body;
  Profile profile;
  TQC_TRY_ASSIGN(profile.architecture, get_name(body, "architecture"));
  TQC_TRY_ASSIGN(profile.model_name, get_name(body, "model_name"));
  TQC_TRY_ASSIGN(cache::Calibration calibration, cache::calibration_of(text));
  profile.weights_fingerprint = calibration.weights_fingerprint;
  profile.tokenizer_fingerprint = calibration.tokenizer_fingerprint;
  profile.key_factors = std::move(calibration.key_factors);
  if (find_value(body, "key_losses") != nullptr) {
    TQC_TRY_ASSIGN(profile.key_losses,
                   get_numbers(body, "key_losses", std::ssize(profile.key_factors), 0, kMostLoss));
  }
  TQC_TRY(read_sample(body, profile));
  if (text.version == 1) TQC_TRY(read_measured(body, profile));
  return profile;
}

}  // namespace tqcache::eval
