#pragma once
// model/attention/latent_attention.h: attention over latents (MLA, DeepSeek V2 and V3).
//
// A token leaves one latent c, from which the keys and values of all heads follow, and one key part
// r that RoPE rotates and all heads share:
//
//   c = norm(W_c x);  r = RoPE(W_r x)                      c is K of the cache, r is V
//   q_h = [W_q x]_h, or [W_q norm(W_a x)]_h, whose last part is rotated
//   k_h = [K_h c, r];  v_h = V_h c;  out_h = softmax(scale q_h . k_h) v_h
//
// A chunk of tokens computes keys and values of every head block by block (as written). For one
// token, the matrices are absorbed by its query and its output: q_h . k_h = (K_h^T q_h) . c + q_h .
// r, and out_h = V_h (softmax c), so that each latent is read once for all heads.
//
// Components of r that rotate together are neighbors: (0, 1), (2, 3), ....
//
// Source: huggingface/transformers models/deepseek_v2 and models/deepseek_v3; arXiv 2405.04434,
// section 2.1.

#include <cstdint>
#include <span>
#include <vector>

#include "tqcache/bytes.h"
#include "tqcache/cache.h"
#include "tqcache/decoder.h"
#include "tqcache/model.h"
#include "tqcache/model/attention/rope_table.h"
#include "tqcache/model/linear/workers.h"
#include "tqcache/model/loading/weights.h"

namespace tqcache::model {

class LatentAttention {
 public:
  // Requires: `config` outlives it.
  LatentAttention(const ModelConfig& config, ActivationBits bits) : config_(config), bits_(bits) {}

  // The queries of n tokens: [n, n_heads, plain + rotated], valid until the next call.
  // Shapes: x [n, d_model].
  std::span<const float> make_queries(const LatentWeights& weights, std::int64_t n,
                                      std::span<const float> x, const RopeTable& rope,
                                      const Workers& workers);

  // Their latents and rotated parts.
  // Shapes: x [n, d_model]; latents [n, rank]; rotated [n, rotated].
  void make_latents(const LatentWeights& weights, std::int64_t n, std::span<const float> x,
                    const RopeTable& rope, std::span<float> latents, std::span<float> rotated,
                    const Workers& workers);

  // Attention of the last n tokens of the layer, whose queries were made last.
  //
  // Shapes:   out [n, n_heads, value]; the layer holds n_tokens >= n tokens.
  // Requires: the n tokens lie in one token block; if n > 1, load_blas() succeeded or there is AMX.
  // Bytes:    identical for any number of threads.
  void attend(const LatentWeights& weights, const cache::AttentionLayer& layer,
              std::int64_t n_tokens, std::int64_t n, std::span<float> out, const Workers& workers);

  std::uint64_t scratch_bytes() const;

 private:
  void attend_chunk(const LatentWeights& weights, const cache::AttentionLayer& layer,
                    std::int64_t n_tokens, std::int64_t n, std::span<float> out,
                    const Workers& workers);
  void add_head(const LatentWeights& weights, std::int64_t head, std::int64_t n_keys,
                std::int64_t n_seen, std::int64_t n, std::span<float> out, const Workers& workers);
  void attend_step(const LatentWeights& weights, const cache::AttentionLayer& layer,
                   std::int64_t n_tokens, std::span<float> out, const Workers& workers);

  // What a step has of one token block: for each head the largest score, the sum of exponentials,
  // and the sum of latents times these.
  struct Part {
    AlignedFloats latents;  // [kTokenBlock, rank]
    AlignedFloats rotated;  // [kTokenBlock, rotated]
    AlignedFloats scores;   // [kTokenBlock]
    AlignedFloats max;      // [n_heads]
    AlignedFloats sum;      // [n_heads]
    AlignedFloats mixed;    // [n_heads, rank]
  };
  void add_block(const cache::AttentionLayer& layer, std::int64_t n_tokens, std::int64_t block,
                 Part& part);

  const ModelConfig& config_;
  ActivationBits bits_;
  AlignedFloats query_latents_;  // [n, query_rank]
  AlignedFloats both_;           // [n, rank + rotated]
  AlignedFloats q_;              // [n, n_heads, plain + rotated]

  // Of a chunk.
  AlignedFloats latents_;    // [kTokenBlock, rank] of the current block
  AlignedFloats rotated_;    // [kTokenBlock, rotated] likewise
  AlignedFloats to_keys_;    // [plain, rank] of the current head
  AlignedFloats to_values_;  // [value, rank] likewise
  AlignedFloats queries_;    // [n, plain + rotated] likewise
  AlignedFloats products_;   // [n_keys, plain]
  AlignedFloats keys_;       // [n_keys, plain + rotated]
  AlignedFloats values_;     // [value, n_keys]
  AlignedFloats scores_;     // [n, n_keys]
  AlignedFloats added_;      // [n, value]
  AlignedFloats row_max_;    // [n_heads, n]
  AlignedFloats row_sum_;    // [n_heads, n]

  // Of a step.
  AlignedFloats absorbed_;          // [n_heads, rank] queries
  std::vector<AlignedFloats> row_;  // a row of weights, of each worker
  std::vector<Part> parts_;         // of each worker
  Part whole_;                      // of all blocks so far
};

}  // namespace tqcache::model
