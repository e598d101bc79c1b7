#pragma once
// cache/head_coder.h: the head vectors of one kv head in one token block to codes and back, with
// all that the side does to them before: mean, RoPE, map.
//
// Spec: docs/reference/codec.md §8 and §10.

#include <cstdint>
#include <span>

#include "tqcache/base/result.h"
#include "tqcache/cache/side.h"

namespace tqcache::cache {

class HeadCoder {
 public:
  // Requires: the side's mean and outlier channels are fixed. `side` must outlive this.
  HeadCoder(const TurboSide& side, HeadShape shape, std::int64_t block, std::int64_t kv_head);

  // Encodes the block's tokens first, first + 1, ... as HeadCodec::encode does tokens 0, 1, ...
  // Errors, bytes: as there. The first n_skipped get code 0 and scale 0.
  Result<void> encode(codec::VectorRows x, std::int64_t first, std::size_t n_tokens,
                      std::size_t n_skipped, std::span<std::byte> codes,
                      std::span<std::uint16_t> scales) const;

  // The inverse, with what was taken out, rounded to the dtype of `out`.
  void decode(const codec::PackedHead& head, std::int64_t first, std::size_t n_tokens,
              codec::MutableVectorRows out) const;

  // The same in f32. Shapes: out [n, head_dim].
  void decode(const codec::PackedHead& head, std::int64_t first, std::span<float> out) const;

 private:
  // The map as it is to be applied in this block; `turned` is memory for one that turns.
  std::span<const float> columns(AlignedFloats& turned) const;
  std::span<const float> rows(AlignedFloats& turned) const;

  const TurboSide& side_;
  HeadShape shape_;
  std::int64_t block_;
  std::int64_t kv_head_;
  BlockMean mean_;
};

// Whether keys are mapped before RoPE: then their codes cannot be scored, and stand decoded too.
bool is_transformed_before_rope(const TurboSide& side);

}  // namespace tqcache::cache
