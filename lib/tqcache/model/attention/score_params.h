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

struct ScoreParams {
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

// How quantized keys are scored: in f32, or with queries and centroids rounded to integers where
// the CPU multiplies those faster (docs/reference/codec.md, "Kernels", has the error bounds).
using Scorer = codec::Precision;

// How attention reads a cache on this CPU, for reports.
struct KernelPath {
  // Decode steps: "dense" (no block is quantized), "packed_int8" or "packed_f32" (codes are scored
  // without decoding them, in integers or in f32). The slowest of K and V of all layers.
  std::string_view step = "dense";

  // Prompts, many tokens at once: "dense", or "decoded": each block is decoded once for all
  // queries.
  std::string_view prompt = "dense";

  // Why decode steps are slower than requested, for the first K or V where they are: "layer 0 k: no
  // kernels of whole numbers on scalar". Empty if they are not.
  std::string fallback;
};

KernelPath kernel_path(const cache::Cache& cache, Scorer scorer);

}  // namespace tqcache::model
