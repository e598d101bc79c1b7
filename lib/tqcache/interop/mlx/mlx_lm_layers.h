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

// `n_tokens`: the number that the whole file has seen; tokens_seen() returns it for each cache that
// states it. `row`: the row of the batch. Adds the fields that the cache does not keep to
// `dropped_fields`.
//
// Errors: kCorrupt, kTooLarge, kUnsupported, kInvalidArgument (no such row).
Result<ForeignLayer> make_layer(MlxFile& file, const MlxCache& cache, std::int64_t n_tokens,
                                std::int64_t row, std::vector<std::string>& dropped_fields);

}  // namespace tqcache::interop
