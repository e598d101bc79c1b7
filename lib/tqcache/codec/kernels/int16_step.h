#pragma once
// codec/kernels/int16_step.h: factors as whole numbers of 16 bits whose products are added in 32.

#include <cfloat>

namespace tqcache::codec {

// What words multiply is at most this in magnitude.
inline constexpr int kMostTimesInt16 = 8191;

// A step for factors of this largest magnitude and this sum of magnitudes: none of them passes 16
// bits, nor do their products pass 32 bits in sum. NaN unless the sum is finite.
inline float int16_step(float largest, float sum) {
  // With half a step a factor for rounding, below 2^31 / kMostTimesInt16 for a thousand of them.
  constexpr float kMostSteps = 261000.0f;
  if (!(sum <= FLT_MAX)) return __builtin_nanf("");
  const float of_word = largest / 32767.0f, of_sum = sum / kMostSteps;
  const float step = of_word > of_sum ? of_word : of_sum;
  return step > FLT_MIN ? step : FLT_MIN;
}

}  // namespace tqcache::codec
