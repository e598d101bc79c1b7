#pragma once
// model/attention/score_params.h: scale and soft cap of attention scores; the kernels that compute
// them.

#include <span>
#include <string>
#include <string_view>

#include "tqcache/cache/cache.h"
#include "tqcache/codec/kernels/kernels.h"
#include "tqcache/model/linear/kernel_loops.h"

namespace tqcache::model {

struct Scores {
  float scale = 1;  // multiplies the product
  float cap = 0;    // bounds it: s becomes c tanh(s / c); 0: it does not
};

// tanh(x), within 2e-7.
inline float tanh_f32(float x) {
  constexpr float kFlat = 10;  // from here on 1 to the last bit
  const float bounded = x < -kFlat ? -kFlat : x > kFlat ? kFlat : x;
  return 1.0f - 2.0f / (loops::exp_f32(2.0f * bounded) + 1.0f);
}

// Soft caps: x = cap tanh(x / cap) of every value; nothing if cap is 0.
inline void cap_values(float cap, std::span<float> values) {
  if (cap == 0) return;
  for (float& value : values) value = cap * tanh_f32(value / cap);
}

// How attention reads a cache on this CPU, for reports.

// How packed codes are scored: in f32, or with queries and centroids rounded to whole numbers where
// the CPU multiplies those faster (docs/reference/codec.md, "Kernels", has the error bounds).
using Scorer = codec::Precision;

struct ScorerRoute {
  // Of decode steps: "dense" (no block is packed), "packed_int8" or "packed_f32" (codes are scored
  // as they stand, in whole numbers or in f32). The slowest of all sides.
  std::string_view step = "dense";

  // Of prompts, many tokens at once: "dense", or "decoded": each block is decoded once, and serves
  // all queries.
  std::string_view prompt = "dense";

  // Why a decode step is slower than what was asked for, of the first side where it is: "layer 0 k:
  // no kernels of whole numbers on scalar". Empty if it is not.
  std::string fallback;
};

ScorerRoute scorer_route(const cache::Cache& cache, Scorer scorer);

}  // namespace tqcache::model
