#include "tqcache/cache/head_coder.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "tqcache/codec/row_map.h"

namespace tqcache::cache {
namespace {

std::size_t to_size(std::int64_t n) { return static_cast<std::size_t>(n); }

// The centre of a block, seen from its token `place` on.
codec::Centre centre_from(codec::Centre centre, std::int64_t place) {
  if (centre.n_pairs == 0) return centre;
  centre.cos += to_size(place) * centre.n_pairs;
  centre.sin += to_size(place) * centre.n_pairs;
  return centre;
}

void transpose(std::span<const float> matrix, std::size_t dim, std::span<float> out) {
  for (std::size_t i = 0; i < matrix.size(); ++i) out[i % dim * dim + i / dim] = matrix[i];
}

}  // namespace

bool is_mapped_before_rope(const TurboSide& side) {
  return side.maps.is_there() && side.mean.kind == Centring::kPreRope;
}

HeadCoder::HeadCoder(const TurboSide& side, HeadShape shape, std::int64_t block,
                     std::int64_t kv_head)
    : side_(side), shape_(shape), kv_head_(kv_head), mean_(side.mean, shape, block, kv_head) {
  if (!is_mapped_before_rope(side)) return;
  // M R_p^T = M R_f^T R_j^T, of position p = f + j: the part of the block goes into the map.
  const std::span<const float> rows = side.maps.rows_of(shape, kv_head);
  rows_.assign(rows.begin(), rows.end());
  columns_.resize(rows.size());
  side.mean.rope->turn_to(block * kTokenBlock, shape.head_dim, rows_);
  transpose(rows_, to_size(shape.head_dim), columns_);
}

const RopeTable* HeadCoder::turning() const {
  return rows_.empty() ? nullptr : side_.mean.rope.get();
}

Result<void> HeadCoder::encode(codec::VectorRows x, std::int64_t first, std::size_t n_tokens,
                               std::size_t n_skipped, std::span<std::byte> codes,
                               std::span<std::uint16_t> scales) const {
  const codec::HeadCodec& codec = side_.codec;
  const codec::Centre centre = centre_from(mean_.centre(kv_head_), first);
  const codec::ChannelOrder order = side_.outliers.order(kv_head_);
  if (!side_.maps.is_there()) {
    return codec.encode(x, centre, order, n_tokens, n_skipped, codes, scales);
  }
  const std::size_t dim = codec.head_dim();
  AlignedFloats rows(n_tokens * dim), mapped(n_tokens * dim);
  codec.kernels().centre_rows(x, n_tokens, dim, centre, /*first_token=*/0, rows.data());
  if (turning() != nullptr) turn_rows_back(*turning(), first, dim, rows);
  codec::multiply_rows(
      rows, turning() ? std::span<const float>(columns_) : side_.maps.columns_of(shape_, kv_head_),
      dim, mapped, codec.kernels());
  const auto bytes = std::as_bytes(std::span<const float>(mapped));
  return codec.encode({Dtype::kF32, bytes.data(), dim * sizeof(float)}, {}, order, n_tokens,
                      n_skipped, codes, scales);
}

void HeadCoder::decode(const codec::PackedHead& head, std::int64_t first,
                       std::span<float> out) const {
  const codec::HeadCodec& codec = side_.codec;
  const std::size_t dim = codec.head_dim();
  codec.decode(head, side_.outliers.order(kv_head_), out.size() / dim, out);
  if (side_.maps.is_there()) {
    const AlignedFloats mapped(out.begin(), out.end());
    codec::multiply_rows(
        mapped, turning() ? std::span<const float>(rows_) : side_.maps.rows_of(shape_, kv_head_),
        dim, out, codec.kernels());
    if (turning() != nullptr) turn_rows(*turning(), first, dim, out);
  }
  mean_.add_to(kv_head_, first, out);
}

}  // namespace tqcache::cache
