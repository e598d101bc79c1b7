#pragma once
// interop/mlx/mlx_lm_groups.h: QuantizedKVCache of mlx-lm: keys and values in affine groups. Safe for
// untrusted input.

#include <cstdint>
#include <string>
#include <vector>

#include "tqcache/base/result.h"
#include "tqcache/interop/foreign_cache.h"
#include "tqcache/interop/mlx/mlx_lm_state.h"

namespace tqcache::interop {

// As make_layer().
Result<ForeignLayer> quantized_layer(MlxFile& file, const MlxCache& cache, std::int64_t n_tokens,
                                     std::int64_t row, std::vector<std::string>& losses);

}  // namespace tqcache::interop
