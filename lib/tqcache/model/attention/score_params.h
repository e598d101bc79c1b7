#pragma once
// model/attention/score_params.h: scale and soft cap of attention scores.

#include <span>

#include "tqcache/model/linear/kernel_loops.h"

namespace tqcache::model {

struct ScoreParams {
  float scale = 1;  // multiplies the product
  float cap = 0;    // limits it: s becomes c tanh(s / c); 0: no limit
};

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

}  // namespace tqcache::model
