#pragma once
// model/layer_inputs.h: what every layer of Gemma 3n and Gemma 4 gets of a token beside the
// residual stream.
//
//   p = (norm(W x / sqrt(d_model)) + sqrt(size) e) / sqrt(2), x the embedding of the token, e its
//       row of a table of their own; both have `size` components for each layer
//   update = norm(P (act(G x) * p)), with the matrices of the layer
//
// Source: huggingface/transformers models/gemma3n and models/gemma4.

#include <cstdint>
#include <span>

#include "tqcache/bytes.h"
#include "tqcache/decoder.h"
#include "tqcache/model.h"
#include "tqcache/model/linear/workers.h"
#include "tqcache/model/loading/weights.h"

namespace tqcache::model {

class LayerInputs {
 public:
  // Requires: both outlive the object.
  LayerInputs(const ModelConfig& config, const Weights& weights, ActivationBits bits)
      : config_(config), weights_(weights), bits_(bits) {}

  // Computes p of some tokens for all layers. Shapes: ids [n]; x [n, d_model] at least.
  void begin(std::span<const std::int32_t> ids, std::span<const float> x, const Workers& workers);

  // Shapes: x [n, d_model] at least; update [n, d_model], not x.
  void run(std::int64_t layer, std::span<const float> x, float* update, const Workers& workers);

  std::uint64_t scratch_bytes() const { return (inputs_.size() + gates_.size()) * sizeof(float); }

 private:
  const ModelConfig& config_;
  const Weights& weights_;
  ActivationBits bits_;
  std::int64_t n_ = 0;
  AlignedFloats inputs_;  // [n, n_layers, size]
  AlignedFloats gates_;   // [n, size]
};

}  // namespace tqcache::model
