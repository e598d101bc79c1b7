#pragma once
// codec/dot.h: the inner product in the one order of additions that the format knows.
//
// Sixteen lanes, component i in lane i % 16, then the lanes by halves: a vector unit of 4, 8 or
// 16 floats adds in exactly this order, so encoded bytes do not depend on the CPU.
//
// Spec: docs/reference/codec.md §4.

#include <array>
#include <cassert>
#include <cstddef>
#include <span>

namespace tqcache::codec {

// Shapes: a, b [n], any n.
// Bytes:  identical on every CPU (without fused multiply-add).
inline float lane_dot(std::span<const float> a, std::span<const float> b) {
  assert(a.size() == b.size());
  constexpr std::size_t kDotLanes = 16;
  std::array<float, kDotLanes> lanes{};
  std::size_t i = 0;
  for (; i + kDotLanes <= a.size(); i += kDotLanes) {
    for (std::size_t lane = 0; lane < kDotLanes; ++lane) lanes[lane] += a[i + lane] * b[i + lane];
  }
  for (std::size_t lane = 0; i + lane < a.size(); ++lane) lanes[lane] += a[i + lane] * b[i + lane];
  for (std::size_t half = kDotLanes / 2; half > 0; half /= 2) {
    for (std::size_t lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  }
  return lanes[0];
}

}  // namespace tqcache::codec
