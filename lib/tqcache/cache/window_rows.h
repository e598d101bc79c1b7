#pragma once
// cache/window_rows.h: a rotating layer in a form that a model can go on from.
//
// In files and for other programs a rotating layer is two arrays of exactly the window's tokens. To
// append a token there, all others would have to move. Opened, the layer has token blocks as full
// attention has them, numbered from the cache's first token on; those that lie before the window
// are empty. So a new token costs what it costs there, and memory holds up to a token block more
// than the window.
//
// A turbo window is always open. Its full blocks are packed as those of full attention are, and
// given back when the window has left them; the one that it begins in stays whole. What stands in a
// block before the window is asked for by nobody: it may be zero, or what once stood there.

#include <cstdint>

#include "tqcache/cache/layer.h"

namespace tqcache::cache {

// The first token that the window still holds, of n_tokens.
inline std::int64_t window_begin(const Window& window, std::int64_t n_tokens) {
  return n_tokens - window_tokens(window, n_tokens);
}

// The token block that it stands in.
inline std::int64_t first_window_block(const Window& window, std::int64_t n_tokens) {
  return window_begin(window, n_tokens) / kTokenBlock;
}

// Opens a rotating layer; does nothing to one that is open.
// Requires: the layer is valid (cache::validate) for n_tokens, and keeps no first tokens.
void open_window(ArraysLayer& layer, std::int64_t n_tokens);

// After tokens were appended to layer.rows, or none: n_tokens are there now. Token blocks that the
// window has left give their memory back, and the arrays get their new shape.
// Requires: the layer is open.
void advance_window(ArraysLayer& layer, std::int64_t n_tokens);

// The bytes of array `index` (0 keys, 1 values) of an open layer: [n_kv_heads, tokens, head_dim] of
// the dtype of what is dense. Packed blocks are decoded.
AlignedBytes window_array(const ArraysLayer& layer, std::size_t index, std::int64_t n_tokens);

// Puts the tokens back into the arrays; does nothing to a layer that is not open. A turbo one is
// then dense.
void close_window(ArraysLayer& layer, std::int64_t n_tokens);

}  // namespace tqcache::cache
