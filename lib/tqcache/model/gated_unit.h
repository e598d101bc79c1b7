#pragma once
// model/gated_unit.h: the feed-forward of one layer, or of one expert: down(act(gate x) * up x).

#include <cstddef>
#include <cstdint>
#include <span>

#include "tqcache/base/aligned.h"
#include "tqcache/model/loading/config.h"
#include "tqcache/model/loading/weights.h"
#include "tqcache/model/linear/workers.h"

namespace tqcache::model {

// gate[i] = act(gate[i]) * up[i]. Shapes: gate, up [n].
void activate_and_multiply(Activation activation, const float* up, std::size_t n, float* gate);

class GatedUnit {
 public:
  explicit GatedUnit(Activation activation) : activation_(activation) {}

  // Shapes: x [n, d_model]; out [n, d_model].
  // Bytes:  identical for any number of threads.
  void run(const FeedForwardWeights& weights, std::int64_t n, std::span<const float> x, float* out,
           const Workers& workers);

  std::uint64_t scratch_bytes() const { return (gate_.size() + up_.size()) * sizeof(float); }

 private:
  Activation activation_;
  AlignedFloats gate_;  // [n, d_ff]
  AlignedFloats up_;    // [n, d_ff]
};

}  // namespace tqcache::model
