#pragma once
// model/attention.h: softmax attention of new tokens over one layer of the cache.
//
// Grouped queries: n_heads / n_kv_heads query heads in a row share a kv head. Token block by
// token block, so that the memory does not grow with the square of the prompt: each block gives
// a largest score, a sum and a weighted mean, which are joined in block order.

#include <cstdint>
#include <span>
#include <vector>

#include "tqcache/base/aligned.h"
#include "tqcache/cache/layer.h"
#include "tqcache/model/workers.h"

namespace tqcache::model {

class Attention {
 public:
  // Requires: n_heads is a multiple of shape.n_kv_heads.
  Attention(cache::HeadShape shape, std::int64_t n_heads);

  // Attention of the last token that the layer holds over all of them.
  //
  // Shapes: q, out [n_heads, head_dim]; the layer holds n_tokens >= 1 tokens.
  // Bytes:  identical for any number of threads and on any CPU.
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
  Partial partial(std::int64_t block, std::int64_t kv_head);
  void attend_block(const cache::AttentionLayer& layer, std::int64_t n_tokens, std::int64_t block,
                    std::int64_t kv_head, const float* q, std::span<float> scratch);
  void join_blocks(std::int64_t n_blocks, std::int64_t head, std::span<float> out) const;
  void widen_block(const cache::AttentionLayer& layer, std::int64_t n_tokens, std::int64_t block,
                   const Workers& workers);
  void add_block(std::int64_t n_visible, std::int64_t n_keys, std::int64_t n, std::int64_t head,
                 const float* q, float* out, std::span<float> scores);

  cache::HeadShape shape_;
  std::int64_t n_heads_;
  std::int64_t group_;  // query heads of a kv head
  float scale_;         // 1 / sqrt(head_dim)

  // attend_step, grown as the cache grows.
  AlignedFloats block_max_;  // [n_blocks, n_heads]
  AlignedFloats block_sum_;  // [n_blocks, n_heads]
  AlignedFloats block_out_;  // [n_blocks, n_heads, head_dim]

  // attend_chunk.
  AlignedFloats keys_;     // [n_kv_heads, kTokenBlock, head_dim] of the block at hand
  AlignedFloats values_;   // likewise
  AlignedFloats row_max_;  // [n_heads, kTokenBlock] of the blocks so far
  AlignedFloats row_sum_;  // [n_heads, kTokenBlock] likewise

  std::vector<AlignedFloats> lanes_;  // scratch of each worker
};

}  // namespace tqcache::model
