#pragma once
// model/attention/chunk_attention.h: attention of a chunk of a prompt over a layer of the cache.
//
// Works block by block, so that memory does not grow with the square of the prompt: each token
// block is widened to f32, or decoded, once for all queries and added to their running sums. The
// products are computed in AMX (model/linear/tiles.h), with the accuracy of f32, where best_tiles()
// has it, otherwise by the BLAS.

#include <cstdint>
#include <span>
#include <vector>

#include "tqcache/bytes.h"
#include "tqcache/cache.h"
#include "tqcache/model/attention/score_params.h"
#include "tqcache/model/linear/tiles.h"
#include "tqcache/model/linear/workers.h"

namespace tqcache::model {

class ChunkAttention {
 public:
  // Requires: n_heads is a multiple of shape.n_kv_heads.
  ChunkAttention(cache::HeadShape shape, std::int64_t n_heads, ScoreParams scores);

  // Attention of the last n tokens of the layer, each over the newest `window` tokens up to itself;
  // 0: all.
  //
  // `sinks`: one more score for each head, which counts in its softmax and has no value; or empty.
  //
  // Shapes:   q, out [n, n_heads, head_dim]; sinks [n_heads]; the layer holds n_tokens >= n tokens.
  // Requires: the n tokens lie in one token block; all that the first of them sees is present.
  //           load_blas() succeeded, if there is no AMX.
  // Bytes:    identical for any number of threads; another CPU may give other bits.
  void attend(const cache::AttentionLayer& layer, std::int64_t n_tokens, std::int64_t n,
              std::int64_t window, std::span<const float> q, std::span<float> out,
              const Workers& workers, std::span<const float> sinks = {});

  std::uint64_t scratch_bytes() const;

 private:
  // The keys of a block that the queries see, counted from its first key: query i sees keys first +
  // i (0 if that is negative) to end + i.
  struct VisibleKeys {
    std::int64_t first;
    std::int64_t end;
  };

  void widen_block(const cache::AttentionLayer& layer, std::int64_t n_tokens, std::int64_t block,
                   const Workers& workers);
  // A block's keys and values as the right factors of products in AMX. How many parts they have is
  // up to their type.
  struct SplitBlock {
    std::size_t key_parts = 0;
    std::size_t value_parts = 0;
  };

  void attend_in_tiles(const TileKernels& tiles, const cache::AttentionLayer& layer,
                       std::int64_t n_tokens, std::int64_t n, std::int64_t window,
                       std::span<const float> q, std::span<float> out, const Workers& workers);
  void split_block(const TileKernels& tiles, std::int64_t n_keys, const SplitBlock& block,
                   const Workers& workers);
  void add_rows(const TileKernels& tiles, const VisibleKeys& visible, std::int64_t n_keys,
                const SplitBlock& block, std::int64_t n, std::int64_t head, std::int64_t first,
                float* out, std::size_t slot);
  float add_scores(const VisibleKeys& visible, std::int64_t row, std::int64_t head,
                   std::int64_t first_key, std::span<float> scores);
  void divide_by_sums(std::int64_t n, std::span<const float> sinks, std::span<float> out) const;
  void add_block(const VisibleKeys& visible, std::int64_t n_keys, std::int64_t n, std::int64_t head,
                 const float* q, float* out, std::span<float> scores);

  cache::HeadShape shape_;
  std::int64_t n_heads_;
  std::int64_t group_;  // query heads per kv head
  ScoreParams scores_;

  AlignedFloats keys_;     // [n_kv_heads, kTokenBlock, head_dim] of the current block
  AlignedFloats values_;   // likewise
  AlignedFloats row_max_;  // [n_heads, kTokenBlock] of the blocks so far
  AlignedFloats row_sum_;  // [n_heads, kTokenBlock] likewise
  std::vector<AlignedFloats> score_rows_;  // scores of each worker: [kTokenBlock, kTokenBlock]

  // In AMX only; the first index is the head or kv head.
  std::vector<Parts> query_parts_;
  std::vector<Parts> key_parts_;
  std::vector<Parts> value_parts_;
  std::vector<Parts> weight_parts_;  // of each worker: 32 rows of softmax
};

}  // namespace tqcache::model
