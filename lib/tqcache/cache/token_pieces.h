#pragma once
// cache/token_pieces.h: sums over the tokens of a dense block, sixteen at a time.
//
// Sixteen rows of f32 stay in the L1 cache, and their sum in f32 is almost exact; the sums of all
// pieces are added in f64.
//
// Spec: docs/reference/codec.md §8, "The mean".

#include <algorithm>
#include <cstdint>
#include <span>

#include "tqcache/bytes.h"
#include "tqcache/codec/kernels/kernels.h"
#include "tqcache/description.h"

namespace tqcache::cache {

inline constexpr std::int64_t kPieceTokens = 16;

// The tokens of one kv head in a block, from `begin` on. The first piece ends at the next multiple
// of kPieceTokens.
struct Pieces {
  const FullBlock& block;
  std::int64_t kv_head = 0;
  std::int64_t begin = 0;
};

// Calls add(first, rows, sum) for each piece, in order. rows [n, head_dim] are tokens first,
// first + 1, ... of the block with `center` subtracted; sum [head_dim] of f32 begins at 0 and is
// then added to `total`.
template <class Add>
void add_pieces(const Pieces& pieces, const codec::Center& center, std::span<double> total,
                const Add& add) {
  const Dtype dtype = pieces.block.dtype;
  const std::size_t head_dim = total.size();
  const std::size_t stride = head_dim * dtype_size(dtype);
  const std::byte* const head = pieces.block.head(pieces.kv_head).data();
  AlignedFloats rows(static_cast<std::size_t>(kPieceTokens) * head_dim), sum(head_dim);
  for (std::int64_t begin = pieces.begin, end; begin < kTokenBlock; begin = end) {
    end = (begin / kPieceTokens + 1) * kPieceTokens;
    const auto first = static_cast<std::size_t>(begin);
    const auto n = static_cast<std::size_t>(end - begin);
    codec::best_kernels().center_rows({dtype, head + first * stride, stride}, n, head_dim, center,
                                      first, rows.data());
    std::ranges::fill(sum, 0.0f);
    add(begin, std::span<const float>(rows).first(n * head_dim), std::span<float>(sum));
    for (std::size_t i = 0; i < head_dim; ++i) total[i] += static_cast<double>(sum[i]);
  }
}

}  // namespace tqcache::cache
