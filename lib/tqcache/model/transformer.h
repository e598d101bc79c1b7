#pragma once
// model/transformer.h: the arithmetic of the layers of a model, for one token or a chunk.
//
//   x = embedding of the token
//   for every layer:
//     x = x + W attention(q, keys and values of the layer's cache), where
//       q, k, v = W norm(x) + biases;  q, k = RoPE(norm of each head)
//     or, in a layer without attention, x = x + the gated delta net of norm(x)
//     x = x + W_down (act(W_gate norm(x)) * W_up norm(x)), or a mixture of such
//   logits = W_output norm(x)
//
// ModelConfig describes how a model differs from this. Optional parts: a gate on attention's
// output, norms of what is added to x, soft caps, windows, multipliers, attention and feed-forward
// side by side, a linear path beside attention (Laurel), inputs of layers, further residual streams
// that follow x; some models lack norms or RoPE. Weights are empty where a model lacks a part.
//
// One token goes through matrix-vector products with a fixed order of sums, several go through
// those of model/linear/matrix.h for chunks.
//
// Source: names and order of operations as in huggingface/transformers models/*/modeling_*.py.

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tqcache/bytes.h"
#include "tqcache/cache.h"
#include "tqcache/decoder.h"
#include "tqcache/error.h"
#include "tqcache/model.h"
#include "tqcache/model/attention/chunk_attention.h"
#include "tqcache/model/attention/gated_delta_net.h"
#include "tqcache/model/attention/latent_attention.h"
#include "tqcache/model/attention/rope_table.h"
#include "tqcache/model/attention/score_params.h"
#include "tqcache/model/attention/step_attention.h"
#include "tqcache/model/feed_forward.h"
#include "tqcache/model/layer_inputs.h"
#include "tqcache/model/linear/matrix.h"
#include "tqcache/model/linear/workers.h"
#include "tqcache/model/loading/weights.h"
#include "tqcache/model/parallel_streams.h"

namespace tqcache::model {

class Transformer {
 public:
  // Requires: both outlive the transformer, and read_weights made `weights` for `config`.
  Transformer(const ModelConfig& config, const Weights& weights, unsigned n_threads, Scorer scorer,
              ActivationBits activations);

  // Starts a chunk of tokens [first, first + ids.size()) of the cache, at positions from `position`
  // on: their embeddings become x.
  // Requires: 1 to 256 valid ids, all in one token block.
  void begin(std::span<const std::int32_t> ids, std::int64_t first, std::int64_t position);

  // Runs attention layer `index` over x, and appends the tokens' keys and values to its cache,
  // after the filter, if given, has changed them.
  // Requires: `layer` holds the tokens before position `first` that the model's window needs, and
  //           cache::append's conditions.
  // Errors:   the filter's; kCorrupt when hidden states, queries, keys or values are not finite, or
  //           too large for the type that the cache stores. The message names layer and token. At
  //           most keys and values of this layer are appended then.
  Result<void> run_attention(std::int64_t index, cache::AttentionLayer& layer,
                             const KvFilter& filter = {});

  // As run_attention(), for tokens whose keys and values `layer` already holds: that of layer
  // `index`, or of the one whose keys and values it reads. Appends no tokens.
  Result<void> rerun_attention(std::int64_t index, const cache::AttentionLayer& layer);

  // Runs layer `index`, a gated delta net, over x, and advances the state from `before` to `after`.
  // Requires: as GatedDeltaNet::run().
  // Errors:   as run_attention().
  Result<void> run_delta_net(std::int64_t index, const cache::StateLayer& before,
                             cache::StateLayer& after);

  // Merges residual streams, and checks the output of the last layer for all tokens of the chunk.
  // Errors: as run_attention().
  Result<void> finish();

  // The queries of the attention layer that ran last: [n, n_heads, its head_dim], after RoPE. Not
  // of latent attention.
  std::span<const float> queries() const;

  // The logits [n, vocab_size] of tokens [row, row + n) of the chunk, valid until the next
  // call. Requires: all layers have run.
  // Errors: kCorrupt when they are not finite, naming the token.
  Result<std::span<const float>> logits(std::int64_t row, std::int64_t n);

