#include "tqcache/model/attention/rope_scaling.h"

#include <cassert>
#include <cmath>

namespace tqcache::model {
namespace {

// What a pair is slowed down by that turns `turns` times over the original context.
double factor_of(double turns, const Llama3Scaling& scaling) {
  if (turns > scaling.high_frequency) return 1;
  if (turns < scaling.low_frequency) return scaling.factor;
  const double share =
      (turns - scaling.low_frequency) / (scaling.high_frequency - scaling.low_frequency);
  return 1 / ((1 - share) / scaling.factor + share);
}

}  // namespace

bool is_valid(const Llama3Scaling& scaling) {
  // Written so that NaN fails.
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
  for (const double turns_a_token : cache::rope_frequencies(plain)) {
    factors.push_back(
        static_cast<float>(factor_of(turns_a_token * scaling.original_context, scaling)));
  }
  return factors;
}

float longrope_magnitude(double stretch, double original_context) {
  if (stretch <= 1) return 1;
  return static_cast<float>(std::sqrt(1 + std::log(stretch) / std::log(original_context)));
}

}  // namespace tqcache::model
