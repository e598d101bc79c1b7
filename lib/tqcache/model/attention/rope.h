#pragma once
// model/attention/rope.h: rotary position embedding, half-split: component i turns with i + n_dims / 2.
//
// Source: arXiv 2104.09864, section 3.2.2; pairs as in the Llama models of Hugging Face.

#include <cstdint>
#include <span>

#include "tqcache/base/aligned.h"
#include "tqcache/cache/cache.h"

namespace tqcache::model {

// The angles of a run of positions. They are computed in f64 and rounded as cosine and sine, so
// that a far position has the same error as a near one.
class RopeTable {
 public:
  // `magnitude`: what lengths are multiplied by.
  explicit RopeTable(const cache::Rope& rope, float magnitude = 1)
      : rope_(rope), magnitude_(magnitude) {}

  const cache::Rope& rope() const { return rope_; }

  // Makes the angles of positions [first, first + n).
  void set_positions(std::int64_t first, std::int64_t n);

  // Turns one head vector to position first + index, in place. Components from n_dims on stay.
  // The factors of a pair, if there are any, slow it down.
  // Shapes: x [head_dim].
  void rotate(std::int64_t index, std::span<float> x) const;

  std::uint64_t scratch_bytes() const { return (cos_.size() + sin_.size()) * sizeof(float); }

 private:
  cache::Rope rope_;
  float magnitude_;
  AlignedFloats cos_;  // [n, n_dims / 2]
  AlignedFloats sin_;  // [n, n_dims / 2]
};

}  // namespace tqcache::model
