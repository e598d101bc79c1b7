// Layers that TurboMLX stores as mlx-lm does: KVCache, QuantizedKVCache, RotatingKVCache, and
// recurrent state.

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string>
#include <system_error>
#include <utility>

#include "tqcache/cache.h"
#include "tqcache/error.h"
#include "tqcache/interop/mlx/mlx_lm_rows.h"
#include "tqcache/interop/turbomlx/turbomlx_layers.h"
#include "tqcache/interop/turbomlx/turbomlx_packed.h"
#include "tqcache/interop/turbomlx/turbomlx_rows.h"

namespace tqcache::interop {
namespace {

using tensors::TensorType;
using Kind = Value::Kind;

constexpr std::int64_t kWordBits = 32;

Result<std::pair<const Value*, const Value*>> pair_of(const ValueTree& tree, const Value& state) {
  if (!is_sequence(state) || state.items.size() != 2) return corrupt("state: not keys and values");
  return std::pair(&tree.at(state.items[0]), &tree.at(state.items[1]));
}

struct DensePair {
  TurboMlxDense k, v;
  cache::HeadShape shape;
  std::int64_t n_tokens = 0;
};

Result<DensePair> dense_pair(const ValueTree& tree, const TurboMlxEntry& entry) {
  TQC_TRY_ASSIGN(const auto values, pair_of(tree, tree.at(entry.state)));
  DensePair pair;
  TQC_TRY_ASSIGN(pair.k, turbomlx_dense_array(*values.first, "keys"));
  TQC_TRY_ASSIGN(pair.v, turbomlx_dense_array(*values.second, "values"));
  const TurboMlxGrid& k = pair.k.grid;
  const TurboMlxGrid& v = pair.v.grid;
  if (k.n_kv_heads != v.n_kv_heads || k.n_tokens != v.n_tokens) {
    return corrupt("values: other shapes than the keys");
  }
  if (k.width != v.width) {
    return unsupported(fmt::format("keys of {} and values of {} components", k.width, v.width));
  }
  pair.shape = {k.n_kv_heads, k.width};
  pair.n_tokens = k.n_tokens;
  TQC_TRY(cache::validate_shape(pair.shape));
  return pair;
}

// Whole numbers, stored as numbers or as texts, as in meta_state.
Result<std::int64_t> number_of(const Value& value) {
  if (value.kind == Kind::kInteger && value.integer >= 0 && value.integer <= cache::kMaxTokens) {
    return value.integer;
  }
  std::uint32_t number = 0;
  const char* const end = value.text.data() + value.text.size();
  const auto [stop, error] = std::from_chars(value.text.data(), end, number);
  if (error == std::errc() && stop == end && number <= cache::kMaxTokens) return number;
  return corrupt(fmt::format("meta_state: not numbers from 0 to {}", cache::kMaxTokens));
}

Result<std::vector<std::int64_t>> numbers_of(const ValueTree& tree, const Value& meta_state,
                                             std::size_t count, const char* what) {
  if (!is_sequence(meta_state) || meta_state.items.size() != count) {
    return corrupt(std::string("meta_state: not ") + what);
  }
  std::vector<std::int64_t> numbers;
  for (const ValueId id : meta_state.items) {
    TQC_TRY_ASSIGN(const std::int64_t number, number_of(tree.at(id)));
    numbers.push_back(number);
  }
  return numbers;
}

// --- the ring of a RotatingKVCache

// Rows ordered by position. mlx-lm treats an _idx beyond the last row as the last row; TurboMLX
// writes no such file.
Result<std::vector<std::int64_t>> window_rows(const MlxRing& ring, std::int64_t n_rows) {
  if (ring.next > n_rows) {
    return corrupt(fmt::format("meta_state: _idx {} in a ring of {}", ring.next, n_rows));
  }
  TQC_TRY_ASSIGN(const RowRuns runs, ring_rows(ring, n_rows));
  std::vector<std::int64_t> rows;
  for (const RowRun& run : runs) {
    for (std::int64_t i = 0; i < run.count; ++i) rows.push_back(run.first + i);
  }
  return rows;
}

ForeignArray window_array(const TurboMlxSource& file, std::string_view name,
                          const TurboMlxDense& dense, cache::HeadShape shape,
                          const cache::Window& window, const std::vector<std::int64_t>& rows) {
  return {
      {std::string(name), dense.dtype, cache::window_array_shape(shape, window, std::ssize(rows))},
      turbomlx_listed_rows(file, shape.n_kv_heads, dense.rows, rows)};
}

// --- recurrent state

// The slots: the state itself; since mlx-lm 0.32 its first item, next to the padding and the
// lengths of a batch, which are empty for a single prompt.
Result<std::vector<ValueId>> slots_of(const ValueTree& tree, const Value& state) {
  if (!is_sequence(state)) return corrupt("state: no list of arrays");
  const bool is_nested = !state.items.empty() && is_sequence(tree.at(state.items[0]));
  if (!is_nested) return state.items;
  for (std::size_t i = 1; i < state.items.size(); ++i) {
    TQC_TRY_ASSIGN(const ArrayValue* array, find_array(tree.at(state.items[i]), "state"));
    if (array != nullptr) return unsupported("state: of a batch with padding");
  }
  return tree.at(state.items[0]).items;
}

Result<ForeignArray> slot_array(const TurboMlxSource& file, const Value& value,
                                const std::string& name) {
  TQC_TRY_ASSIGN(const ArrayValue* array, require_array(value, "array " + name));
  TQC_TRY_ASSIGN(const Dtype dtype, dense_dtype_of(*array, "array " + name));
  return ForeignArray{{name, dtype, array->shape}, turbomlx_whole_array(file, array->bytes)};
}

// --- groups

Result<void> check_groups(TurboMlxGroupSpec spec, std::int64_t head_dim) {
  if (spec.bits < 1 || spec.bits > 8) {
    return unsupported(fmt::format("groups of {} bits", spec.bits));
  }
  if (spec.group_size < 1 || head_dim % spec.group_size != 0) {
    return corrupt(fmt::format("head_dim {} in groups of {}", head_dim, spec.group_size));
  }
  if (head_dim * spec.bits % kWordBits == 0) return {};
  return corrupt(fmt::format("head_dim {}: no whole words of codes", head_dim));
}

Result<TensorType> scale_type(const Value& scales, std::string_view name) {
  TQC_TRY_ASSIGN(const ArrayValue* array, require_array(scales, name));
  TQC_TRY(dense_dtype_of(*array, name));
  return array->type;
}

}  // namespace

Result<TurboMlxTensor> turbomlx_affine_tensor(const TurboMlxSource& file, const ValueTree& tree,
                                              const Value& groups, std::string_view name,
                                              TurboMlxGroupSpec spec, cache::HeadShape shape,
                                              std::int64_t n_tokens, codec::BlockOrder order) {
  if (!is_sequence(groups) || groups.items.size() != 3) {
    return corrupt(std::string(name) + ": not codes, scales and biases");
  }
  TQC_TRY(check_groups(spec, shape.head_dim));
  const auto rows = [&](std::size_t item, TensorType type, std::int64_t width) {
    return rows_of_array(tree.at(groups.items[item]), name, type, shape.n_kv_heads, n_tokens,
                         width);
  };
  const std::int64_t n_groups = shape.head_dim / spec.group_size;
  const Value& scales = tree.at(groups.items[1]);
  TQC_TRY_ASSIGN(const TensorType type, scale_type(scales, name));
  TurboMlxGroups result{.bits = static_cast<int>(spec.bits),
                        .group_size = static_cast<std::size_t>(spec.group_size),
                        .dtype = {},
                        .codes = {},
                        .scales = {},
                        .biases = {}};
  TQC_TRY_ASSIGN(result.dtype, dense_dtype_of(*scales.array, name));
  TQC_TRY_ASSIGN(result.codes, rows(0, TensorType::kU32, shape.head_dim * spec.bits / kWordBits));
  TQC_TRY_ASSIGN(result.scales, rows(1, type, n_groups));
  TQC_TRY_ASSIGN(result.biases, rows(2, type, n_groups));
  TQC_TRY_ASSIGN(TurboMlxPacking packing,
                 pack_turbomlx_groups(file, shape, n_tokens, result, order));
  return TurboMlxTensor{{{Dtype::kF32, std::move(packing.quant)},
                         turbomlx_affine_rows(file, shape, result),
                         std::move(packing.read)},
                        TurboMlxCoding{order == codec::BlockOrder::kKeys, true, packing.is_rounded,
                                       std::move(packing.misfit)}};
}

Result<TurboMlxLayer> turbomlx_dense_layer(const TurboMlxSource& file, const ValueTree& tree,
                                           const TurboMlxEntry& entry) {
  TQC_TRY_ASSIGN(const DensePair pair, dense_pair(tree, entry));
  TurboMlxLayer result;
  result.n_tokens = pair.n_tokens;
  result.layer = attention_layer(
      pair.shape, {{pair.k.dtype, {}}, turbomlx_dense_rows(file, pair.shape, pair.k.rows)},
      {{pair.v.dtype, {}}, turbomlx_dense_rows(file, pair.shape, pair.v.rows)});
  return result;
}

Result<TurboMlxLayer> turbomlx_quantized_layer(const TurboMlxSource& file, const ValueTree& tree,
                                               const TurboMlxEntry& entry) {
  TQC_TRY_ASSIGN(const auto values, pair_of(tree, tree.at(entry.state)));
  TQC_TRY_ASSIGN(const auto numbers,
                 numbers_of(tree, tree.at(entry.meta_state), 3, "offset, group_size and bits"));
  const TurboMlxGroupSpec spec{.bits = numbers[2], .group_size = numbers[1]};
  if (!is_sequence(*values.first) || values.first->items.size() != 3) {
    return corrupt("keys: not codes, scales and biases");
  }
  TQC_TRY_ASSIGN(const ArrayValue* scales, require_array(tree.at(values.first->items[1]), "keys"));
  TQC_TRY_ASSIGN(const TurboMlxGrid grid, turbomlx_grid_of(*scales, "keys"));
  const cache::HeadShape shape{grid.n_kv_heads, grid.width * spec.group_size};
  TQC_TRY(cache::validate_shape(shape));
  const auto tensor = [&](const Value& groups, const char* name, codec::BlockOrder order) {
    return turbomlx_affine_tensor(file, tree, groups, name, spec, shape, numbers[0], order);
  };
  TQC_TRY_ASSIGN(TurboMlxTensor k, tensor(*values.first, "keys", codec::BlockOrder::kKeys));
  TQC_TRY_ASSIGN(TurboMlxTensor v, tensor(*values.second, "values", codec::BlockOrder::kValues));
  TurboMlxLayer result;
  result.layer = attention_layer(shape, std::move(k.tensor), std::move(v.tensor));
  result.n_tokens = numbers[0];
  result.codings = {*std::move(k.coding), *std::move(v.coding)};
  return result;
}

Result<TurboMlxLayer> turbomlx_rotating_layer(const TurboMlxSource& file, const ValueTree& tree,
                                              const TurboMlxEntry& entry) {
  TQC_TRY_ASSIGN(const DensePair pair, dense_pair(tree, entry));
  TQC_TRY_ASSIGN(const auto numbers,
                 numbers_of(tree, tree.at(entry.meta_state), 4, "keep, max_size, offset and _idx"));
  const MlxRing ring{numbers[0], numbers[1], numbers[2], numbers[3]};
  const cache::Window window{ring.max_size, ring.keep};
  TQC_TRY(cache::validate_window(pair.shape, window));
  TQC_TRY_ASSIGN(const auto rows, window_rows(ring, pair.n_tokens));
  TurboMlxLayer result;
  result.layer = window_layer(
      pair.shape, window, window_array(file, cache::kWindowKeys, pair.k, pair.shape, window, rows),
      window_array(file, cache::kWindowValues, pair.v, pair.shape, window, rows));
  result.n_tokens = ring.offset;
  return result;
}

Result<TurboMlxLayer> turbomlx_arrays_layer(const TurboMlxSource& file, const ValueTree& tree,
                                            const TurboMlxEntry& entry) {
  TQC_TRY_ASSIGN(const auto slots, slots_of(tree, tree.at(entry.state)));
  std::vector<ForeignArray> arrays;
  for (const ValueId id : slots) {
    const std::string name = std::to_string(arrays.size());
    TQC_TRY_ASSIGN(ForeignArray array, slot_array(file, tree.at(id), name));
    arrays.push_back(std::move(array));
  }
  TurboMlxLayer result;
  result.layer = state_layer(std::move(arrays));
  return result;
}

}  // namespace tqcache::interop
