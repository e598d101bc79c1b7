#pragma once
// codec/center.h: what is taken out of head vectors before they are encoded.
//
// One vector a kv head and token block. After RoPE it is the same in every token; taken out before
// RoPE, it turns with the token: components i and i + n_pairs together, by an angle that depends on
// i and on the token's place in the block alone.
//
// Spec: docs/reference/codec.md §8.

#include <cstddef>

namespace tqcache::codec {

// Views; whoever makes one keeps what it points to.
struct Center {
  const float* mean = nullptr;  // [head_dim], as it stands in the block's first token; null: none
  std::size_t n_pairs = 0;      // 0: it does not turn
  const float* cos = nullptr;   // [256, n_pairs], by place in the block
  const float* sin = nullptr;   // likewise
};

}  // namespace tqcache::codec
