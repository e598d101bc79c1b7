#pragma once
// cache/kv_attention.h: the queries that KvCodec::score() scores against packed keys.
//
//   KeyQueries queries;
//   queries.set(codec, kv_head, q, &table);                  // once for each head and step
//   codec.score(queries, packed, block, precision, scores);  // for each token block
//
// Spec: docs/reference/codec.md §8 and §9.

#include <cstdint>
#include <span>

#include "tqcache/bytes.h"
#include "tqcache/cache/centering_score.h"
#include "tqcache/codec/kernels/head_queries.h"
#include "tqcache/kv_codec.h"

namespace tqcache::cache {

// The queries that share a kv head, transformed as its keys are, and multiplied by their mean.
//
// Buffers are reused from one decode step to the next.
// Threads: set() must be alone; after that any number may score.
class KeyQueries {
 public:
  // Shapes:   queries [n, head_dim], n at least 1, after RoPE and times the scale of scores.
  // Requires: a codec of keys, is_fixed(), not must_keep_decoded(). With Centering::kPreRope
  //           `table` outlives this and holds the blocks that are scored; else it may be null.
  void set(const KvCodec& codec, std::int64_t kv_head, std::span<const float> queries,
           const CenteringTable* table);

 private:
  friend class KvCodec;

  std::int64_t kv_head_ = 0;
  AlignedFloats transformed_;  // [n, head_dim]; used with transforms or factors
  codec::HeadQueries codes_;
  CenteringScore mean_;
};

}  // namespace tqcache::cache
