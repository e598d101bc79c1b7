#pragma once
// model/attention/step_attention.h: attention of one new token over a layer of the cache.
//
// Grouped queries: n_heads / n_kv_heads consecutive query heads share a kv head, and one pass over
// its keys and values. The tokens are divided into splits of several token blocks; each split
// returns its largest score, sums of weights and weighted sums of values, which are merged in
// order.
//
// Quantized keys and values are not decoded: the queries are transformed once instead of every key,
// and the output is transformed back once per head. The mean that centering removed is added back:
// for keys to the scores, for values to the output.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "tqcache/bytes.h"
#include "tqcache/cache.h"
#include "tqcache/cache/centering_score.h"
#include "tqcache/cache/kv_attention.h"
#include "tqcache/codec/kernels/head_queries.h"
#include "tqcache/decoder.h"
#include "tqcache/model/attention/score_params.h"
#include "tqcache/model/linear/workers.h"

namespace tqcache::model {

class StepAttention {
 public:
  // `kernels` read dense blocks; quantized blocks have their own kernels.
  // Requires: n_heads is a multiple of shape.n_kv_heads.
  StepAttention(cache::HeadShape shape, std::int64_t n_heads, const cache::Rope& rope,
                ScoreParams scores, Scorer scorer,
                const codec::Kernels& kernels = codec::best_kernels());

  // Attention of the last token of the layer over the newest `window` tokens, including its own; 0:
  // all.
  //
  // `sinks`: one more score for each head, which counts in its softmax and has no value; or empty.
  //
  // Shapes:   q, out [n_heads, head_dim]; sinks [n_heads]; the layer holds n_tokens >= 1 tokens.
  // Requires: with a window, its tokens are present; rows before it in its first block may hold any
  //           finite values.
  // Bytes:    identical for any number of threads; may differ on another kind of CPU.
  void attend(const cache::AttentionLayer& layer, std::int64_t n_tokens, std::int64_t window,
              std::span<const float> q, std::span<float> out, const Workers& workers,
              std::span<const float> sinks = {});

  std::uint64_t scratch_bytes() const;

 private:
  // The queries of one kv head, prepared for dense and for quantized blocks.
  struct Queries {
    AlignedFloats scaled;  // [group, head_dim], times the scale of scores
    codec::QueryGroup dense;
    cache::KeyQueries packed;
  };
  // Token blocks [first, end) of one kv head.
  struct Split {
    std::int64_t kv_head;
    std::int64_t first;
    std::int64_t end;
    std::int64_t n_unseen;  // tokens of its first block that the query does not see
  };
  // The result of a split for the queries of its kv head. If a sum of weights is 0, the
  // corresponding sum of values is undefined.
  struct Partial {
    float* max;         // [group] largest score
    float* packed_sum;  // [group] sum of weights exp(score - max), of quantized values
    float* dense_sum;   // [group] likewise, of dense ones
    float* packed_out;  // [group, coded_dim] weighted sum of quantized values, still transformed
    float* dense_out;   // [group, head_dim] likewise, of dense ones
  };

  void reserve(const cache::AttentionLayer& layer, std::int64_t first_block, std::int64_t n_splits,
               std::size_t n_slots);
  std::size_t partial_floats() const;
  Partial partial(std::int64_t index, std::int64_t kv_head);
  void prepare_queries(const cache::Tensor& keys, std::int64_t first_block, std::int64_t kv_head,
                       const float* q);
  void attend_split(const cache::AttentionLayer& layer, std::int64_t n_tokens, const Split& split,
                    const Partial& partial, float* scores) const;
  void score_block(const cache::Tensor& keys, std::int64_t n_tokens, std::int64_t block,
                   std::int64_t kv_head, float* scores) const;
  void score_packed_block(const cache::TurboTensor& keys, std::int64_t block, std::int64_t kv_head,
                          float* scores) const;
  void sum_packed_values(const cache::TurboTensor& values, const Split& split, const float* weights,
                         float* out) const;
  void sum_dense_values(const cache::Tensor& values, std::int64_t n_tokens, const Split& split,
                        const float* weights, float* out) const;
  void merge_splits(const cache::Tensor& values, std::int64_t n_splits, std::int64_t kv_head,
                    std::span<const float> sinks, float* scratch, std::span<float> out);

  cache::HeadShape shape_;
  std::int64_t group_;  // query heads per kv head
  ScoreParams scores_;
  Scorer scorer_;
  const codec::Kernels* kernels_;
  std::optional<cache::CenteringTable> centering_;  // if the RoPE supports rotation of the mean

  std::vector<Queries> queries_;  // [n_kv_heads]
  std::size_t coded_dim_ = 0;     // of the values of the current layer; 0 until one is quantized
  AlignedFloats partials_;        // [n_splits, n_kv_heads, partial_floats()]
  std::vector<AlignedFloats> scratch_;  // one scratch buffer per worker
};

}  // namespace tqcache::model
