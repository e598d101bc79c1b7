#pragma once
// model/parallel_streams.h: residual streams beside the one that the layers compute (AltUp, Gemma
// 3n).
//
// x_0 goes through the layers; x_1, x_2, ... follow it:
//
//   x_i = A_i x_0, as long as x_0                        at the beginning
//   m(x) = tanh(R norm(x) / d_model)                     with the weights of each layer
//   x_i = x_i + sum over j of (P m(x_0))_ij x_j          before a layer
//   x_i = x_i + (1 + (C m(y))_i) (y - x_0)               behind it, y is what it made of x_0
//   x_0 = mean of x_0 and all B_i x_i, as long as x_0    in the end
//
// Source: arXiv 2301.13310; huggingface/transformers models/gemma3n, Gemma3nTextAltUp.

#include <cstdint>
#include <span>

#include "tqcache/bytes.h"
#include "tqcache/decoder.h"
#include "tqcache/model.h"
#include "tqcache/model/linear/workers.h"
#include "tqcache/model/loading/weights.h"

namespace tqcache::model {

class ParallelStreams {
 public:
  // Requires: both outlive the object.
  ParallelStreams(const ModelConfig& config, const Weights& weights, ActivationBits bits)
      : config_(config), weights_(weights), bits_(bits) {}

  // Shapes: x [n, d_model] at least, in all of these.
  void begin(std::int64_t n, std::span<const float> x, const Workers& workers);
  void predict(std::int64_t layer, std::span<float> x, const Workers& workers);
  void correct(std::int64_t layer, std::span<float> x, const Workers& workers);
  // Adds to all streams but x_0. Shapes: update [n, d_model] at least.
  void add(std::span<const float> update);
  void finish(std::span<float> x, const Workers& workers);

  std::uint64_t scratch_bytes() const;

 private:
  std::int64_t n_others() const { return config_.n_streams - 1; }
  std::span<float> stream(std::int64_t i) {
    const auto size = static_cast<std::size_t>(n_ * config_.d_model);
    return std::span(streams_).subspan(static_cast<std::size_t>(i) * size, size);
  }
  void find_coefficients(const ParallelWeights& weights, const Matrix& matrix,
                         std::span<const float> x, const Workers& workers);
  void match_magnitude(std::span<const float> x, std::span<float> of);

  const ModelConfig& config_;
  const Weights& weights_;
  ActivationBits bits_;
  std::int64_t n_ = 0;
  AlignedFloats streams_;       // [n_streams - 1, n, d_model]
  AlignedFloats predicted_;     // [n, d_model] x_0 before the layer
  AlignedFloats normed_;        // [n, d_model]
  AlignedFloats modalities_;    // [n, n_streams]
  AlignedFloats coefficients_;  // [n, n_streams or n_streams^2]
};

}  // namespace tqcache::model
