#pragma once
// cache/window.h: token blocks of a sliding window: how they move with the newest token, and their
// conversion to the contiguous arrays of files and other programs.

#include <cstdint>

#include "tqcache/cache.h"

namespace tqcache::cache {

// A dense, empty window.
WindowLayer empty_window(HeadShape shape, const Window& window, Dtype dtype);

// Releases the memory of token blocks that the window has left, after tokens were appended to its
// keys and values. The block in which the window begins stays complete.
void advance_window(WindowLayer& layer, std::int64_t n_tokens);

// K or V of a window as one array, with packed blocks decoded: [n_kv_heads, window_tokens,
// head_dim] of dense_dtype(tensor), with tokens in position order.
// Requires: `tensor` is layer.attention.k or layer.attention.v.
AlignedBytes gather_window(const WindowLayer& layer, const Tensor& tensor, std::int64_t n_tokens);

// The token blocks of such an array.
// Requires: `array` has the bytes of window_array_shape().
DenseTensor scatter_window(HeadShape shape, const Window& window, Dtype dtype, ByteView array,
                           std::int64_t n_tokens);

}  // namespace tqcache::cache
