#pragma once
// model/attention/kv_filter.h: keys and values changed on their way into a cache, to see what it
// costs.
//
// What a codec does to a model shows when every key and value is coded before attention sees it,
// the current token's own included. A cache in use is kinder: its tail is dense.

#include <cstdint>
#include <functional>
#include <span>

#include "tqcache/base/result.h"
#include "tqcache/cache/cache.h"

namespace tqcache::model {

// Changes the keys and values of some tokens before layer `layer` takes them.
//
// Shapes: k, v [n, n_kv_heads, head_dim], of the tokens at positions [first, first + n), which
//         stand in one token block; keys are after RoPE.
// Errors: end the prefill.
using KvFilter = std::function<Result<void>(std::int64_t layer, std::int64_t first,
                                            std::span<float> k, std::span<float> v)>;

// Gives keys and values the values that the sides of `cache` would keep of them: encoded and
// decoded with the side's codec, mean and outlier channels. Sink tokens, dense sides and layers
// with a window stay as they are.
//
// Requires: `cache` outlives the filter; its layers have the shapes of the model's.
// Errors:   of the filter: kInvalidArgument when a side has packed nothing, so that its mean or its
//           outlier channels are not known; those of HeadCodec::encode. The message names the layer
//           and the side.
KvFilter coding_filter(const cache::Cache& cache);

}  // namespace tqcache::model
