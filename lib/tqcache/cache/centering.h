#pragma once
// cache/centering.h: takes the mean head vector out before a side is packed.
//
// Of a key before RoPE most is the same in every token; of a model with key biases, nearly all.
// What is the same in every token need not be packed again and again: the mean is kept once a kv
// head, and the codes are of what is left of each token. Taken out before RoPE, the mean turns with
// the position, so token p loses R_p mean; taken out after RoPE, as of values, it is the same
// everywhere.
//
// Spec: docs/reference/codec.md §8.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "tqcache/base/aligned.h"
#include "tqcache/base/dtype.h"
#include "tqcache/cache/description.h"
#include "tqcache/cache/rope_angles.h"
#include "tqcache/cache/token_block.h"
#include "tqcache/codec/kernels/kernels.h"

namespace tqcache::cache {

// What keys of `head_dim` components get when `wanted` is asked for: kPreRope becomes kPostRope
// where the cache does not say how the model turned them.
Centering key_centering(Centering wanted, const Rope& rope, std::int64_t head_dim);

// What values get: they have no RoPE, so kPreRope becomes kPostRope.
Centering value_centering(Centering wanted);

// The mean of one side. It is fixed when the first token block is packed, and kept for all that
// come later.
struct Mean {
  Centering kind = Centering::kNone;
  // [n_kv_heads, head_dim], of kPreRope before RoPE. Empty: of kNone, or not fixed yet.
  AlignedFloats values = {};
  std::shared_ptr<const RopeTable> rope = {};  // of kPreRope; one for all sides of a cache

  bool is_fixed() const { return kind == Centering::kNone || !values.empty(); }
};

bool operator==(const Mean& a, const Mean& b);

// The mean of one kv head: [head_dim]. Requires: mean.values are there.
inline std::span<const float> mean_of_head(const Mean& mean, HeadShape shape,
                                           std::int64_t kv_head) {
  const auto head_dim = static_cast<std::size_t>(shape.head_dim);
  return std::span(mean.values).subspan(static_cast<std::size_t>(kv_head) * head_dim, head_dim);
}

// The token blocks that the mean of a side of n_tokens tokens is taken over, ascending: all full
// ones if there are no more than 32, otherwise 32 of them, evenly spread and the first among them.
// So who streams a cache reads a bounded part of it twice.
//
// Of a sliding window that begins with token `begin`, those that lie in it whole; if there are
// none, full ones that it begins in.
std::vector<std::int64_t> mean_blocks(std::int64_t n_tokens, std::int64_t begin = 0);

// The mean of the tokens in some full blocks of a side, but for its first `n_sinks` tokens and
// those that a window has left.
//
// Shapes:   blocks in ascending order, at least one, all of one shape and dtype; the result
//           [n_kv_heads, head_dim]. Zero when no token is left, and when a value is not finite:
//           then packing tells where.
// Requires: rope as in Mean: null takes the vectors as they stand.
// Bytes:    identical on every CPU and for any number of threads.
AlignedFloats compute_mean(std::span<const FullBlock> blocks, std::int64_t n_sinks,
                           const RopeTable* rope, unsigned n_threads);

// The mean as it stands in the tokens of one block. Does nothing for a mean without values.
class BlockMean {
 public:
  // Of all kv heads. `mean` must outlive this.
  BlockMean(const Mean& mean, HeadShape shape, std::int64_t block);
  // Of one kv head.
  BlockMean(const Mean& mean, HeadShape shape, std::int64_t block, std::int64_t kv_head);

  // Shapes: rows [n, head_dim]: the tokens of the block from `first_token` on.
  // Bytes:  identical on every CPU.
  void subtract_from(std::int64_t kv_head, std::int64_t first_token, std::span<float> rows) const;
  void add_to(std::int64_t kv_head, std::int64_t first_token, std::span<float> rows) const;

  // What the codec takes out of this block. Valid as long as this.
  codec::Center center(std::int64_t kv_head) const;

 private:
  BlockMean(const Mean& mean, std::int64_t head_dim, std::int64_t block, std::int64_t first_head,
            std::span<const float> values);
  template <class Apply>
  void for_each(std::int64_t kv_head, std::int64_t first_token, std::span<float> rows,
                Apply apply) const;

  const RopeTable* rope_;
  std::size_t head_dim_;
  std::int64_t first_head_;
  AlignedFloats rows_;  // of each head, as it stands in the block's first token
};

}  // namespace tqcache::cache
