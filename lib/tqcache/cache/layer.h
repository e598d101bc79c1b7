#pragma once
// cache/layer.h: what one decoder layer keeps of the prompt.
//
// A closed set of kinds: code that visits a Layer does not compile when it forgets one.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
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

// Sliding-window attention: the state of the newest tokens alone. Of a layer that has seen n tokens
// min(n, size) are there: the first `keep` ones, which stay for good, and then the newest, in the
// order of their positions whatever order a ring had them in. Keys are as in AttentionLayer.
// Only a window that keeps no first tokens can be turbo.
struct Window {
  HeadShape shape;
  std::int64_t size = 0;  // tokens kept at most, at least 1
  std::int64_t keep = 0;  // of these the cache's first ones, 0 to size - 1
  bool operator==(const Window&) const = default;
};

struct ArraysLayer {
  std::vector<NamedArray> arrays;
  // A rotating layer: the arrays are "keys" and "values", each [n_kv_heads, tokens, head_dim]. It
  // is state like any other here: kept bit for bit, and never cut shorter.
  std::optional<Window> window = {};
  // Of a rotating layer that a model goes on from, the tokens of the window, in token blocks that
  // new ones can be appended to (cache/window_rows.h). The data of the arrays is then empty. One
  // that is turbo has them always; its arrays only say the shape and the dtype of what is dense.
  std::optional<AttentionLayer> rows = {};
};

// Whether a side of a rotating layer is turbo.
inline bool is_turbo_window(const ArraysLayer& layer) {
  return layer.rows && (std::holds_alternative<TurboSide>(layer.rows->k) ||
                        std::holds_alternative<TurboSide>(layer.rows->v));
}

// Tokens whose state a rotating layer holds.
inline std::int64_t window_tokens(const Window& window, std::int64_t n_tokens) {
  return std::min(window.size, n_tokens);
}

// What the two arrays of a rotating layer are called.
inline constexpr std::string_view kWindowKeys = "keys";
inline constexpr std::string_view kWindowValues = "values";

// The shape of both, outermost first.
inline std::vector<std::uint64_t> window_array_shape(const Window& window, std::int64_t n_tokens) {
  return {static_cast<std::uint64_t>(window.shape.n_kv_heads),
          static_cast<std::uint64_t>(window_tokens(window, n_tokens)),
          static_cast<std::uint64_t>(window.shape.head_dim)};
}

using Layer = std::variant<AttentionLayer, ArraysLayer>;

// Keys and values in token blocks, of full attention or of a window that is open; otherwise null.
inline AttentionLayer* rows_of(Layer& layer) {
  if (auto* attention = std::get_if<AttentionLayer>(&layer)) return attention;
  auto& rows = std::get<ArraysLayer>(layer).rows;
  return rows ? &*rows : nullptr;
}
inline const AttentionLayer* rows_of(const Layer& layer) {
  return rows_of(const_cast<Layer&>(layer));
}

}  // namespace tqcache::cache
