#pragma once
// model/attention/gated_delta_net.h: linear attention whose state decays by a gate and is updated
// by a delta rule.
//
//   q, k, v = silu(convolution of W x over the newest `kernel` tokens);  q, k of length 1
//   g = exp(decay softplus(alpha x + dt));  b = sigmoid(beta x)
//   S = g S;  S = S + b (v - S k) k^T;  o = S q / sqrt(key_dim)
//   y = W_out (norm of each head of o * silu(W_gate x))
//
// S is a matrix [value_dim, key_dim] per value head. Tokens are processed one after another.
//
// Source: arXiv 2412.06464, section 3; huggingface/transformers models/qwen3_next,
// torch_recurrent_gated_delta_rule.

#include <cstdint>
#include <span>
#include <vector>

#include "tqcache/bytes.h"
#include "tqcache/cache.h"
#include "tqcache/decoder.h"
#include "tqcache/error.h"
#include "tqcache/model.h"
#include "tqcache/model/linear/workers.h"
#include "tqcache/model/loading/weights.h"

namespace tqcache::model {

class GatedDeltaNet {
 public:
  GatedDeltaNet(const ModelConfig& config, ActivationBits bits)
      : net_(config.delta_net), epsilon_(config.rms_norm_epsilon), bits_(bits) {}

  // Runs n tokens from the state in `before`, and writes the resulting state to `after`.
  //
  // Shapes:   x, out [n, d_model].
  // Requires: adopt_delta_state() has succeeded for `before`; `after` is another layer, which is
  //           overwritten.
  // Bytes:    identical for any number of threads; identical for tokens processed singly or
  //           together except for the products with the weights.
  void run(const DeltaNetWeights& weights, const cache::StateLayer& before,
           cache::StateLayer& after, std::int64_t n, std::span<const float> x, float* out,
           const Workers& workers);

  std::uint64_t scratch_bytes() const;

 private:
  std::int64_t row_size() const {
    return net_.conv_size() + net_.value_size() + 2 * net_.n_value_heads;
  }
  float* row(std::int64_t token) { return rows_.data() + token * row_size(); }

  void project(const DeltaNetWeights& weights, std::int64_t n, std::span<const float> x,
               const Workers& workers);
  void convolve(const DeltaNetWeights& weights, std::span<const float> before,
                std::span<float> after, std::int64_t n, const Workers& workers);
  void run_head(const DeltaNetWeights& weights, std::int64_t head, std::int64_t n, float* state);
  void step(std::int64_t head, std::int64_t token, const DeltaNetWeights& weights, float* state);

  DeltaNetConfig net_;
  float epsilon_;
  ActivationBits bits_;
  AlignedFloats products_;   // [inputs, n, rows of the input]
  AlignedFloats rows_;       // [n, row_size()]: q k v, output gates, beta, alpha
  AlignedFloats convolved_;  // [n, conv_size]
  AlignedFloats heads_;      // [n, value_size], input of the last product
  AlignedFloats ordered_;    // heads_ in the column order of the output matrix
};

// The recurrent state of a gated delta net
//
// Our layout is that of mlx-lm, in f32: array "0" holds the last kernel - 1 inputs of the
// convolution, [1, kernel - 1, conv_size], array "1" one matrix per value head, [1, n_value_heads,
// value_dim, key_dim]. Caches of transformers and llama.cpp hold the same values in another order;
// adopt_delta_state() reorders them.
//
// Source: ml-explore/mlx-lm models/qwen3_next.py; huggingface/transformers cache_utils.py,
//         LinearAttentionLayer; ggml-org/llama.cpp src/llama-memory-recurrent.cpp.

// The state before the first token: zeros.
cache::StateLayer empty_delta_state(const DeltaNetConfig& config);

// Converts a layer to our layout if it has another one.
// Errors: kMismatch when its arrays are not the state of such a layer.
Result<void> adopt_delta_state(const ModelConfig& config, cache::StateLayer& layer);

// The values in our layout. Requires: adopt_delta_state() has succeeded.
std::span<const float> convolution_inputs(const cache::StateLayer& layer);
std::span<const float> head_matrices(const cache::StateLayer& layer);
std::span<float> state_values(cache::NamedArray& array);

}  // namespace tqcache::model
