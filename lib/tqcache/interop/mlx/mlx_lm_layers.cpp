#include "tqcache/interop/mlx/mlx_lm_layers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tqcache/cache.h"
#include "tqcache/error.h"
#include "tqcache/interop/foreign_cache.h"
#include "tqcache/interop/mlx/mlx_lm_classes.h"
#include "tqcache/interop/mlx/mlx_lm_rows.h"
#include "tqcache/interop/mlx/mlx_lm_state.h"
#include "tqcache/tensors/printable_name.h"

namespace tqcache::interop {
namespace {

struct MlxPair {
  MlxGrid k, v;
  cache::HeadShape shape, v_shape;

  std::int64_t value_dim() const { return cache::value_dim_of(shape.head_dim, v_shape.head_dim); }
};

// "2 x 300 x 64" for messages.
std::string shape_text(const MlxGrid& grid) {
  return fmt::format("{} x {} x {}", grid.n_kv_heads, grid.n_rows, grid.width);
}

using enum MlxNumber;

// The tensors 0 and 1 of a cache's state.
// Errors: those of state_grid(); kCorrupt, kTooLarge.
Result<MlxPair> read_pair(MlxFile& file, const MlxCache& cache, std::int64_t row) {
  MlxPair pair;
  TQC_TRY_ASSIGN(pair.k, state_grid(file, cache.slot(0), row));
  TQC_TRY_ASSIGN(pair.v, state_grid(file, cache.slot(1), row));
  if (pair.k.n_kv_heads != pair.v.n_kv_heads || pair.k.n_rows != pair.v.n_rows) {
    return corrupt("keys " + shape_text(pair.k) + ", but values " + shape_text(pair.v));
  }
  if (pair.k.batch != pair.v.batch) {
    return corrupt(
        fmt::format("keys of a batch of {}, but values of {}", pair.k.batch, pair.v.batch));
  }
  if (pair.k.width < 1 || pair.v.width < 1) {
    return unsupported(
        fmt::format("keys of head_dim {} and values of {}: one of them has no values", pair.k.width,
                    pair.v.width));
  }
  pair.shape = {pair.k.n_kv_heads, pair.k.width};
  pair.v_shape = {pair.v.n_kv_heads, pair.v.width};
  TQC_TRY(cache::validate_shapes(pair.shape, pair.value_dim()));
  return pair;
}

// Rows of values with `value_bytes` each; token 0 is row `first`.
MlxRows rows_of(const MlxGrid& grid, std::size_t value_bytes, std::int64_t first = 0) {
  return {.offset = grid.offset,
          .n_rows = grid.n_rows,
          .first = first,
          .row_bytes = static_cast<std::size_t>(grid.width) * value_bytes};
}

Result<ForeignTensor> dense_tensor(const MlxFile& file, const MlxGrid& grid, cache::HeadShape shape,
                                   std::int64_t first) {
  TQC_TRY_ASSIGN(const Dtype dtype, float_dtype(grid.type, grid.type_name));
  return ForeignTensor{
      {dtype, {}}, read_dense_rows(file.bytes(), shape, rows_of(grid, dtype_size(dtype), first))};
}

Result<ForeignArray> window_array(const MlxFile& file, const MlxGrid& grid, std::string_view name,
                                  cache::HeadShape shape, const cache::Window& window,
                                  const RowRuns& runs) {
  TQC_TRY_ASSIGN(const Dtype dtype, float_dtype(grid.type, grid.type_name));
  return ForeignArray{
      {std::string(name), dtype, cache::window_array_shape(shape, window, count_rows(runs))},
      read_row_runs(file.bytes(), shape.n_kv_heads, rows_of(grid, dtype_size(dtype)), runs)};
}

// Full attention: the tokens from row `first` on. Further rows may follow that hold no tokens.
// Errors: kCorrupt (too few rows), kUnsupported (dtypes).
Result<ForeignLayer> dense_layer(const MlxFile& file, const MlxPair& pair, std::int64_t first,
                                 std::int64_t n_tokens) {
  if (first < 0 || n_tokens > pair.k.n_rows - first) {
    return corrupt(
        fmt::format("keys {} for {} tokens from row {} on", shape_text(pair.k), n_tokens, first));
  }
  TQC_TRY_ASSIGN(ForeignTensor k, dense_tensor(file, pair.k, pair.shape, first));
  TQC_TRY_ASSIGN(ForeignTensor v, dense_tensor(file, pair.v, pair.v_shape, first));
  return attention_layer(pair.shape, std::move(k), std::move(v), pair.value_dim());
}

// A window of the tokens in these rows. Errors: kUnsupported (dtypes).
// Requires: as many rows as the window holds.
Result<ForeignLayer> window_layer(const MlxFile& file, const MlxPair& pair,
                                  const cache::Window& window, const RowRuns& runs) {
  TQC_TRY_ASSIGN(ForeignArray k,
                 window_array(file, pair.k, cache::kWindowKeys, pair.shape, window, runs));
  TQC_TRY_ASSIGN(ForeignArray v,
                 window_array(file, pair.v, cache::kWindowValues, pair.v_shape, window, runs));
  return window_layer(pair.shape, window, std::move(k), std::move(v), pair.value_dim());
}

// K or V in affine groups: codes, scales and biases are "<slot>.0" to "<slot>.2"; mlx-swift-lm has
// them in one list, those of the keys first.
struct AffineState {
  MlxGrid codes, scales, biases;
  std::int64_t head_dim = 0;
};

Result<AffineState> read_affine(MlxFile& file, const MlxCache& cache, int tensor,
                                AffineGroups groups, std::int64_t row) {
  const bool is_nested = file.has(cache.slot(0) + ".0");
  const auto name = [&](int part) {
    if (is_nested) return fmt::format("{}.{}", cache.slot(tensor), part);
    return cache.slot(3 * tensor + part);
  };
  AffineState state;
  TQC_TRY_ASSIGN(state.codes, state_grid(file, name(0), row));
  TQC_TRY_ASSIGN(state.scales, state_grid(file, name(1), row));
  TQC_TRY_ASSIGN(state.biases, state_grid(file, name(2), row));
  const MlxGrid& scales = state.scales;
  state.head_dim = scales.width * groups.group_size;
  TQC_TRY(cache::validate_shape({scales.n_kv_heads, state.head_dim}));
  const auto fits = [&](const MlxGrid& grid, std::int64_t width) {
    return grid.batch == scales.batch && grid.n_kv_heads == scales.n_kv_heads &&
           grid.n_rows == scales.n_rows && grid.width == width;
  };
  const bool is_word = state.codes.type == tensors::TensorType::kU32;
  if (!is_word || !fits(state.codes, state.head_dim * groups.bits / 32) ||
      !fits(state.biases, scales.width) || state.biases.type != scales.type) {
    return corrupt(fmt::format("codes {}, scales {} and biases {} of {} bits in groups of {}",
                               shape_text(state.codes), shape_text(scales),
                               shape_text(state.biases), groups.bits, groups.group_size));
  }
  return state;
}

Result<ForeignTensor> affine_tensor(const MlxFile& file, const AffineState& state,
                                    AffineGroups groups) {
  TQC_TRY_ASSIGN(const Dtype dtype, float_dtype(state.scales.type, state.scales.type_name));
  const MlxAffineTensor tensor{.groups = groups,
                               .dtype = dtype,
                               .codes = rows_of(state.codes, sizeof(std::uint32_t)),
                               .scales = rows_of(state.scales, dtype_size(dtype)),
                               .biases = rows_of(state.biases, dtype_size(dtype))};
  const cache::HeadShape shape{state.scales.n_kv_heads, state.head_dim};
  return ForeignTensor{{Dtype::kF32, {}}, read_affine_rows(file.bytes(), shape, tensor)};
}

// Numbers: offset, group_size, bits, both in the metadata and in tensors.
Result<ForeignLayer> quantized_layer(MlxFile& file, const MlxCache& cache, std::int64_t n_tokens,
                                     std::int64_t row, std::vector<std::string>& dropped_fields) {
  TQC_TRY_ASSIGN(const std::int64_t group_size, state_number(file, cache, kGroupSize, 3));
  TQC_TRY_ASSIGN(const std::int64_t bits, state_number(file, cache, kBits, 4));
  TQC_TRY(check_affine(bits, group_size, group_size));
  const bool is_flat = !file.has(cache.slot(0) + ".0");
  if (is_flat && (cache.n_slots == 4 || !file.has(cache.slot(4)))) {
    return unsupported("groups without biases, as MLX's modes mxfp4, mxfp8 and nvfp4 have them");
  }
  const AffineGroups groups{.bits = static_cast<int>(bits), .group_size = group_size};
  TQC_TRY_ASSIGN(const AffineState k, read_affine(file, cache, 0, groups, row));
  TQC_TRY_ASSIGN(const AffineState v, read_affine(file, cache, 1, groups, row));
  if (k.scales.n_kv_heads != v.scales.n_kv_heads) {
    return corrupt("keys " + shape_text(k.scales) + ", but values " + shape_text(v.scales));
  }
  if (k.scales.batch != v.scales.batch || k.scales.n_rows != v.scales.n_rows ||
      k.scales.n_rows < n_tokens) {
    return corrupt(fmt::format("scales {} and {} for {} tokens", shape_text(k.scales),
                               shape_text(v.scales), n_tokens));
  }
  dropped_fields.push_back(fmt::format("groups of {} bits are decoded to f32", bits));
  TQC_TRY_ASSIGN(ForeignTensor k_tensor, affine_tensor(file, k, groups));
  TQC_TRY_ASSIGN(ForeignTensor v_tensor, affine_tensor(file, v, groups));
  return attention_layer({k.scales.n_kv_heads, k.head_dim}, std::move(k_tensor),
                         std::move(v_tensor), cache::value_dim_of(k.head_dim, v.head_dim));
}

Result<ForeignLayer> kv_layer(MlxFile& file, const MlxCache& cache, std::int64_t n_tokens,
                              std::int64_t row) {
  TQC_TRY_ASSIGN(const MlxPair pair, read_pair(file, cache, row));
  return dense_layer(file, pair, 0, n_tokens);
}

// Tensors: keys, values, offset, keep, max_size, _idx. After mlx-swift-lm took tokens back from a
// full ring, it says that only the rows before _idx are live.
Result<ForeignLayer> rotating_layer(MlxFile& file, const MlxCache& cache, std::int64_t row) {
  TQC_TRY_ASSIGN(const MlxPair pair, read_pair(file, cache, row));
  MlxRing ring;
  TQC_TRY_ASSIGN(ring.keep, state_number(file, cache, kKeep, 3));
  TQC_TRY_ASSIGN(ring.max_size, state_number(file, cache, kMaxSize, 4));
  TQC_TRY_ASSIGN(ring.offset, state_number(file, cache, kOffset, 2));
  TQC_TRY_ASSIGN(ring.next, state_number(file, cache, kNext, 5));
  const cache::Window window{.size = ring.max_size, .keep = ring.keep};
  TQC_TRY(cache::validate_window(pair.shape, window));
  const std::string_view wrapped = cache.number_text(kWrapped);
  if (cache.has_number(kWrapped) && wrapped != "true" && wrapped != "false") {
    return corrupt("metadata: wrapped is " + tensors::printable_name(wrapped));
  }
  const std::int64_t n_live = std::min(ring.next, pair.k.n_rows);
  if (wrapped == "false" && n_live < std::min(ring.max_size, ring.offset)) {
    return unsupported(fmt::format(
        "a window of {} tokens with {} rows: tokens were taken back, and those before the window "
        "are gone",
        std::min(ring.max_size, ring.offset), n_live));
  }
  TQC_TRY_ASSIGN(const RowRuns runs, ring_rows(ring, pair.k.n_rows));
  return window_layer(file, pair, window, runs);
}

// Chunked attention: the next decode step drops all but the newest chunk_size tokens. (Before
// 0.23.2 it dropped whole chunks, so that fewer tokens are there.) Tensors: keys, values, offset,
// chunk_size, start_position. mlx-swift-lm may have no chunk_size ("None"), and then drops nothing.
Result<ForeignLayer> chunked_layer(MlxFile& file, const MlxCache& cache, std::int64_t n_tokens,
                                   std::int64_t row) {
  TQC_TRY_ASSIGN(const MlxPair pair, read_pair(file, cache, row));
  TQC_TRY_ASSIGN(const std::int64_t start, state_number(file, cache, kStart, 4));
  if (cache.number_text(kChunkSize) == "None" && start == 0) {
    return dense_layer(file, pair, 0, n_tokens);
  }
  TQC_TRY_ASSIGN(const std::int64_t chunk_size, state_number(file, cache, kChunkSize, 3));
  if (start == 0) return dense_layer(file, pair, 0, n_tokens);
  const std::int64_t n_valid = n_tokens - start;
  const cache::Window window{
      .size = start % std::max<std::int64_t>(chunk_size, 1) == 0 && n_valid > 0
                  ? std::min(chunk_size, n_valid)
                  : chunk_size,
      .keep = 0};
  TQC_TRY(cache::validate_window(pair.shape, window));
  const std::int64_t wanted = cache::window_tokens(window, n_tokens);
  if (n_valid < wanted || n_valid > pair.k.n_rows) {
    return corrupt(fmt::format("keys {} for tokens {} to {} in chunks of {}", shape_text(pair.k),
                               start, n_tokens, chunk_size));
  }
  return window_layer(file, pair, window, {{n_valid - wanted, wanted}});
}

// --- rows of a batch

Result<std::int64_t> left_padding(MlxFile& file, const MlxCache& cache, std::int64_t row) {
  TQC_TRY_ASSIGN(const auto numbers, file.numbers(cache.slot(3), kMaxBatch));
  if (row < std::ssize(numbers)) return numbers[static_cast<std::size_t>(row)];
  return corrupt(fmt::format("left_padding of {} rows", numbers.size()));
}

Result<ForeignLayer> batch_layer(MlxFile& file, const MlxCache& cache, std::int64_t n_tokens,
                                 std::int64_t row) {
  TQC_TRY_ASSIGN(const MlxPair pair, read_pair(file, cache, row));
  TQC_TRY_ASSIGN(const std::int64_t padding, left_padding(file, cache, row));
  std::int64_t end = pair.k.n_rows;
  if (file.layout() == MlxLayout::kScalars) {
    TQC_TRY_ASSIGN(end, state_number(file, cache, kNext, 4));
  }
  if (padding < 0 || padding > end || end - padding != n_tokens) {
    return corrupt(fmt::format("rows {} to {} for {} tokens", padding, end, n_tokens));
  }
  return dense_layer(file, pair, padding, n_tokens);
}

// Numbers: max_size, _offset, _idx, rotated, in the metadata and in tensors. In the metadata the
// last is a text.
Result<bool> is_rotated(MlxFile& file, const MlxCache& cache) {
  if (file.layout() == MlxLayout::kScalars) {
    TQC_TRY_ASSIGN(const std::int64_t rotated, state_number(file, cache, kRotated, 7));
    return rotated != 0;
  }
  const std::string_view text = cache.number_text(kRotated);
  if (text == "True") return true;
  if (text == "False") return false;
  return corrupt("metadata: rotated is " + tensors::printable_name(text));
}

Result<ForeignLayer> batch_rotating_layer(MlxFile& file, const MlxCache& cache,
                                          std::int64_t n_tokens, std::int64_t row) {
  TQC_TRY_ASSIGN(const MlxPair pair, read_pair(file, cache, row));
  MlxBatchRing ring;
  TQC_TRY_ASSIGN(ring.max_size, state_number(file, cache, kMaxSize, 4));
  TQC_TRY(state_number(file, cache, kOffset,
                       5));  // _offset, which only says how far the rows are filled
  TQC_TRY_ASSIGN(ring.next, state_number(file, cache, kNext, 6));
  TQC_TRY_ASSIGN(ring.rotated, is_rotated(file, cache));
  TQC_TRY_ASSIGN(ring.left_padding, left_padding(file, cache, row));
  ring.offset = n_tokens;
  const cache::Window window{.size = ring.max_size, .keep = 0};
  TQC_TRY(cache::validate_window(pair.shape, window));
  TQC_TRY_ASSIGN(const RowRuns runs, batch_ring_rows(ring, pair.k.n_rows));
  return window_layer(file, pair, window, runs);
}

// --- recurrent state

// left_padding and lengths exist only in batches, and only while a prompt is being processed.
Result<void> require_nothing(MlxFile& file, const std::string& name, std::string_view word) {
  if (!file.has(name)) return {};
  TQC_TRY_ASSIGN(const auto* place, file.tensor(name));
  if (place->bytes == 0) return {};
  return unsupported("an ArraysCache with " + std::string(word));
}

Result<ForeignArray> array_of(MlxFile& file, const std::string& name, std::size_t slot,
                              std::uint64_t batch, std::int64_t row) {
  TQC_TRY_ASSIGN(const auto* whole, file.tensor(name));
  if (whole->shape.empty() || whole->shape[0] != batch) {
    return corrupt(fmt::format("slot {}: not of a batch of {}", slot, batch));
  }
  auto part = batch_row(*whole, row);
  auto dtype = float_dtype(whole->type, whole->type_name);
  const std::string place = "tensor " + tensors::printable_name(name);
  if (!part) return in_context(place, std::move(part).error());
  if (!dtype) return in_context(place, std::move(dtype).error());
  return ForeignArray{{std::to_string(slot), *dtype, part->shape},
                      read_bytes_at(file.bytes(), part->offset)};
}

// The slot of each tensor of an ArraysCache of mlx-swift-lm, which leaves out empty slots: "0,2".
// Errors: kCorrupt.
Result<std::vector<std::size_t>> present_slots(MlxFile& file, const MlxCache& cache) {
  TQC_TRY_ASSIGN(const std::int64_t n_slots, state_number(file, cache, kNSlots, 0));
  std::vector<std::size_t> slots;
  std::string_view rest = cache.number_text(kPresent);
  while (!rest.empty()) {
    const std::size_t comma = std::min(rest.find(','), rest.size());
    const auto slot = mlx_number(rest.substr(0, comma));
    const bool is_next = slot && *slot < n_slots &&
                         (slots.empty() || *slot > static_cast<std::int64_t>(slots.back()));
    if (!is_next) {
      return corrupt(fmt::format("metadata: slots {} of {}",
                                 tensors::printable_name(cache.number_text(kPresent)), n_slots));
    }
    slots.push_back(static_cast<std::size_t>(*slot));
    rest.remove_prefix(std::min(comma + 1, rest.size()));
  }
  return slots;
}

// mlx-lm, and early mlx-swift-lm: slots "<layer>.0", "<layer>.1", ...; since 0.32 "<layer>.0.0",
// "<layer>.0.1", ..., followed by left_padding and lengths. An empty slot is None, or, in early
// mlx-swift-lm, a tensor without values; it gets no array.
Result<ForeignLayer> arrays_layer(MlxFile& file, const MlxCache& cache, std::int64_t row) {
  const bool is_nested = file.has(cache.prefix + "0.0") && !cache.n_slots;
  std::vector<std::pair<std::size_t, std::string>> slots;  // number and tensor
  if (cache.has_number(kPresent)) {
    TQC_TRY_ASSIGN(const auto present, present_slots(file, cache));
    for (std::size_t i = 0; i < present.size(); ++i) {
      slots.emplace_back(present[i], cache.slot(static_cast<int>(i)));
    }
    for (const MlxNumber padding : {kPadding, kLengths}) {
      if (cache.number_text(padding).empty()) continue;
      return unsupported(
          fmt::format("an ArraysCache with {}", padding == kPadding ? "left_padding" : "lengths"));
    }
  } else {
    const auto name = [&](int slot) {
      return is_nested ? fmt::format("{}0.{}", cache.prefix, slot) : cache.slot(slot);
    };
    for (int slot = 0; slot < cache.n_slots.value_or(cache::kMaxArrays + 1); ++slot) {
      if (!file.has(name(slot))) break;
      slots.emplace_back(slot, name(slot));
    }
  }
  std::vector<ForeignArray> arrays;
  for (const auto& [slot, name] : slots) {
    TQC_TRY_ASSIGN(const auto* place, file.tensor(name));
    const bool is_placeholder = cache.has_number(kNothing) && place->bytes == 0;
    if (file.is_none(name) || is_placeholder) continue;
    TQC_TRY_ASSIGN(ForeignArray array, array_of(file, name, slot, batch_size(file, cache), row));
    arrays.push_back(std::move(array));
  }
  if (is_nested) {
    TQC_TRY(require_nothing(file, cache.prefix + "1", "left_padding"));
    TQC_TRY(require_nothing(file, cache.prefix + "2", "lengths"));
  }
  if (!arrays.empty()) return state_layer(std::move(arrays));
  if (slots.empty()) return corrupt("no tensor of its state");
  return unsupported("an ArraysCache with empty slots alone: no token was computed");
}

}  // namespace

Result<ForeignLayer> make_layer(MlxFile& file, const MlxCache& cache, std::int64_t n_tokens,
                                std::int64_t row, std::vector<std::string>& dropped_fields) {
  TQC_TRY_ASSIGN(const MlxClass kind, mlx_class(cache));
  switch (kind) {
    case MlxClass::kQuantized:
      return quantized_layer(file, cache, n_tokens, row, dropped_fields);
    case MlxClass::kRotating:
      return rotating_layer(file, cache, row);
    case MlxClass::kArrays:
      return arrays_layer(file, cache, row);
    case MlxClass::kChunked:
      return chunked_layer(file, cache, n_tokens, row);
    case MlxClass::kBatch:
      return batch_layer(file, cache, n_tokens, row);
    case MlxClass::kBatchRotating:
      return batch_rotating_layer(file, cache, n_tokens, row);
    case MlxClass::kKv:
    case MlxClass::kConcatenate:
      break;
  }
  return kv_layer(file, cache, n_tokens, row);
}

}  // namespace tqcache::interop
