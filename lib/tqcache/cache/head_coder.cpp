#include "tqcache/cache/head_coder.h"

#include <algorithm>
#include <vector>

#include "tqcache/base/integers.h"
#include "tqcache/codec/kernels/row_transform.h"

namespace tqcache::cache {
namespace {

// The center of a block, seen from its token `place` on.
codec::Center center_from(codec::Center center, std::int64_t place) {
  if (center.n_pairs == 0) return center;
  center.cos += to_size(place) * center.n_pairs;
  center.sin += to_size(place) * center.n_pairs;
  return center;
}

}  // namespace

bool is_transformed_before_rope(const TurboSide& side) {
  return side.transforms.is_there() && side.mean.kind == Centering::kPreRope;
}

HeadCoder::HeadCoder(const TurboSide& side, HeadShape shape, std::int64_t block,
                     std::int64_t kv_head)
    : side_(side),
      shape_(shape),
      block_(block),
      kv_head_(kv_head),
      mean_(side.mean, shape, block, kv_head) {}

// M R_p^T = M R_f^T R_j^T, of position p = f + j: the part of the block goes into the map.
std::span<const float> HeadCoder::columns(AlignedFloats& turned) const {
  const std::span<const float> map = side_.transforms.columns_of(shape_, kv_head_);
  if (!is_transformed_before_rope(side_)) return map;
  turned.assign(map.begin(), map.end());
  side_.mean.rope->turn_columns_to(block_ * kTokenBlock, shape_.head_dim, turned);
  return turned;
}

std::span<const float> HeadCoder::rows(AlignedFloats& turned) const {
  const std::span<const float> map = side_.transforms.rows_of(shape_, kv_head_);
  if (!is_transformed_before_rope(side_)) return map;
  turned.assign(map.begin(), map.end());
  side_.mean.rope->turn_to(block_ * kTokenBlock, shape_.head_dim, turned);
  return turned;
}

Result<void> HeadCoder::encode(codec::VectorRows x, std::int64_t first, std::size_t n_tokens,
                               std::size_t n_skipped, std::span<std::byte> codes,
                               std::span<std::uint16_t> scales) const {
  const codec::HeadCodec& codec = side_.codec;
  const codec::Center center = center_from(mean_.center(kv_head_), first);
  const codec::ChannelOrder order = side_.outliers.order(kv_head_);
  if (!side_.transforms.is_there()) {
    return codec.encode(x, center, order, n_tokens, n_skipped, codes, scales);
  }
  const std::size_t dim = codec.head_dim();
  codec::RowBuffer centered(n_tokens, dim), mapped(n_tokens, dim);
  AlignedFloats turned;
  codec.kernels().center_rows(x, n_tokens, dim, center, /*first_token=*/0, centered.data());
  if (is_transformed_before_rope(side_))
    turn_rows_back(*side_.mean.rope, first, dim, centered.all());
  codec::multiply_rows(centered.all(), columns(turned), dim, mapped.all(), codec.kernels());
  const auto bytes = std::as_bytes(mapped.all());
  return codec.encode({Dtype::kF32, bytes.data(), dim * sizeof(float)}, {}, order, n_tokens,
                      n_skipped, codes, scales);
}

void HeadCoder::decode(const codec::PackedHead& head, std::int64_t first, std::size_t n_tokens,
                       codec::MutableVectorRows out) const {
  const codec::HeadCodec& codec = side_.codec;
  const std::size_t dim = codec.head_dim();
  const codec::Center center = mean_.center(kv_head_);
  codec::RowBuffer decoded(n_tokens, dim);
  codec.decode(head, side_.outliers.order(kv_head_), n_tokens, decoded.all());
  if (!side_.transforms.is_there()) {
    return codec.kernels().restore_rows({decoded.data(), n_tokens, dim, /*turns=*/false}, center,
                                        to_size(first), out);
  }
  codec::RowBuffer mapped(n_tokens, dim);
  AlignedFloats turned;
  codec::multiply_rows(decoded.all(), rows(turned), dim, mapped.all(), codec.kernels());
  codec.kernels().restore_rows({mapped.data(), n_tokens, dim, is_transformed_before_rope(side_)},
                               center, to_size(first), out);
}

void HeadCoder::decode(const codec::PackedHead& head, std::int64_t first,
                       std::span<float> out) const {
  const std::size_t dim = side_.codec.head_dim();
  decode(head, first, out.size() / dim,
         {Dtype::kF32, std::as_writable_bytes(out).data(), dim * sizeof(float)});
}

}  // namespace tqcache::cache
