#pragma once
// model/transformer.h: the layers of a Qwen3 model, as arithmetic on some tokens at a time.
//
//   x = embedding of the token
//   for every layer:
//     q, k, v = W norm(x);  q, k = RoPE(norm of each head)
//     x = x + W attention(q, keys and values of the layer's cache)
//     x = x + W_down (silu(W_gate norm(x)) * W_up norm(x))
//   logits = W_output norm(x)
//
// One token goes through matrix-vector products with a fixed order of sums, several go through
// the BLAS.
//
// Source: Qwen3 technical report, arXiv 2505.09388; names and order of operations as in Hugging
// Face's Qwen3ForCausalLM.

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <span>

#include "tqcache/base/aligned.h"
#include "tqcache/base/result.h"
#include "tqcache/cache/layer.h"
#include "tqcache/model/chunk_attention.h"
#include "tqcache/model/config.h"
#include "tqcache/model/kv_filter.h"
#include "tqcache/model/matrix.h"
#include "tqcache/model/rope.h"
#include "tqcache/model/scorer_route.h"
#include "tqcache/model/step_attention.h"
#include "tqcache/model/weights.h"
#include "tqcache/model/workers.h"

namespace tqcache::model {

class Transformer {
 public:
  // Requires: both outlive the transformer, and read_weights made `weights` for `config`.
  Transformer(const ModelConfig& config, const Weights& weights, unsigned n_threads, Scorer scorer);

  // Begins with tokens at positions [first, first + ids.size()): their embeddings become x.
  // Requires: 1 to 256 valid ids, all in one token block.
  void begin(std::span<const std::int32_t> ids, std::int64_t first);

  // Runs layer `index` over x, and appends the tokens' keys and values to its cache, as the filter
  // leaves them if there is one.
  // Requires: `layer` holds the tokens before position `first`, and cache::append's conditions.
  // Errors:   the filter's; nothing is appended then.
  Result<void> run_layer(std::int64_t index, cache::AttentionLayer& layer,
                         const KvFilter& filter = {});

  // The same for tokens whose keys and values the layer holds already.
  void rerun_layer(std::int64_t index, const cache::AttentionLayer& layer);

  // What the layer that ran last asked its keys: [n, n_heads, head_dim], after RoPE.
  std::span<const float> queries() const;

  // The logits [n, vocab_size] of tokens [row, row + n) of those at hand, valid until the next
  // call. Requires: all layers have run.
  std::span<const float> logits(std::int64_t row, std::int64_t n);

  const Workers& workers() const { return workers_; }
  std::uint64_t scratch_bytes() const;

 private:
  void reserve_rows(std::int64_t n);
  void for_rows(const std::function<void(std::int64_t row)>& body) const;
  void normalize(const AlignedFloats& weight);
  void multiply(const AlignedFloats& input, std::initializer_list<Product> products);
  void turn_heads(AlignedFloats& rows, std::int64_t n_heads, const AlignedFloats& norm);
  void attend(const LayerWeights& weights, const cache::AttentionLayer& layer);
  void feed_forward(const LayerWeights& weights);
  void add_to_x(const AlignedFloats& rows);

  const ModelConfig& config_;
  const Weights& weights_;
  Workers workers_;
  StepAttention step_attention_;
  ChunkAttention chunk_attention_;
  RopeTable rope_;

  std::int64_t first_ = 0;     // position of the first token at hand
  std::int64_t n_ = 0;         // tokens at hand
  std::int64_t capacity_ = 0;  // tokens that the rows below have room for
  AlignedFloats x_;            // [capacity, d_model] residual stream
  AlignedFloats normed_;       // [capacity, d_model] what goes into a product
  AlignedFloats update_;       // [capacity, d_model] what is added to x
  AlignedFloats q_;            // [capacity, n_heads, head_dim]
  AlignedFloats k_;            // [capacity, n_kv_heads, head_dim]
  AlignedFloats v_;            // [capacity, n_kv_heads, head_dim]
  AlignedFloats attended_;     // [capacity, n_heads, head_dim]
  AlignedFloats gate_;         // [capacity, d_ff]
  AlignedFloats up_;           // [capacity, d_ff]
  AlignedFloats logits_;       // [n, vocab_size]
};

}  // namespace tqcache::model
