#pragma once
// model/attention/gated_delta_net.h: linear attention whose state a gate forgets from and a delta rule
// writes.
//
//   q, k, v = silu(convolution of W x over the newest `kernel` tokens);  q, k of length 1
//   g = exp(decay softplus(alpha x + dt));  b = sigmoid(beta x)
//   S = g S;  S = S + b (v - S k) k^T;  o = S q / sqrt(key_dim)
//   y = W_out (norm of each head of o * silu(W_gate x))
//
// S is a matrix [value_dim, key_dim] of each value head. Tokens are taken one after another.
//
// Source: arXiv 2412.06464, section 3; huggingface/transformers models/qwen3_next,
// torch_recurrent_gated_delta_rule.

#include <cstdint>
#include <span>
#include <vector>

#include "tqcache/base/aligned.h"
#include "tqcache/cache/layer.h"
#include "tqcache/model/loading/config.h"
#include "tqcache/model/loading/weights.h"
#include "tqcache/model/linear/workers.h"

namespace tqcache::model {

class GatedDeltaNet {
 public:
  explicit GatedDeltaNet(const ModelConfig& config)
      : net_(config.delta_net), epsilon_(config.rms_norm_epsilon) {}

  // Runs n tokens over the state in `before`, and leaves the state behind them in `after`.
  //
  // Shapes:   x, out [n, d_model].
  // Requires: adopt_delta_state() has succeeded for `before`; `after` is another layer, and is
  //           overwritten.
  // Bytes:    identical for any number of threads; the same for tokens alone or together but for
  //           the products with the weights.
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
  AlignedFloats products_;   // [inputs, n, rows of the input]
  AlignedFloats rows_;       // [n, row_size()]: q k v, gates of the output, beta, alpha
  AlignedFloats convolved_;  // [n, conv_size]
  AlignedFloats heads_;      // [n, value_size], what goes into the last product
  AlignedFloats ordered_;    // the same in the order of that matrix
};

}  // namespace tqcache::model
