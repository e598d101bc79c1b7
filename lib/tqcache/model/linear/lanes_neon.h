#pragma once
// model/linear/lanes_neon.h: the lanes of a sum in NEON registers. Only for the NEON kernels.

#include "tqcache/codec/kernels/registers_neon.h"

#ifdef TQCACHE_NEON

#include "tqcache/model/linear/product_kernels.h"

namespace tqcache::model {
namespace {

constexpr std::size_t kVectors = kLanes / 4;

struct Lanes {
  float32x4_t v[kVectors] = {};
};

// loops::fold.
inline float fold(Lanes& lanes) {
  for (std::size_t half = kVectors / 2; half > 0; half /= 2) {
    for (std::size_t i = 0; i < half; ++i) lanes.v[i] = vaddq_f32(lanes.v[i], lanes.v[half + i]);
  }
  const float32x2_t two = vadd_f32(vget_low_f32(lanes.v[0]), vget_high_f32(lanes.v[0]));
  return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}

}  // namespace
}  // namespace tqcache::model

#endif  // TQCACHE_NEON
