#pragma once
// model/attention/chunk_attention.h: attention of a chunk of a prompt over a layer of the cache.
//
// Works block by block, so that memory does not grow with the square of the prompt: each token
// block is widened to f32, or decoded, and packed once for all queries and heads, and added to
// their running sums. The products have the accuracy of f32 (model/linear/products.h).

#include <cstdint>
#include <span>
#include <vector>

#include "tqcache/bytes.h"
#include "tqcache/cache.h"
#include "tqcache/model/attention/score_params.h"
#include "tqcache/model/linear/products.h"
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
  // Bytes:    identical for any number of threads; a CPU with AMX gives others than one without.
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

  // How many parts a block's keys and values have in AMX, which is up to their type.
  struct BlockParts {
    std::size_t keys = 0;
    std::size_t values = 0;
  };

  void pack_block(const cache::AttentionLayer& layer, std::int64_t n_tokens, std::int64_t block,
                  const BlockParts& parts, const Workers& workers);
  void add_rows(const VisibleKeys& visible, std::int64_t n_keys, const BlockParts& parts,
                std::int64_t n, std::int64_t head, std::int64_t first, float* out,
                std::size_t slot);
  float add_scores(const VisibleKeys& visible, std::int64_t row, std::int64_t head,
                   std::int64_t first_key, std::span<float> scores);
  void divide_by_sums(std::int64_t n, std::span<const float> sinks, std::span<float> out) const;

  cache::HeadShape shape_;
  std::int64_t n_heads_;
  std::int64_t group_;  // query heads per kv head
  ScoreParams scores_;

  AlignedFloats row_max_;  // [n_heads, kTokenBlock] of the blocks so far
  AlignedFloats row_sum_;  // [n_heads, kTokenBlock] likewise

  // Packed factors; the first index is the head or kv head.
  std::vector<AlignedBytes> queries_;
  std::vector<AlignedBytes> keys_;    // of the current block
  std::vector<AlignedBytes> values_;  // likewise

  // Of each worker.
  std::vector<AlignedFloats> wide_rows_;   // keys or values of a kv head: [kTokenBlock, head_dim]
  std::vector<AlignedFloats> score_rows_;  // of 32 queries: [32, kTokenBlock]
  std::vector<AlignedBytes> weights_;      // their softmax, packed
};

}  // namespace tqcache::model
