#pragma once
// model/layer_check.h: whether the layers of a cache are those that a model has, by kind and shape.

#include "tqcache/base/result.h"
#include "tqcache/cache/cache.h"
#include "tqcache/model/loading/config.h"

namespace tqcache::model {

// A rotating layer may have the size of the model's window, or one token less: then it has what
// the next token sees (as transformers keeps it), though not what the last one has seen.
//
// Errors: kMismatch (counts, shapes, windows, full attention where the model has none),
//         kInvalidArgument (an arrays or a rotating layer where the model has full attention). The
//         message names the layer.
Result<void> check_layers(const cache::Cache& cache, const ModelConfig& config);

// Whether tokens from `first` on can be computed again over what the cache holds.
// Errors: kUnsupported when a layer keeps only the state behind the last token, or when its window
//         has left what these tokens have seen. The message names the layer.
Result<void> check_can_run_again(const cache::Cache& cache, std::int64_t first,
                                 const ModelConfig& config);

}  // namespace tqcache::model
