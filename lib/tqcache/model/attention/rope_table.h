#pragma once
// model/attention/rope_table.h: rotary position embedding and its scaling.

#include <cstdint>
#include <span>
#include <vector>

#include "tqcache/bytes.h"
#include "tqcache/cache.h"
#include "tqcache/cache/rope_angles.h"

namespace tqcache::model {

// The factor of a pair that does not rotate at all, as llama.cpp has it in GGUF files.
inline constexpr float kStays = 1e30f;

// Rotary position embedding, half-split: component i rotates with component i + n_dims / 2. The
// table holds the angles of a range of positions. They are computed in f64 and rounded as cosine
// and sine, so the error does not grow with the position.
//
// Source: arXiv 2104.09864, section 3.2.2; pairs as in the Llama models of Hugging Face.
class RopeTable {
 public:
  // `magnitude`: factor by which lengths are scaled.
  explicit RopeTable(const cache::Rope& rope, float magnitude = 1)
      : rope_(rope), magnitude_(magnitude) {}

  const cache::Rope& rope() const { return rope_; }

  // Computes the angles of positions [first, first + n).
  void set_positions(std::int64_t first, std::int64_t n);

  // Rotates one head vector to position first + index, in place. Components from n_dims on do not
  // change, and none do in a layer without RoPE. The factors of a pair, if present, slow it down.
  // Shapes: x [head_dim].
  void rotate(std::int64_t index, std::span<float> x) const;

  // The same of components that rotate with their neighbor: (0, 1), (2, 3), ....
  // Shapes: x [n_dims].
  void rotate_pairs(std::int64_t index, std::span<float> x) const;

  std::uint64_t scratch_bytes() const { return (cos_.size() + sin_.size()) * sizeof(float); }

 private:
  cache::Rope rope_;
  float magnitude_;
  AlignedFloats cos_;  // [n, n_dims / 2]
  AlignedFloats sin_;  // [n, n_dims / 2]
};

// RoPE scaling stretches the context of a model: it slows pairs of components down, and multiplies
// lengths by a magnitude.
//
// Llama 3: fast pairs do not change, slow ones are slowed down by `factor`, and those between by an
// interpolated factor.
struct Llama3Scaling {
  double factor = 1;
  double low_frequency = 1;   // slow: fewer cycles than this over the original context
  double high_frequency = 4;  // fast: more cycles than this
  double original_context = 8192;
};

// Returns whether llama3_factors() gives valid numbers: all above 0, and the high frequency above
// the low one.
bool is_valid(const Llama3Scaling& scaling);

// Shapes: [rope.n_dims / 2]. Requires: is_valid(); rope has valid dimensions.
// Source: huggingface/transformers modeling_rope_utils.py, _compute_llama3_parameters.
std::vector<float> llama3_factors(const cache::Rope& rope, const Llama3Scaling& scaling);

// YaRN: fast pairs do not change, slow ones are slowed down by `factor`, those between by a
// mixture. Pairs are counted, and lengths are multiplied by yarn_magnitude().
struct YarnScaling {
  double factor = 1;
  double beta_fast = 32;  // a pair that rotates more often over the original context is fast
  double beta_slow = 1;   // a pair that rotates less often is slow
  double original_context = 0;
  bool whole_pairs = true;  // the bounds between fast and slow are rounded to whole pairs
};

// Returns whether yarn_factors() gives valid numbers: all finite and above 0, and a base above 1.
bool is_valid(const YarnScaling& scaling, const cache::Rope& rope);

// Shapes: [rope.n_dims / 2]. Requires: is_valid().
// Source: arXiv 2309.00071, section 3.2; huggingface/transformers modeling_rope_utils.py,
//         _compute_yarn_parameters.
std::vector<float> yarn_factors(const cache::Rope& rope, const YarnScaling& scaling);

// 0.1 weight ln(factor) + 1, or 1 if the context is not stretched.
double yarn_magnitude(double factor, double weight = 1);

// LongRoPE multiplies queries and keys by this: sqrt(1 + ln(stretch) / ln(original_context)), or by
// 1 if the context is not stretched.
// Requires: original_context > 1.
// Source: arXiv 2402.13753, section 3.3; huggingface/transformers, _compute_longrope_parameters.
float longrope_magnitude(double stretch, double original_context);

}  // namespace tqcache::model
