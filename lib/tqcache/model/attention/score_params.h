#pragma once
// model/attention/score_params.h: scale and soft cap of attention scores, and their check.

#include <algorithm>
#include <cmath>
#include <span>

#include "tqcache/bytes.h"
#include "tqcache/model/linear/kernel_loops.h"
#include "tqcache/model/linear/product_kernels.h"

namespace tqcache::model {

struct ScoreParams {
  float scale = 1;  // multiplies the product
  float cap = 0;    // limits it: s becomes c tanh(s / c); 0: no limit
};

// Exponents below this are effectively minus infinity, and exp_f32() is for those above.
inline constexpr float kLeastExponent = -80.0f;

// tanh(x), within 2e-7.
inline float tanh_f32(float x) {
  constexpr float kFlat = 10;  // from here on the result is exactly 1
  const float bounded = x < -kFlat ? -kFlat : x > kFlat ? kFlat : x;
  return 1.0f - 2.0f / (loops::exp_f32(2.0f * bounded) + 1.0f);
}

// Soft cap: x = cap tanh(x / cap) for every value; no change if cap is 0.
inline void cap_values(float cap, std::span<float> values) {
  if (cap == 0) return;
  for (float& value : values) value = cap * tanh_f32(value / cap);
}

// The sum of x^2; not finite if a value is not, or if the sum overflows.
inline float sum_of_squares(std::span<const float> x) {
  return best_kernels().dot_f32(std::as_bytes(x).data(), x.data(), x.size());
}

// Checks scores before a cap hides infinities: a score of minus infinity, too, is an overflow.
inline bool all_finite(std::span<const float> x) {
  return std::isfinite(sum_of_squares(x)) ||
         std::ranges::all_of(x, [](float value) { return std::isfinite(value); });
}

}  // namespace tqcache::model
