#pragma once
// model/attention/rope_scaling.h: how models stretch their context: what each pair of RoPE's components is
// slowed down by, and what lengths are multiplied by.

#include <cstdint>
#include <vector>

#include "tqcache/cache/rope.h"

namespace tqcache::model {

// Llama 3: pairs that turn fast stay, slow ones are slowed down by `factor`, those between by
// something between.
struct Llama3Scaling {
  double factor = 1;
  double low_frequency = 1;   // slow: fewer turns than this over the original context
  double high_frequency = 4;  // fast: more turns than this
  double original_context = 8192;
};

// Whether llama3_factors() gives numbers: all above 0, and the high frequency above the low one.
bool is_valid(const Llama3Scaling& scaling);

// Shapes: [rope.n_dims / 2]. Requires: is_valid(); rope can turn.
// Source: huggingface/transformers modeling_rope_utils.py, _compute_llama3_parameters.
std::vector<float> llama3_factors(const cache::Rope& rope, const Llama3Scaling& scaling);

// LongRoPE multiplies queries and keys by this: sqrt(1 + ln(stretch) / ln(original_context)), and
// by 1 where nothing is stretched.
// Requires: original_context > 1.
// Source: arXiv 2402.13753, section 3.3; huggingface/transformers, _compute_longrope_parameters.
float longrope_magnitude(double stretch, double original_context);

}  // namespace tqcache::model
