#pragma once
// cache/head_transforms.h: linear transforms fitted to the vectors of each kv head of K or V.
//
// Head vectors have more variance in some directions than in others. After a transform that rotates
// the directions of most variance into components (the Karhunen-Loeve transform), they take fewer
// bits at the same error: components of little variance need hardly any. The transform belongs to
// the data, as the mean does, and is stored in the file. For keys it is fitted and applied before
// RoPE, where such directions exist; after RoPE they differ from position to position.
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
  bool are_wanted = false;  // to be fitted when the codec is fixed
  // As stored in a file: [n_kv_heads, head_dim, head_dim]. Each row is divided by 64 and made
  // orthogonal to the rows before it. Empty: no transforms.
  std::vector<std::int8_t> entries = {};
  AlignedFloats rows = {};     // the same shape: the orthogonal matrices
  AlignedFloats columns = {};  // likewise, transposed

  bool is_fixed() const { return !are_wanted || is_there(); }
  bool is_there() const { return !entries.empty(); }
  // For one kv head: [head_dim, head_dim].
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

// From a file. Errors: kCorrupt when the count is wrong, or rows are linearly dependent.
Result<HeadTransforms> make_head_transforms(HeadShape shape, std::vector<std::int8_t> entries);

// Fits them to the tokens in some full blocks of K or V, without the first `n_sinks` tokens. The
// directions of most variance come first. Empty when a value is not finite: encoding then reports
// where.
//
// Shapes:   blocks in ascending order, at least one, all of one shape and dtype.
// Requires: mean.is_fixed(). If the mean is before RoPE, RoPE is undone after subtracting it.
// Bytes:    identical on every CPU and for any number of threads.
HeadTransforms fit_head_transforms(std::span<const FullBlock> blocks, std::int64_t n_sinks,
                                   const Mean& mean, unsigned n_threads);

// Applies R_j^T to the rows of a block's tokens j = first, first + 1, ... (offsets in the block).
void rotate_rows_back(const RopeTable& rope, std::int64_t first, std::size_t head_dim,
                      std::span<float> rows);

}  // namespace tqcache::cache
