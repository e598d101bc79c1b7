#include "tqcache/model/attention/rope_table.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <numbers>

namespace tqcache::model {

void RopeTable::set_positions(std::int64_t first, std::int64_t n) {
  const std::int64_t half = rope_.n_dims / 2;
  cos_.resize(static_cast<std::size_t>(n * half));
  sin_.resize(cos_.size());
  for (std::int64_t i = 0; i < half; ++i) {
    const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(rope_.n_dims);
    double frequency = std::pow(rope_.base, exponent);  // radians per token
    if (!rope_.factors.empty()) frequency /= rope_.factors[static_cast<std::size_t>(i)];
    for (std::int64_t token = 0; token < n; ++token) {
      const double angle = static_cast<double>(first + token) * frequency;
      const auto at = static_cast<std::size_t>(token * half + i);
      cos_[at] = magnitude_ * static_cast<float>(std::cos(angle));
      sin_[at] = magnitude_ * static_cast<float>(std::sin(angle));
    }
  }
}

void RopeTable::rotate(std::int64_t index, std::span<float> x) const {
  if (rope_.style == cache::RopeStyle::kNone) return;
  const auto half = static_cast<std::size_t>(rope_.n_dims / 2);
  const float* cos = cos_.data() + static_cast<std::size_t>(index) * half;
  const float* sin = sin_.data() + static_cast<std::size_t>(index) * half;
  for (std::size_t i = 0; i < half; ++i) {
    const float a = x[i];
    const float b = x[i + half];
    x[i] = a * cos[i] - b * sin[i];
    x[i + half] = b * cos[i] + a * sin[i];
  }
}

void RopeTable::rotate_pairs(std::int64_t index, std::span<float> x) const {
  const auto half = static_cast<std::size_t>(rope_.n_dims / 2);
  const float* cos = cos_.data() + static_cast<std::size_t>(index) * half;
  const float* sin = sin_.data() + static_cast<std::size_t>(index) * half;
  for (std::size_t i = 0; i < half; ++i) {
    const float a = x[2 * i];
    const float b = x[2 * i + 1];
    x[2 * i] = a * cos[i] - b * sin[i];
    x[2 * i + 1] = b * cos[i] + a * sin[i];
  }
}

namespace {

// The factor that slows down a pair which completes `cycles` cycles over the original context.
double factor_of(double cycles, const Llama3Scaling& scaling) {
  if (cycles > scaling.high_frequency) return 1;
  if (cycles < scaling.low_frequency) return scaling.factor;
  const double share =
      (cycles - scaling.low_frequency) / (scaling.high_frequency - scaling.low_frequency);
  return 1 / ((1 - share) / scaling.factor + share);
}

}  // namespace

bool is_valid(const Llama3Scaling& scaling) {
  // Written so that NaN fails the check.
  return scaling.factor > 0 && scaling.low_frequency > 0 &&
         scaling.high_frequency > scaling.low_frequency && scaling.original_context > 0 &&
         std::isfinite(scaling.factor) && std::isfinite(scaling.high_frequency) &&
         std::isfinite(scaling.original_context);
}

std::vector<float> llama3_factors(const cache::Rope& rope, const Llama3Scaling& scaling) {
  assert(is_valid(scaling));
  cache::Rope plain = rope;
  plain.factors.clear();
  std::vector<float> factors;
  for (const double cycles_per_token : cache::rope_frequencies(plain)) {
    factors.push_back(
        static_cast<float>(factor_of(cycles_per_token * scaling.original_context, scaling)));
  }
  return factors;
}

bool is_valid(const YarnScaling& scaling, const cache::Rope& rope) {
  for (const double number :
       {scaling.factor, scaling.beta_fast, scaling.beta_slow, scaling.original_context}) {
    if (!(number > 0 && std::isfinite(number))) return false;
  }
  return rope.base > 1 && std::isfinite(rope.base) && rope.n_dims >= 2;
}

std::vector<float> yarn_factors(const cache::Rope& rope, const YarnScaling& scaling) {
  assert(is_valid(scaling, rope));
  const auto n_dims = static_cast<double>(rope.n_dims);
  // The pair, not rounded, that rotates this often over the original context.
  const auto pair_of = [&](double cycles) {
    return n_dims * std::log(scaling.original_context / (cycles * 2 * std::numbers::pi)) /
           (2 * std::log(rope.base));
  };
  double first = pair_of(scaling.beta_fast);
  double last = pair_of(scaling.beta_slow);
  if (scaling.whole_pairs) {
    first = std::floor(first);
    last = std::ceil(last);
  }
  first = std::max(first, 0.0);
  last = std::min(last, n_dims - 1);
  if (first == last) last += 0.001;
  std::vector<float> factors;
  for (std::int64_t pair = 0; pair < rope.n_dims / 2; ++pair) {
    const double slow = std::clamp((static_cast<double>(pair) - first) / (last - first), 0.0, 1.0);
    factors.push_back(static_cast<float>(1 / (slow / scaling.factor + (1 - slow))));
  }
  return factors;
}

double yarn_magnitude(double factor, double weight) {
  return factor <= 1 ? 1 : 0.1 * weight * std::log(factor) + 1;
}

float longrope_magnitude(double stretch, double original_context) {
  if (stretch <= 1) return 1;
  return static_cast<float>(std::sqrt(1 + std::log(stretch) / std::log(original_context)));
}

}  // namespace tqcache::model
