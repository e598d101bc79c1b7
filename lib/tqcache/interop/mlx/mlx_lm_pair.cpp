#include "tqcache/interop/mlx/mlx_lm_pair.h"

#include <utility>

#include "tqcache/base/result.h"
#include "tqcache/cache/cache.h"

namespace tqcache::interop {
namespace {

Result<ForeignSide> dense_side(const MlxFile& file, const MlxGrid& grid, cache::HeadShape shape,
                               std::int64_t first) {
  TQC_TRY_ASSIGN(const Dtype dtype, float_dtype(grid.type, grid.type_name));
  return ForeignSide{dtype,
                     read_dense_rows(file.bytes(), shape, rows_of(grid, dtype_size(dtype), first))};
}

Result<ForeignArray> window_array(const MlxFile& file, const MlxGrid& grid, std::string_view name,
                                  cache::HeadShape shape, const cache::Window& window,
                                  const RowRuns& runs) {
  TQC_TRY_ASSIGN(const Dtype dtype, float_dtype(grid.type, grid.type_name));
  return ForeignArray{
      std::string(name), dtype, cache::window_array_shape(shape, window, count_rows(runs)),
      read_row_runs(file.bytes(), shape.n_kv_heads, rows_of(grid, dtype_size(dtype)), runs)};
}

}  // namespace

std::string shape_text(const MlxGrid& grid) {
  return std::to_string(grid.n_kv_heads) + " x " + std::to_string(grid.n_rows) + " x " +
         std::to_string(grid.width);
}

Result<void> require_info(const MlxFile& file, const MlxCache& cache, std::size_t count) {
  if (file.layout() != MlxLayout::kMetaState || cache.info.size() == count) return {};
  return corrupt("metadata: " + std::to_string(cache.info.size()) + " numbers where " +
                 std::to_string(count) + " belong");
}

Result<MlxPair> read_pair(MlxFile& file, const MlxCache& cache, std::int64_t row) {
  MlxPair pair;
  TQC_TRY_ASSIGN(pair.k, state_grid(file, cache.slot(0), row));
  TQC_TRY_ASSIGN(pair.v, state_grid(file, cache.slot(1), row));
  if (pair.k.n_kv_heads != pair.v.n_kv_heads || pair.k.n_rows != pair.v.n_rows) {
    return corrupt("keys " + shape_text(pair.k) + ", but values " + shape_text(pair.v));
  }
  if (pair.k.batch != pair.v.batch) {
    return corrupt("keys of a batch of " + std::to_string(pair.k.batch) + ", but values of " +
                   std::to_string(pair.v.batch));
  }
  if (pair.k.width != pair.v.width) {
    return unsupported("keys of head_dim " + std::to_string(pair.k.width) + " and values of " +
                       std::to_string(pair.v.width) + ", as latent attention (MLA) has them");
  }
  pair.shape = {pair.k.n_kv_heads, pair.k.width};
  TQC_TRY(cache::validate_shape(pair.shape));
  return pair;
}

MlxRows rows_of(const MlxGrid& grid, std::size_t value_bytes, std::int64_t first) {
  return {.offset = grid.offset,
          .n_rows = grid.n_rows,
          .first = first,
          .row_bytes = static_cast<std::size_t>(grid.width) * value_bytes};
}

Result<ForeignLayer> dense_layer(const MlxFile& file, const MlxPair& pair, std::int64_t first,
                                 std::int64_t n_tokens) {
  if (first < 0 || n_tokens > pair.k.n_rows - first) {
    return corrupt("keys " + shape_text(pair.k) + " for " + std::to_string(n_tokens) +
                   " tokens from row " + std::to_string(first) + " on");
  }
  ForeignAttention layer;
  layer.shape = pair.shape;
  TQC_TRY_ASSIGN(layer.k, dense_side(file, pair.k, pair.shape, first));
  TQC_TRY_ASSIGN(layer.v, dense_side(file, pair.v, pair.shape, first));
  return ForeignLayer(std::move(layer));
}

Result<ForeignLayer> window_layer(const MlxFile& file, const MlxPair& pair,
                                  const cache::Window& window, const RowRuns& runs) {
  ForeignWindow layer{pair.shape, window, {}, {}};
  TQC_TRY_ASSIGN(layer.k,
                 window_array(file, pair.k, cache::kWindowKeys, pair.shape, window, runs));
  TQC_TRY_ASSIGN(layer.v,
                 window_array(file, pair.v, cache::kWindowValues, pair.shape, window, runs));
  return ForeignLayer(std::move(layer));
}

}  // namespace tqcache::interop
