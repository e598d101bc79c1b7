#pragma once
// interop/mlx/mlx_lm_pair.h: keys and values of one cache object of mlx-lm as two tensors of one shape,
// and the layers that are made of them. Safe for untrusted input.

#include <cstddef>
#include <cstdint>
#include <string>

#include "tqcache/base/result.h"
#include "tqcache/cache/layer.h"
#include "tqcache/interop/foreign_cache.h"
#include "tqcache/interop/mlx/mlx_lm_ring.h"
#include "tqcache/interop/mlx/mlx_lm_rows.h"
#include "tqcache/interop/mlx/mlx_lm_state.h"

namespace tqcache::interop {

struct MlxPair {
  MlxGrid k, v;
  cache::HeadShape shape;
};

// The tensors 0 and 1 of a cache's state.
// Errors: those of state_grid(); kCorrupt, kTooLarge, kUnsupported (different head_dim).
Result<MlxPair> read_pair(MlxFile& file, const MlxCache& cache, std::int64_t row);

// Whether a cache has so many numbers in the metadata, if its file has them there.
// Errors: kCorrupt.
Result<void> require_info(const MlxFile& file, const MlxCache& cache, std::size_t count);

// "2 x 300 x 64" for messages.
std::string shape_text(const MlxGrid& grid);

// Rows of values of `value_bytes`, token 0 in row `first`.
MlxRows rows_of(const MlxGrid& grid, std::size_t value_bytes, std::int64_t first = 0);

// Full attention: the tokens from row `first` on. There may be more rows, which are of no token.
// Errors: kCorrupt (too few rows), kUnsupported (dtypes).
Result<ForeignLayer> dense_layer(const MlxFile& file, const MlxPair& pair, std::int64_t first,
                                 std::int64_t n_tokens);

// A window of the tokens in these rows. Errors: kUnsupported (dtypes).
// Requires: as many rows as the window holds.
Result<ForeignLayer> window_layer(const MlxFile& file, const MlxPair& pair,
                                  const cache::Window& window, const RowRuns& runs);

}  // namespace tqcache::interop
