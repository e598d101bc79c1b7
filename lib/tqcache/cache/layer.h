#pragma once
// cache/layer.h: what one decoder layer keeps of the prompt.
//
// A closed set of kinds: code that visits a Layer does not compile when it forgets one.

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "tqcache/base/aligned.h"
#include "tqcache/cache/side.h"

namespace tqcache::cache {

// Full attention: a key and a value for every token. Keys are after RoPE, components in
// half-split order (component i turns with i + head_dim / 2).
struct AttentionLayer {
  HeadShape shape;
  Side k;
  Side v;
};

// State of a layer without attention (linear attention, convolution, SSM). It is kept bit for
// bit, belongs to exactly the cache's token count, and is never cut shorter.
struct NamedArray {
  std::string name;  // "conv", "state", ...
  Dtype dtype = Dtype::kF32;
  std::vector<std::uint64_t> shape;  // outermost first
  AlignedBytes data;                 // [shape] of dtype
};
struct ArraysLayer {
  std::vector<NamedArray> arrays;
};

using Layer = std::variant<AttentionLayer, ArraysLayer>;

}  // namespace tqcache::cache
