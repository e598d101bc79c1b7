#pragma once
// model/norms.h: norms of one row.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>

#include "tqcache/model/attention/score_params.h"

namespace tqcache::model {

// y = x / sqrt(mean(x^2) + epsilon) * weight. Returns the sum of x^2.
// Shapes: x, weight, y [n]; y may be x.
inline float rms_norm(std::span<const float> x, std::span<const float> weight, float epsilon,
                      std::span<float> y) {
  const float squares = sum_of_squares(x);
  const float factor = 1.0f / std::sqrt(squares / static_cast<float>(x.size()) + epsilon);
  for (std::size_t i = 0; i < x.size(); ++i) y[i] = x[i] * factor * weight[i];
  return squares;
}

// The same of x less its mean. Returns the sum of x^2, too.
inline float layer_norm(std::span<const float> x, std::span<const float> weight, float epsilon,
                        std::span<float> y) {
  const auto n = static_cast<double>(x.size());
  double mean = 0, variance = 0;
  for (const float value : x) mean += value;
  mean /= n;
  for (const float value : x) variance += (value - mean) * (value - mean);
  const double factor = 1 / std::sqrt(variance / n + double{epsilon});
  const float squares = sum_of_squares(x);
  for (std::size_t i = 0; i < x.size(); ++i) {
    y[i] = static_cast<float>((x[i] - mean) * factor) * weight[i];
  }
  return squares;
}

// The root of the mean square of x, and at least sqrt(least).
inline float magnitude(std::span<const float> x, float least = 0) {
  return std::sqrt(std::max(sum_of_squares(x) / static_cast<float>(x.size()), least));
}

}  // namespace tqcache::model
