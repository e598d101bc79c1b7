#pragma once
// model/feed_forward.h: the feed-forward part of a layer, a gated MLP or a mixture of experts.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tqcache/bytes.h"
#include "tqcache/decoder.h"
#include "tqcache/model.h"
#include "tqcache/model/linear/workers.h"
#include "tqcache/model/loading/weights.h"

namespace tqcache::model {

// The feed-forward of one layer, or of one expert: down(act(gate x) * up x), with biases if there
// are any.

// gate[i] = act(gate[i]) * up[i]. Shapes: gate, up [n].
void activate_and_multiply(Activation activation, const float* up, std::size_t n, float* gate);

class GatedMlp {
 public:
  GatedMlp(Activation activation, ActivationBits bits) : activation_(activation), bits_(bits) {}

  // Shapes: x [n, d_model]; out [n, d_model].
  // Bytes:  identical for any number of threads.
  void run(const FeedForwardWeights& weights, std::int64_t n, std::span<const float> x, float* out,
           const Workers& workers);

  std::uint64_t scratch_bytes() const { return (gate_.size() + up_.size()) * sizeof(float); }

 private:
  Activation activation_;
  ActivationBits bits_;
  AlignedFloats gate_;  // [n, d_ff]
  AlignedFloats up_;    // [n, d_ff]
};

// gates = max(gates - mean - cutoff * deviation, 0). Source: models/gemma3n, _gaussian_topk.
void cut_off(float cutoff, std::span<float> gates);

// A mixture of experts; each token goes through a few of them.
//
//   p = softmax or sigmoid of W_router x + bias;  the experts with the `used` largest p +
//   choice_bias are chosen, in DeepSeek from the best groups alone, and the p are their weights
// y = sum of p_e expert_e(x), + sigmoid(w . x) shared(x) if there is a shared expert; DeepSeek and
// GLM have no w, and add shared(x)
//
// Tokens of a chunk are gathered by expert, so that each expert's matrices are read once. Results
// are added in the order of the expert indices.
//
// Source: huggingface/transformers models/qwen3_moe, models/qwen3_next, models/gpt_oss,
// models/deepseek_v2 and models/deepseek_v3.

class Experts {
 public:
  Experts(const ExpertsConfig& config, Activation activation, ActivationBits bits)
      : config_(config), bits_(bits), mlp_(activation, bits) {}

  // Shapes: x, router_x, out [n, d_model]; the router sees `router_x`, usually x.
  // Bytes:  identical for any number of threads.
  void run(const ExpertsWeights& weights, std::int64_t n, std::span<const float> x,
           std::span<const float> router_x, std::span<float> out, const Workers& workers);

  std::uint64_t scratch_bytes() const;

 private:
  // A token that goes through an expert, and its weight.
  struct Use {
    std::int64_t row;
    float weight;
  };

  void choose(const ExpertsWeights& weights, std::int64_t n, std::span<const float> x,
              const Workers& workers);
  void choose_for(std::int64_t row, const ExpertsWeights& weights);
  void leave_out_groups();
  void add_expert(const FeedForwardWeights& expert, std::span<const Use> uses,
                  std::span<const float> x, std::span<float> out, const Workers& workers);
  void add_shared(const ExpertsWeights& weights, std::int64_t n, std::span<const float> x,
                  std::span<float> out, const Workers& workers);

  const ExpertsConfig& config_;
  ActivationBits bits_;
  GatedMlp mlp_;
  AlignedFloats scores_;                // [n, count]
  std::vector<std::vector<Use>> uses_;  // [count]
  std::vector<std::int64_t> order_;     // experts, by rank
  AlignedFloats ranks_;                 // [count], by which experts are chosen
  AlignedFloats gathered_;              // [uses, d_model]
  AlignedFloats results_;               // [uses, d_model]
};

}  // namespace tqcache::model