  const Workers& workers() const { return workers_; }
  std::uint64_t scratch_bytes() const;

 private:
  // Of the layers whose heads have one shape.
  struct HeadAttention {
    cache::HeadShape heads;
    StepAttention step;
    ChunkAttention chunk;
  };

  void reserve_rows(std::int64_t n);
  Result<void> begin_layer(std::int64_t index);
  void for_rows(const std::function<void(std::int64_t row)>& body) const;
  void normalize(const AlignedFloats& weight);
  void measure(std::span<const float> rows, std::int64_t size);
  Error not_finite(const std::string& layer, std::int64_t row, std::string_view what) const;
  Result<void> check_hidden(const std::string& layer) const;
  Result<void> check_input(std::int64_t index) const;
  Result<void> check_rows(std::int64_t index, std::string_view what, std::span<const float> rows,
                          std::int64_t size, float largest);
  void multiply(const AlignedFloats& input, std::initializer_list<Product> products);
  void add_bias(const AlignedFloats& bias, AlignedFloats& rows);
  AlignedFloats& query_products() { return config_.attention_gate ? q_and_gates_ : q_; }
  Result<void> prepare_queries(std::int64_t index);
  Result<void> make_latent_queries(std::int64_t index);
  void prepare_keys_and_values(std::int64_t index);
  void grow_queries();
  void split_gate();
  void apply_qk_norm_and_rope(AlignedFloats& rows, cache::HeadShape heads,
                              const AlignedFloats& norm, const RopeTable& rope);
  void attend(std::int64_t index, const cache::AttentionLayer& layer);
  void mix_laurel(const LaurelWeights& weights);
  Result<void> feed_forward(std::int64_t index);
  void run_experts(const LayerWeights& weights);
  void end_layer(std::int64_t index);
  void normalize_rows(const AlignedFloats& norm, AlignedFloats& rows);
  void add_to_x(const AlignedFloats& norm);
  const RopeTable& rope_of(std::int64_t layer) const;

  const ModelConfig& config_;
  const Weights& weights_;
  Workers workers_;
  ActivationBits activations_;
  std::vector<HeadAttention> attentions_;  // without duplicates, for all layers
  LatentAttention latent_attention_;
  GatedDeltaNet delta_net_;
  GatedMlp mlp_;
  Experts experts_;
  LayerInputs inputs_;
  ParallelStreams streams_;
  std::vector<RopeTable> ropes_;            // without duplicates, for all layers
  std::vector<std::size_t> rope_of_layer_;  // [n_layers]
  std::vector<LayerConfig> layers_;         // [n_layers]
  std::int64_t last_layer_ = 0;             // that ran

  std::int64_t first_ = 0;     // index of the first token of the chunk in the cache
  std::int64_t n_ = 0;         // number of tokens in the chunk
  std::int64_t capacity_ = 0;  // number of tokens for which the buffers below have room
  AlignedFloats x_;            // [capacity, d_model] residual stream
  AlignedFloats normed_;       // [capacity, d_model] input of a product
  AlignedFloats update_;       // [capacity, d_model] what is added to x
  AlignedFloats beside_;       // [capacity, d_model] of a path beside it
  AlignedFloats router_x_;     // [capacity, d_model], or [capacity, laurel_rank]
  AlignedFloats squares_;      // [capacity] sums of squares of the rows measured last
  // Sizes below are those of the layer with the largest ones.
  AlignedFloats q_;            // [capacity, n_heads, head_dim]
  AlignedFloats k_;            // [capacity, n_kv_heads, head_dim]
  AlignedFloats v_;            // [capacity, n_kv_heads, head_dim], of latents [capacity, rotated]
  AlignedFloats gates_;        // [capacity, n_heads, head_dim], if attention's output has gates
  AlignedFloats q_and_gates_;  // [capacity, n_heads, 2, head_dim] likewise
  AlignedFloats attended_;     // [capacity, n_heads, head_dim], of latents [.., value]
  AlignedFloats logits_;       // [n, vocab_size]
};

}  // namespace tqcache::model
