#pragma once
// codec/kernels/head_queries.h: attention between packed blocks and the queries that share a kv
// head.
//
// Each part of a codec has its own transform, so the queries are transformed for each part; a score
// is the sum over parts. Sums of values are also computed part by part, and transformed back once
// at the end.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tqcache/bytes.h"
#include "tqcache/codec/head_codec.h"
#include "tqcache/codec/kernels/kernels.h"
#include "tqcache/codec/quantizer.h"

namespace tqcache::codec {

// The queries that share a kv head, prepared for the kernels: rotated once, which replaces rotating
// every key, and rounded to bytes once. One level of bytes is usually enough. A query with most of
// its length in a few components would lose the others: a group with such a query gets two levels.
//
// Buffers are reused from one decode step to the next.
// Threads: one at a time may set; after that any number may read rows().
class QueryGroup {
 public:
  // Rotates the queries, for keys that were packed by `quantizer`.
  // Shapes: queries [n, quantizer.spec().head_dim], n at least 1.
  void set_for_packed(const Quantizer& quantizer, std::span<const float> queries);

  // Uses the queries unchanged, for dense keys. There are no bytes then.
  // Shapes: queries [n, head_dim], n at least 1.
  void set_for_dense(std::size_t head_dim, std::span<const float> queries);

  // Valid until the next set. Units: multipliers and sums are chosen such that NaN or infinity in a
  // query gives NaN scores for that query.
  QueryRows rows() const;

 private:
  void resize(std::size_t n_queries, std::size_t head_dim);
  void round_to_bytes(std::size_t query);

  std::size_t n_queries_ = 0;
  std::size_t stride_ = 0;
  std::size_t n_levels_ = 1;
  AlignedFloats values_;
  std::vector<std::int8_t, AlignedAllocator<std::int8_t>> bytes_;
  std::vector<float> multipliers_;
  std::vector<std::int32_t> sums_;
};

// Reuses its buffers from one decode step to the next.
// Threads: one at a time may set; after that any number may score.
class HeadQueries {
 public:
  // Shapes: queries [n, head_dim], n at least 1; order [head_dim] or empty.
  void set(const HeadCodec& codec, ChannelOrder order, std::span<const float> queries);

  std::size_t n_queries() const { return n_queries_; }

  // scores[q][t] = <query q, decoded vector t>, for the first n_tokens tokens.
  // Shapes: scores [n, 256], rows `stride` apart.
  // Requires: set() with this codec.
  void score(const HeadCodec& codec, const PackedHead& head, std::size_t n_tokens,
             Precision precision, OutputRows scores) const;

 private:
  void set_part(const HeadCodec& codec, std::size_t part);

  std::size_t n_queries_ = 0;
  std::vector<QueryGroup> parts_;
  std::vector<float> bias_sums_;  // [n_parts, n]: sum of the query over the channels of a part
  std::vector<float> ordered_;    // [n, head_dim], in the codec's order of channels
  std::vector<float> slices_;     // [n, channels of a part]
};

// sums[q][i] += sum over tokens t of weights[q][t] * quantized component i of t.
// Shapes: sums [n, codec.coded_dim()].
void accumulate(const HeadCodec& codec, const PackedHead& head, std::size_t n_tokens,
                Precision precision, const WeightRows& weights, OutputRows sums);

}  // namespace tqcache::codec
