#pragma once
// cache/layer.h: the state that one decoder layer keeps of the prompt.
//
// A closed set of kinds: code that visits a Layer with Overload does not compile when it forgets
// one. Each kind has a description without values in cache/description.h.

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "tqcache/base/aligned.h"
#include "tqcache/cache/description.h"
#include "tqcache/cache/side.h"

namespace tqcache::cache {

// Full attention: a key and a value for every token. Keys are after RoPE, components in
// half-split order (component i turns with i + head_dim / 2).
struct AttentionLayer {
  HeadShape shape;
  Side k;
  Side v;
};

// Sliding-window attention: keys and values of the window's tokens alone. Token blocks are numbered
// from the cache's first token, as in full attention; a block without a token of the window is
// empty. Values of tokens that lie in a block of the window, but not in the window, may be
// anything.
struct WindowLayer {
  AttentionLayer attention;
  Window window;
};

struct NamedArray {
  std::string name;  // "conv", "state", ...
  Dtype dtype = Dtype::kF32;
  std::vector<std::uint64_t> shape;  // outermost first
  AlignedBytes data;                 // [shape] of dtype
};

// Recurrent state of a layer without attention (linear attention, convolution, SSM). It is kept bit
// for bit, belongs to exactly the cache's token count, and cannot be truncated.
struct StateLayer {
  std::vector<NamedArray> arrays;
};

using Layer = std::variant<AttentionLayer, WindowLayer, StateLayer>;

// Keys and values of a layer; null for recurrent state.
const AttentionLayer* attention_of(const Layer& layer);
AttentionLayer* attention_of(Layer& layer);

// Whether K or V is quantized.
inline bool is_quantized(const AttentionLayer& layer) {
  return std::holds_alternative<TurboSide>(layer.k) || std::holds_alternative<TurboSide>(layer.v);
}

// The first token of the run of newest tokens that a layer holds: 0 for full attention.
std::int64_t first_token(const Layer& layer, std::int64_t n_tokens);

// The description of a layer.
LayerDesc describe(const Layer& layer);

}  // namespace tqcache::cache
