#pragma once
// model/attention/delta_state.h: what a gated delta net keeps of the tokens before, as an arrays
// layer.
//
// Our form is that of mlx-lm, in f32: array "0" has the last kernel - 1 inputs of the convolution,
// [1, kernel - 1, conv_size], array "1" a matrix for each value head, [1, n_value_heads, value_dim,
// key_dim]. Caches of transformers and llama.cpp have the same values in other orders, and are
// brought into this one when a model goes on from them.
//
// Source: ml-explore/mlx-lm models/qwen3_next.py; huggingface/transformers cache_utils.py,
// LinearAttentionLayer; ggml-org/llama.cpp src/llama-memory-recurrent.cpp.

#include <cstdint>
#include <span>

#include "tqcache/base/result.h"
#include "tqcache/cache/layer.h"
#include "tqcache/model/loading/config.h"

namespace tqcache::model {

// The state before the first token: zeros.
cache::StateLayer empty_delta_state(const DeltaNetConfig& config);

// Brings a layer into our form, if it is not in it already.
// Errors: kMismatch when its arrays are not the state of such a layer.
Result<void> adopt_delta_state(const ModelConfig& config, cache::StateLayer& layer);

// Our form's values. Requires: adopt_delta_state() has succeeded.
std::span<const float> convolution_inputs(const cache::StateLayer& layer);
std::span<const float> head_matrices(const cache::StateLayer& layer);
std::span<float> state_values(cache::NamedArray& array);

}  // namespace tqcache::model
