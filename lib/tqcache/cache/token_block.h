#pragma once
// cache/token_block.h: the shape of a side, and the unit it is cut into.

#include <algorithm>
#include <cstdint>

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

}  // namespace tqcache::cache
