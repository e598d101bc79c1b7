#pragma once
// model/attention.h: softmax attention of new tokens over one layer of the cache.
//
// Grouped queries: n_heads / n_kv_heads query heads in a row share a kv head. Token block by
// token block, so that the memory does not grow with the square of the prompt: each block gives
// a largest score, a sum and a weighted mean, which are joined in block order.
//
// A decode step scores packed codes as they stand: queries are rotated once, not every key, and
// the output is rotated back once a head. What was taken out of keys by centring comes back as a
// term of the score, what was taken out of values as a term of the output. A chunk of a prompt
// decodes each block once for all its queries.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "tqcache/base/aligned.h"
#include "tqcache/cache/cache.h"
#include "tqcache/cache/centring_score.h"
#include "tqcache/cache/layer.h"
#include "tqcache/codec/query_group.h"
#include "tqcache/model/workers.h"

namespace tqcache::model {

// How packed codes are scored: in f32, or with queries and centroids rounded to bytes where the CPU
// multiplies those faster (docs/codec.md, "Kernels", has the error bounds).
enum class Scorer { kExact, kFast };

class Attention {
 public:
  // Requires: n_heads is a multiple of shape.n_kv_heads.
  Attention(cache::HeadShape shape, std::int64_t n_heads, const cache::Rope& rope, Scorer scorer);

  // Attention of the last token that the layer holds over all of them.
  //
  // Shapes: q, out [n_heads, head_dim]; the layer holds n_tokens >= 1 tokens.
  // Bytes:  identical for any number of threads; of dense layers, on any CPU too.
  void attend_step(const cache::AttentionLayer& layer, std::int64_t n_tokens,
                   std::span<const float> q, std::span<float> out, const Workers& workers);

  // Attention of the last n tokens that the layer holds, each over those up to itself.
  //
  // Shapes:   q, out [n, n_heads, head_dim]; the layer holds n_tokens >= n tokens.
  // Requires: the n tokens stand in one token block.
  // Bytes:    identical for any number of threads; the BLAS decides about another CPU.
  void attend_chunk(const cache::AttentionLayer& layer, std::int64_t n_tokens, std::int64_t n,
                    std::span<const float> q, std::span<float> out, const Workers& workers);

  std::uint64_t scratch_bytes() const;

 private:
  // What one token block makes of the queries of one kv head.
  struct Partial {
    float* max;  // [group] largest score
    float* sum;  // [group] sum of exp(score - max)
    float* out;  // [group, head_dim] sum of exp(score - max) * value
  };
  // The queries of one kv head, in the forms that its blocks want.
  struct HeadQueries {
    AlignedFloats scaled;  // [group, head_dim], times 1 / sqrt(head_dim)
    codec::QueryGroup packed;
    cache::CentringScore centring;
  };
  Partial partial(std::int64_t block, std::int64_t kv_head);
  void prepare_queries(const cache::Side& keys, std::int64_t kv_head, const float* q);
  void attend_block(const cache::AttentionLayer& layer, std::int64_t n_tokens, std::int64_t block,
                    std::int64_t kv_head, float* scores);
  void score_block(const cache::Side& keys, std::int64_t n_tokens, std::int64_t block,
                   std::int64_t kv_head, float* scores) const;
  void sum_values(const cache::Side& values, std::int64_t n_tokens, std::int64_t block,
                  std::int64_t kv_head, const float* weights, float* out) const;
  void join_blocks(const cache::Side& values, std::int64_t n_blocks, std::int64_t head,
                   std::span<float> out) const;
  void widen_block(const cache::AttentionLayer& layer, std::int64_t n_tokens, std::int64_t block,
                   const Workers& workers);
  void add_block(std::int64_t n_visible, std::int64_t n_keys, std::int64_t n, std::int64_t head,
                 const float* q, float* out, std::span<float> scores);

  cache::HeadShape shape_;
  std::int64_t n_heads_;
  std::int64_t group_;  // query heads of a kv head
  float scale_;         // 1 / sqrt(head_dim)
  Scorer scorer_;
  std::optional<cache::CentringTable> centring_;  // of a RoPE that can be turned

  std::vector<HeadQueries> queries_;  // [n_kv_heads], of attend_step

  // attend_step, grown as the cache grows.
  AlignedFloats block_max_;  // [n_blocks, n_heads]
  AlignedFloats block_sum_;  // [n_blocks, n_heads]
  AlignedFloats block_out_;  // [n_blocks, n_heads, head_dim]; of packed values, rotated

  // attend_chunk.
  AlignedFloats keys_;     // [n_kv_heads, kTokenBlock, head_dim] of the block at hand
  AlignedFloats values_;   // likewise
  AlignedFloats row_max_;  // [n_heads, kTokenBlock] of the blocks so far
  AlignedFloats row_sum_;  // [n_heads, kTokenBlock] likewise

  std::vector<AlignedFloats> lanes_;  // scratch of each worker
};

}  // namespace tqcache::model
