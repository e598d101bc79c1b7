#pragma once
// codec/kernels/query_group.h: the queries that share a kv head, made ready for the kernels.
//
// A query is turned once, not every key; and it is rounded to bytes once. One level of bytes
// serves as a rule. A query with most of its length in a few components would lose the others: a
// group with such a one gets two levels.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tqcache/base/aligned.h"
#include "tqcache/codec/kernels/kernels.h"
#include "tqcache/codec/quantizer.h"

namespace tqcache::codec {

// Buffers that are used again from one step to the next.
// Threads: one at a time may set; after that any number may read rows().
class QueryGroup {
 public:
  // Rotates the queries, for keys that `quantizer` packed.
  // Shapes: queries [n, quantizer.spec().head_dim], n at least 1.
  void set_for_packed(const Quantizer& quantizer, std::span<const float> queries);

  // Takes the queries as they are, for dense keys. There are no bytes then.
  // Shapes: queries [n, head_dim], n at least 1.
  void set_for_dense(std::size_t head_dim, std::span<const float> queries);

  // Valid until the next set. Units: multipliers and sums are such that NaN or infinity in a query
  // gives NaN scores for that query.
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

}  // namespace tqcache::codec
