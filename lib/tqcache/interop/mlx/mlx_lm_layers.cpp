#include "tqcache/interop/mlx/mlx_lm_layers.h"

#include <algorithm>
#include <utility>

#include "tqcache/base/result.h"
#include "tqcache/cache/cache.h"
#include "tqcache/interop/mlx/mlx_lm_classes.h"
#include "tqcache/interop/mlx/mlx_lm_groups.h"
#include "tqcache/interop/mlx/mlx_lm_pair.h"
#include "tqcache/interop/mlx/mlx_lm_ring.h"
#include "tqcache/interop/mlx/mlx_lm_rows.h"
#include "tqcache/tensors/printable_name.h"

namespace tqcache::interop {
namespace {

Result<ForeignLayer> kv_layer(MlxFile& file, const MlxCache& cache, std::int64_t n_tokens,
                              std::int64_t row) {
  TQC_TRY(require_info(file, cache, 0));
  TQC_TRY_ASSIGN(const MlxPair pair, read_pair(file, cache, row));
  return dense_layer(file, pair, 0, n_tokens);
}

// Numbers: keep, max_size, offset, _idx in the metadata; offset, keep, max_size, _idx in tensors.
Result<ForeignLayer> rotating_layer(MlxFile& file, const MlxCache& cache, std::int64_t row) {
  TQC_TRY(require_info(file, cache, 4));
  TQC_TRY_ASSIGN(const MlxPair pair, read_pair(file, cache, row));
  MlxRing ring;
  TQC_TRY_ASSIGN(ring.keep, state_number(file, cache, 0, 3));
  TQC_TRY_ASSIGN(ring.max_size, state_number(file, cache, 1, 4));
  TQC_TRY_ASSIGN(ring.offset, state_number(file, cache, 2, 2));
  TQC_TRY_ASSIGN(ring.next, state_number(file, cache, 3, 5));
  const cache::Window window{.size = ring.max_size, .keep = ring.keep};
  TQC_TRY(cache::validate_window(pair.shape, window));
  TQC_TRY_ASSIGN(const RowRuns runs, ring_rows(ring, pair.k.n_rows));
  return window_layer(file, pair, window, runs);
}

// Chunked attention: what lies before the newest chunk_size tokens is dropped with the next step.
// Numbers: chunk_size, start_position in the metadata; offset, chunk_size, start_position in
// tensors.
Result<ForeignLayer> chunked_layer(MlxFile& file, const MlxCache& cache, std::int64_t n_tokens,
                                   std::int64_t row, std::vector<std::string>& losses) {
  TQC_TRY(require_info(file, cache, 2));
  TQC_TRY_ASSIGN(const MlxPair pair, read_pair(file, cache, row));
  TQC_TRY_ASSIGN(const std::int64_t chunk_size, state_number(file, cache, 0, 3));
  TQC_TRY_ASSIGN(const std::int64_t start, state_number(file, cache, 1, 4));
  losses.push_back("that attention is in chunks of " + std::to_string(chunk_size) +
                   " tokens is not kept");
  if (start == 0) return dense_layer(file, pair, 0, n_tokens);
  const cache::Window window{.size = chunk_size, .keep = 0};
  TQC_TRY(cache::validate_window(pair.shape, window));
  const std::int64_t n_valid = n_tokens - start;
  const std::int64_t wanted = cache::window_tokens(window, n_tokens);
  if (n_valid < wanted || n_valid > pair.k.n_rows) {
    return corrupt("keys " + shape_text(pair.k) + " for tokens " + std::to_string(start) + " to " +
                   std::to_string(n_tokens) + " in chunks of " + std::to_string(chunk_size));
  }
  return window_layer(file, pair, window, {{n_valid - wanted, wanted}});
}

// --- rows of a batch

Result<std::int64_t> left_padding(MlxFile& file, const MlxCache& cache, std::int64_t row) {
  TQC_TRY_ASSIGN(const auto numbers, file.numbers(cache.slot(3), kMaxBatch));
  if (row < std::ssize(numbers)) return numbers[static_cast<std::size_t>(row)];
  return corrupt("left_padding of " + std::to_string(numbers.size()) + " rows");
}

Result<ForeignLayer> batch_layer(MlxFile& file, const MlxCache& cache, std::int64_t n_tokens,
                                 std::int64_t row) {
  TQC_TRY(require_info(file, cache, 0));
  TQC_TRY_ASSIGN(const MlxPair pair, read_pair(file, cache, row));
  TQC_TRY_ASSIGN(const std::int64_t padding, left_padding(file, cache, row));
  std::int64_t end = pair.k.n_rows;
  if (file.layout() == MlxLayout::kScalars) {
    TQC_TRY_ASSIGN(end, state_number(file, cache, 0, 4));
  }
  if (padding < 0 || padding > end || end - padding != n_tokens) {
    return corrupt("rows " + std::to_string(padding) + " to " + std::to_string(end) + " for " +
                   std::to_string(n_tokens) + " tokens");
  }
  return dense_layer(file, pair, padding, n_tokens);
}

// Numbers: max_size, _offset, _idx, rotated, here and there. The last is a word in the metadata.
Result<bool> is_rotated(MlxFile& file, const MlxCache& cache) {
  if (file.layout() == MlxLayout::kScalars) {
    TQC_TRY_ASSIGN(const std::int64_t rotated, state_number(file, cache, 3, 7));
    return rotated != 0;
  }
  if (cache.info[3] == "True") return true;
  if (cache.info[3] == "False") return false;
  return corrupt("metadata: rotated is " + tensors::printable_name(cache.info[3]));
}

Result<ForeignLayer> batch_rotating_layer(MlxFile& file, const MlxCache& cache,
                                          std::int64_t n_tokens, std::int64_t row) {
  TQC_TRY(require_info(file, cache, 4));
  TQC_TRY_ASSIGN(const MlxPair pair, read_pair(file, cache, row));
  MlxBatchRing ring;
  TQC_TRY_ASSIGN(ring.max_size, state_number(file, cache, 0, 4));
  TQC_TRY(state_number(file, cache, 1, 5));  // _offset, which only says how far the rows are filled
  TQC_TRY_ASSIGN(ring.next, state_number(file, cache, 2, 6));
  TQC_TRY_ASSIGN(ring.rotated, is_rotated(file, cache));
  TQC_TRY_ASSIGN(ring.left_padding, left_padding(file, cache, row));
  ring.offset = n_tokens;
  const cache::Window window{.size = ring.max_size, .keep = 0};
  TQC_TRY(cache::validate_window(pair.shape, window));
  TQC_TRY_ASSIGN(const RowRuns runs, batch_ring_rows(ring, pair.k.n_rows));
  return window_layer(file, pair, window, runs);
}

// --- arrays

// left_padding and lengths, which only a batch has and only while a prompt is taken in.
Result<void> require_nothing(MlxFile& file, const std::string& name, std::string_view word) {
  if (!file.has(name)) return {};
  TQC_TRY_ASSIGN(const auto* place, file.tensor(name));
  if (place->bytes == 0) return {};
  return unsupported("an ArraysCache with " + std::string(word));
}

Result<ForeignArray> array_of(MlxFile& file, const std::string& name, std::size_t slot,
                              std::uint64_t batch, std::int64_t row) {
  if (file.is_none(name)) return unsupported("slot " + std::to_string(slot) + " has nothing in it");
  TQC_TRY_ASSIGN(const auto* whole, file.tensor(name));
  if (whole->shape.empty() || whole->shape[0] != batch) {
    return corrupt("slot " + std::to_string(slot) + ": not of a batch of " + std::to_string(batch));
  }
  auto part = batch_row(*whole, row);
  auto dtype = float_dtype(whole->type, whole->type_name);
  const std::string place = "tensor " + tensors::printable_name(name);
  if (!part) return in_context(place, std::move(part).error());
  if (!dtype) return in_context(place, std::move(dtype).error());
  return ForeignArray{std::to_string(slot), *dtype, part->shape,
                      read_bytes_at(file.bytes(), part->offset)};
}

// Slots "<layer>.0", "<layer>.1", ...; since 0.32 "<layer>.0.0", "<layer>.0.1", ..., and behind
// them left_padding and lengths.
Result<ForeignLayer> arrays_layer(MlxFile& file, const MlxCache& cache, std::int64_t row) {
  TQC_TRY(require_info(file, cache, 0));
  const bool is_nested = file.has(cache.prefix + "0.0");
  const std::string prefix = is_nested ? cache.prefix + "0." : cache.prefix;
  ForeignState layer;
  for (std::size_t slot = 0; file.has(prefix + std::to_string(slot)); ++slot) {
    TQC_TRY_ASSIGN(ForeignArray array, array_of(file, prefix + std::to_string(slot), slot,
                                                batch_size(file, cache), row));
    layer.arrays.push_back(std::move(array));
  }
  if (is_nested) {
    TQC_TRY(require_nothing(file, cache.prefix + "1", "left_padding"));
    TQC_TRY(require_nothing(file, cache.prefix + "2", "lengths"));
  }
  if (layer.arrays.empty()) return corrupt("no tensor of its state");
  return ForeignLayer(std::move(layer));
}

}  // namespace

Result<ForeignLayer> make_layer(MlxFile& file, const MlxCache& cache, std::int64_t n_tokens,
                                std::int64_t row, std::vector<std::string>& losses) {
  TQC_TRY_ASSIGN(const MlxClass kind, mlx_class(cache.class_name));
  switch (kind) {
    case MlxClass::kQuantized:
      return quantized_layer(file, cache, n_tokens, row, losses);
    case MlxClass::kRotating:
      return rotating_layer(file, cache, row);
    case MlxClass::kArrays:
      return arrays_layer(file, cache, row);
    case MlxClass::kChunked:
      return chunked_layer(file, cache, n_tokens, row, losses);
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
