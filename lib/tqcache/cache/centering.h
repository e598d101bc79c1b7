#pragma once
// cache/centering.h: removal of the mean head vector before K or V is quantized.
//
// Most of a key before RoPE is the same in every token; in models with key biases, nearly all of
// it. The common part need not be encoded again and again: the mean is stored once per kv head, and
// the codes hold what remains of each token. A mean removed before RoPE rotates with the position,
// so R_p mean is subtracted from token p; a mean removed after RoPE, as for values, is the same for
// every token.
//
// Spec: docs/reference/codec.md §8.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "tqcache/bytes.h"
#include "tqcache/cache/rope_angles.h"
#include "tqcache/codec/kernels/kernels.h"
#include "tqcache/description.h"

namespace tqcache::cache {

// The effective centering of keys of `head_dim` components: kPreRope becomes kPostRope if the cache
// does not describe the RoPE of the keys.
Centering key_centering(Centering wanted, const Rope& rope, std::int64_t head_dim);

// The effective centering of values: they have no RoPE, so kPreRope becomes kPostRope.
Centering value_centering(Centering wanted);

// The mean of K or V. It is fixed when the first token block is quantized, and used for all later
// blocks.
struct Mean {
  Centering kind = Centering::kNone;
  // [n_kv_heads, head_dim]; for kPreRope before RoPE. Empty for kNone, or if not fixed yet.
  AlignedFloats values = {};
  std::shared_ptr<const RopeTable> rope = {};  // for kPreRope; shared by the whole cache

  bool is_fixed() const { return kind == Centering::kNone || !values.empty(); }
};

bool operator==(const Mean& a, const Mean& b);

// The mean of one kv head: [head_dim]. Requires: mean.values is not empty.
inline std::span<const float> mean_of_head(const Mean& mean, HeadShape shape,
                                           std::int64_t kv_head) {
  const auto head_dim = static_cast<std::size_t>(shape.head_dim);
  return std::span(mean.values).subspan(static_cast<std::size_t>(kv_head) * head_dim, head_dim);
}

// The mean of the tokens in some full blocks of K or V, without the first `n_sinks` tokens and
// those that a window has left.
//
// Shapes:   blocks in ascending order, at least one, all of one shape and dtype; the result
//           [n_kv_heads, head_dim]. Zero when no token is left, or when a value is not finite:
//           encoding then reports where.
// Requires: rope as in Mean; null: the vectors are used as stored.
AlignedFloats compute_mean(std::span<const FullBlock> blocks, std::int64_t n_sinks,
                           const RopeTable* rope, unsigned n_threads);

// The mean as it applies to the tokens of one block. Does nothing for a mean without values.
class BlockMean {
 public:
  // For all kv heads. `mean` must outlive this.
  BlockMean(const Mean& mean, HeadShape shape, std::int64_t block);
  // For one kv head.
  BlockMean(const Mean& mean, HeadShape shape, std::int64_t block, std::int64_t kv_head);

  // Shapes: rows [n, head_dim]: the tokens of the block from `first_token` on.
  // Bytes:  identical on every CPU.
  void subtract_from(std::int64_t kv_head, std::int64_t first_token, std::span<float> rows) const;
  void add_to(std::int64_t kv_head, std::int64_t first_token, std::span<float> rows) const;

  // What the codec subtracts in this block. Valid as long as this object.
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
  AlignedFloats rows_;  // per head, at the position of the block's first token
};

}  // namespace tqcache::cache
