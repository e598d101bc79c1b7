#pragma once
// cache/head_transforms.h: a linear map for each kv head of a side, made for its vectors.
//
// Head vectors fill some directions more than others. Turned so that their directions of most
// variance become components (the Karhunen-Loeve transform), they take fewer bits at the same
// error: components of little variance hardly need any. The map belongs to the data, as the mean
// does, and travels in the file. Of keys it is made, and applied, before RoPE, where they have such
// directions: afterwards every position turns them elsewhere.
//
// Spec: docs/reference/codec.md §10.

#include <cstdint>
#include <span>
#include <vector>

#include "tqcache/bytes.h"
#include "tqcache/cache/centering.h"
#include "tqcache/description.h"
#include "tqcache/error.h"

namespace tqcache::cache {

struct HeadTransforms {
  bool are_wanted = false;  // to be made when the side is fixed
  // As they travel: [n_kv_heads, head_dim, head_dim], each row to be divided by 64 and made
  // orthogonal to those before. Empty: none.
  std::vector<std::int8_t> entries = {};
  AlignedFloats rows = {};     // the same shape: the orthogonal matrices
  AlignedFloats columns = {};  // likewise, transposed

  bool is_fixed() const { return !are_wanted || is_there(); }
  bool is_there() const { return !entries.empty(); }
  // Of one kv head: [head_dim, head_dim].
  std::span<const float> rows_of(HeadShape shape, std::int64_t kv_head) const {
    return of_head(rows, shape, kv_head);
  }
  std::span<const float> columns_of(HeadShape shape, std::int64_t kv_head) const {
    return of_head(columns, shape, kv_head);
  }
  static std::span<const float> of_head(const AlignedFloats& all, HeadShape shape,
                                        std::int64_t kv_head) {
    const auto size = static_cast<std::size_t>(shape.head_dim * shape.head_dim);
    return std::span(all).subspan(static_cast<std::size_t>(kv_head) * size, size);
  }

  bool operator==(const HeadTransforms& other) const { return entries == other.entries; }
};

// Of a file. Errors: kCorrupt when the count is wrong, or rows depend on each other.
Result<HeadTransforms> make_head_transforms(HeadShape shape, std::vector<std::int8_t> entries);

// Makes them for the tokens in some full blocks of a side, but for its first `n_sinks` tokens. The
// directions of most variance come first. Nothing, when a value is not finite: then packing tells
// where.
//
// Shapes:   blocks in ascending order, at least one, all of one shape and dtype.
// Requires: mean.is_fixed(); what it takes out is turned back with it, if it is before RoPE.
// Bytes:    identical on every CPU and for any number of threads.
HeadTransforms fit_head_transforms(std::span<const FullBlock> blocks, std::int64_t n_sinks,
                                   const Mean& mean, unsigned n_threads);

// R_j^T of the rows of a block's tokens first, first + 1, ..., j being their places in it.
void turn_rows_back(const RopeTable& rope, std::int64_t first, std::size_t head_dim,
                    std::span<float> rows);

}  // namespace tqcache::cache
