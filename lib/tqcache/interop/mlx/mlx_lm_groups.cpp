#include "tqcache/interop/mlx/mlx_lm_groups.h"

#include <utility>

#include "tqcache/base/result.h"
#include "tqcache/cache/cache.h"
#include "tqcache/interop/mlx/mlx_lm_affine.h"
#include "tqcache/interop/mlx/mlx_lm_pair.h"
#include "tqcache/interop/mlx/mlx_lm_rows.h"

namespace tqcache::interop {
namespace {

// One of the two: "<slot>.0" codes, "<slot>.1" scales, "<slot>.2" biases.
struct AffineState {
  MlxGrid codes, scales, biases;
  std::int64_t head_dim = 0;
};

Result<AffineState> read_affine(MlxFile& file, const std::string& slot, AffineForm form,
                                std::int64_t row) {
  AffineState state;
  TQC_TRY_ASSIGN(state.codes, state_grid(file, slot + ".0", row));
  TQC_TRY_ASSIGN(state.scales, state_grid(file, slot + ".1", row));
  TQC_TRY_ASSIGN(state.biases, state_grid(file, slot + ".2", row));
  const MlxGrid& scales = state.scales;
  state.head_dim = scales.width * form.group_size;
  TQC_TRY(cache::validate_shape({scales.n_kv_heads, state.head_dim}));
  const auto fits = [&](const MlxGrid& grid, std::int64_t width) {
    return grid.batch == scales.batch && grid.n_kv_heads == scales.n_kv_heads &&
           grid.n_rows == scales.n_rows && grid.width == width;
  };
  const bool is_word = state.codes.type == tensors::TensorType::kU32;
  if (!is_word || !fits(state.codes, state.head_dim * form.bits / 32) ||
      !fits(state.biases, scales.width) || state.biases.type != scales.type) {
    return corrupt("codes " + shape_text(state.codes) + ", scales " + shape_text(scales) +
                   " and biases " + shape_text(state.biases) + " of " + std::to_string(form.bits) +
                   " bits in groups of " + std::to_string(form.group_size));
  }
  return state;
}

Result<ForeignSide> affine_side(const MlxFile& file, const AffineState& state, AffineForm form) {
  TQC_TRY_ASSIGN(const Dtype dtype, float_dtype(state.scales.type, state.scales.type_name));
  const MlxAffineSide side{.form = form,
                           .dtype = dtype,
                           .codes = rows_of(state.codes, sizeof(std::uint32_t)),
                           .scales = rows_of(state.scales, dtype_size(dtype)),
                           .biases = rows_of(state.biases, dtype_size(dtype))};
  const cache::HeadShape shape{state.scales.n_kv_heads, state.head_dim};
  return ForeignSide{Dtype::kF32, read_affine_rows(file.bytes(), shape, side)};
}

}  // namespace

// Numbers: offset, group_size, bits, here and there.
Result<ForeignLayer> quantized_layer(MlxFile& file, const MlxCache& cache, std::int64_t n_tokens,
                                     std::int64_t row, std::vector<std::string>& losses) {
  TQC_TRY(require_info(file, cache, 3));
  TQC_TRY_ASSIGN(const std::int64_t group_size, state_number(file, cache, 1, 3));
  TQC_TRY_ASSIGN(const std::int64_t bits, state_number(file, cache, 2, 4));
  TQC_TRY(check_affine(bits, group_size, group_size));
  const AffineForm form{.bits = static_cast<int>(bits), .group_size = group_size};
  TQC_TRY_ASSIGN(const AffineState k, read_affine(file, cache.slot(0), form, row));
  TQC_TRY_ASSIGN(const AffineState v, read_affine(file, cache.slot(1), form, row));
  if (k.scales.n_kv_heads != v.scales.n_kv_heads || k.head_dim != v.head_dim) {
    return unsupported("keys " + shape_text(k.scales) + ", but values " + shape_text(v.scales));
  }
  if (k.scales.batch != v.scales.batch || k.scales.n_rows != v.scales.n_rows ||
      k.scales.n_rows < n_tokens) {
    return corrupt("scales " + shape_text(k.scales) + " and " + shape_text(v.scales) + " for " +
                   std::to_string(n_tokens) + " tokens");
  }
  losses.push_back("groups of " + std::to_string(bits) + " bits are decoded to f32");
  ForeignAttention layer;
  layer.shape = {k.scales.n_kv_heads, k.head_dim};
  TQC_TRY_ASSIGN(layer.k, affine_side(file, k, form));
  TQC_TRY_ASSIGN(layer.v, affine_side(file, v, form));
  return ForeignLayer(std::move(layer));
}

}  // namespace tqcache::interop
