#include "tqcache/sampler.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>
#include <string>

#include "tqcache/model/linear/kernel_loops.h"

namespace tqcache::model {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

float without_nan(float logit) { return std::isnan(logit) ? kMinusInfinity : logit; }

// The first of the largest logits.
std::size_t find_largest(std::span<const float> logits) {
  std::size_t best = 0;
  for (std::size_t i = 1; i < logits.size(); ++i) {
    if (without_nan(logits[i]) > without_nan(logits[best])) best = i;
  }
  return best;
}

Error out_of_range(const std::string& option, const std::string& range) {
  return {ErrorCode::kInvalidArgument, option + ": must be " + range};
}

}  // namespace

Result<void> validate(const SamplerOptions& options) {
  // Written so that NaN fails the check.
  if (!(options.temperature >= 0) || std::isinf(options.temperature)) {
    return out_of_range("temperature", "0 or above, and finite");
  }
  if (options.top_k < 0) return out_of_range("top-k", "0 or above");
  if (!(options.top_p > 0 && options.top_p <= 1)) {
    return out_of_range("top-p", "above 0 and at most 1");
  }
  if (!(options.min_p >= 0 && options.min_p <= 1)) return out_of_range("min-p", "from 0 to 1");
  if (!(options.repeat_penalty > 0) || std::isinf(options.repeat_penalty)) {
    return out_of_range("repeat-penalty", "above 0, and finite");
  }
  if (options.repeat_last_n < -1) return out_of_range("repeat-last-n", "-1 or above");
  for (const LogitBias& each : options.logit_bias) {
    if (each.id < 0) return out_of_range("logit-bias", "of a token id of 0 or above");
    if (std::isnan(each.bias) || each.bias == -kMinusInfinity) {
      return out_of_range("logit-bias", "a number, or minus infinity");
    }
  }
  return {};
}

Sampler::Sampler(const SamplerOptions& options) : options_(options), random_(options.seed) {}

bool Sampler::is_likelier(const Candidate& a, const Candidate& b) {
  return a.weight != b.weight ? a.weight > b.weight : a.id < b.id;
}

void Sampler::saw(std::span<const std::int32_t> ids) {
  if (options_.repeat_penalty == 1) return;
  seen_.insert(seen_.end(), ids.begin(), ids.end());
  if (options_.repeat_last_n < 0) return;
  const auto keep = static_cast<std::size_t>(options_.repeat_last_n);
  if (seen_.size() <= 2 * keep) return;  // so that each token is moved once, not on every call
  seen_.erase(seen_.begin(), seen_.end() - static_cast<std::ptrdiff_t>(keep));
}

std::span<const float> Sampler::adjusted(std::span<const float> logits) {
  if (options_.logit_bias.empty() && options_.repeat_penalty == 1) return logits;
  adjusted_.assign(logits.begin(), logits.end());
  for (const LogitBias& each : options_.logit_bias) {
    const auto id = static_cast<std::size_t>(each.id);
    if (id < adjusted_.size()) adjusted_[id] += each.bias;
  }
  penalize_seen();
  return adjusted_;
}

// Penalizes each token once, however often it was seen.
void Sampler::penalize_seen() {
  if (options_.repeat_penalty == 1) return;
  std::size_t n = seen_.size();
  if (options_.repeat_last_n >= 0)
    n = std::min(n, static_cast<std::size_t>(options_.repeat_last_n));
  std::vector<std::int32_t> ids(seen_.end() - static_cast<std::ptrdiff_t>(n), seen_.end());
  std::ranges::sort(ids);
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  for (const std::int32_t id : ids) {
    if (id < 0 || static_cast<std::size_t>(id) >= adjusted_.size()) continue;
    float& logit = adjusted_[static_cast<std::size_t>(id)];
    logit = logit > 0 ? logit / options_.repeat_penalty : logit * options_.repeat_penalty;
  }
}

std::int32_t Sampler::next(std::span<const float> logits) {
  assert(!logits.empty());
  logits = adjusted(logits);
  const std::size_t largest = find_largest(logits);
  if (options_.temperature == 0) return static_cast<std::int32_t>(largest);
  weigh(logits, without_nan(logits[largest]));
  keep_top_k();
  keep_top_p();
  keep_min_p();
  return draw();
}

// Excludes tokens of probability 0, so that they cannot be drawn.
void Sampler::weigh(std::span<const float> logits, float largest) {
  candidates_.clear();
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const float logit = without_nan(logits[i]);
    // Infinity minus infinity is NaN, but all infinite logits are equally likely.
    const float weight =
        logit == largest ? 1.0f : loops::exp_f32((logit - largest) / options_.temperature);
    if (weight > 0) candidates_.push_back({weight, static_cast<std::int32_t>(i)});
  }
}

void Sampler::keep_top_k() {
  const auto k = static_cast<std::uint64_t>(options_.top_k);
  if (k == 0 || k >= candidates_.size()) return;
  const auto end = candidates_.begin() + static_cast<std::ptrdiff_t>(k);
  std::partial_sort(candidates_.begin(), end, candidates_.end(), is_likelier);
  candidates_.erase(end, candidates_.end());
}

void Sampler::keep_top_p() {
  if (options_.top_p == 1) return;
  std::ranges::sort(candidates_, is_likelier);
  const double wanted = static_cast<double>(options_.top_p) * total_weight();
  double sum = 0;
  std::size_t n_kept = 0;
  while (n_kept < candidates_.size() && sum < wanted) {
    sum += static_cast<double>(candidates_[n_kept++].weight);
  }
  candidates_.erase(candidates_.begin() + static_cast<std::ptrdiff_t>(n_kept), candidates_.end());
}

// The largest weight is 1.
void Sampler::keep_min_p() {
  std::erase_if(candidates_, [&](const Candidate& c) { return c.weight < options_.min_p; });
}

std::int32_t Sampler::draw() {
  const double unit = static_cast<double>(random_() >> 11) * 0x1p-53;  // in [0, 1)
  double left = unit * total_weight();
  for (const Candidate& candidate : candidates_) {
    left -= static_cast<double>(candidate.weight);
    if (left < 0) return candidate.id;
  }
  return candidates_.back().id;  // rounding may leave a remainder after the last one
}

double Sampler::total_weight() const {
  double sum = 0;
  for (const Candidate& candidate : candidates_) sum += static_cast<double>(candidate.weight);
  return sum;
}

}  // namespace tqcache::model
