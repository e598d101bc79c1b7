#pragma once
// cache/token_block.h: the shape of a side, and the unit it is cut into.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "tqcache/base/bytes.h"
#include "tqcache/base/dtype.h"

namespace tqcache::cache {

inline constexpr std::int64_t kTokenBlock = 256;  // tokens; part of the file format

struct HeadShape {
  std::int64_t n_kv_heads = 0;
  std::int64_t head_dim = 0;
  bool operator==(const HeadShape&) const = default;
};

// Number of token blocks that `n_tokens` tokens fill or begin.
constexpr std::int64_t block_count(std::int64_t n_tokens) {
  return (n_tokens + kTokenBlock - 1) / kTokenBlock;
}

// Number of valid tokens in block `block` of a side of `n_tokens` tokens.
constexpr std::int64_t tokens_in_block(std::int64_t n_tokens, std::int64_t block) {
  return std::min(kTokenBlock, n_tokens - block * kTokenBlock);
}

// Number of tokens in block `block` that are among the first `n_sinks` of a side, at most
// kTokenBlock.
constexpr std::int64_t sinks_in_block(std::int64_t n_sinks, std::int64_t block) {
  return block == 0 ? n_sinks : 0;
}

// Number of tokens in block `block` that stand before token `begin`.
constexpr std::int64_t tokens_before(std::int64_t begin, std::int64_t block) {
  return std::clamp<std::int64_t>(begin - block * kTokenBlock, 0, kTokenBlock);
}

// A dense block that is full, wherever it is kept: all that packing it needs to know.
struct FullBlock {
  HeadShape shape;
  Dtype dtype = Dtype::kF16;
  std::int64_t index = 0;  // token block: its first token is at 256 times this
  ByteView values;         // [n_kv_heads, kTokenBlock, head_dim] of dtype
  // Its first tokens that a sliding window has left: nobody asks for them any more, and their
  // values may be anything.
  std::int64_t n_left = 0;

  // The head vectors of one kv head: [kTokenBlock, head_dim].
  ByteView head(std::int64_t kv_head) const {
    const auto size = static_cast<std::size_t>(kTokenBlock * shape.head_dim) * dtype_size(dtype);
    return values.subspan(static_cast<std::size_t>(kv_head) * size, size);
  }
};

// Number of first tokens of a block that are not coded: sink tokens stand densely.
constexpr std::int64_t uncoded_tokens(const FullBlock& block, std::int64_t n_sinks) {
  return std::max(sinks_in_block(n_sinks, block.index), block.n_left);
}

}  // namespace tqcache::cache
