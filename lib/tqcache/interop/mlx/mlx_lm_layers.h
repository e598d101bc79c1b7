#pragma once
// interop/mlx/mlx_lm_layers.h: the conversion of one cache object of mlx-lm into a layer. Safe for
// untrusted input.
//
// Spec: docs/reference/interop.md, "mlx-lm".

#include <cstdint>
#include <string>
#include <vector>

#include "tqcache/error.h"
#include "tqcache/interop/foreign_cache.h"
#include "tqcache/interop/mlx/mlx_lm_state.h"

namespace tqcache::interop {

// `n_tokens`: how many the whole file has seen, which tokens_seen() says of each cache that knows.
// `row`: of a batch. Adds what the cache does not keep to `dropped_fields`.
//
// Errors: kCorrupt, kTooLarge, kUnsupported, kInvalidArgument (no such row).
Result<ForeignLayer> make_layer(MlxFile& file, const MlxCache& cache, std::int64_t n_tokens,
                                std::int64_t row, std::vector<std::string>& dropped_fields);

}  // namespace tqcache::interop
