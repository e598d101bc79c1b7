#include "tqcache/model/attention/rope.h"

#include <cmath>

namespace tqcache::model {

void RopeTable::set_positions(std::int64_t first, std::int64_t n) {
  const std::int64_t half = rope_.n_dims / 2;
  cos_.resize(static_cast<std::size_t>(n * half));
  sin_.resize(cos_.size());
  for (std::int64_t i = 0; i < half; ++i) {
    const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(rope_.n_dims);
    double frequency = std::pow(rope_.base, exponent);  // radians a token
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

}  // namespace tqcache::model
