// ArraysCache and MambaCache of mlx-lm, which are kept bit for bit, and RotatingKVCache, whose ring
// is brought into the order of positions.

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "migrations/v1_layers.h"
#include "migrations/v1_meta.h"
#include "tqcache/base/integers.h"
#include "tqcache/base/result.h"
#include "tqcache/cache/window.h"

namespace tqcache::migrations {
namespace {

// --- the ring

// meta_state of a RotatingKVCache.
struct Ring {
  std::int64_t keep = 0;
  std::int64_t max_size = 0;
  std::int64_t offset = 0;
  std::int64_t next = 0;  // "_idx": the row that would be written next
};

Result<Ring> read_ring(const V1Entry& entry) {
  TQC_TRY_ASSIGN(const auto numbers, read_numbers(entry.meta_state));
  if (numbers.size() != 4) return corrupt("meta_state: not keep, max_size, offset and _idx");
  const Ring ring{numbers[0], numbers[1], numbers[2], numbers[3]};
  if (ring.keep >= ring.max_size) {
    return corrupt("meta_state: keep " + std::to_string(ring.keep) + " of max_size " +
                   std::to_string(ring.max_size));
  }
  return ring;
}

// Rows of the buffer in the order of their positions. Of n rows the first `keep` stay where they
// are, and the others go round.
// Source: facts of mlx-lm's RotatingKVCache, docs/reference/format.md, "Version 1".
Result<std::vector<std::int64_t>> rows_in_order(const Ring& ring, std::int64_t n_rows) {
  std::vector<std::int64_t> rows;
  const auto add = [&](std::int64_t first, std::int64_t end) {
    for (std::int64_t row = first; row < end; ++row) rows.push_back(row);
  };
  const bool is_wrapped = ring.next < n_rows && n_rows <= ring.offset;
  if (ring.next == n_rows && n_rows <= ring.offset) {
    add(0, n_rows);
  } else if (is_wrapped && ring.next >= ring.keep) {
    add(0, ring.keep);
    add(ring.next, n_rows);
    add(ring.keep, ring.next);
  } else if (ring.next == ring.offset && ring.next < n_rows) {
    add(0, ring.next);  // the rest was never written
  } else {
    return corrupt("meta_state: _idx " + std::to_string(ring.next) + " and offset " +
                   std::to_string(ring.offset) + " in a ring of " + std::to_string(n_rows));
  }
  return rows;
}

// The rows that a window holds: those that stay, and the newest. A ring may have more, which no
// query looks at any more.
Result<std::vector<std::int64_t>> window_rows(const Ring& ring, std::int64_t n_rows) {
  TQC_TRY_ASSIGN(std::vector<std::int64_t> rows, rows_in_order(ring, n_rows));
  const std::int64_t wanted = std::min(ring.max_size, ring.offset);
  const std::int64_t spare = static_cast<std::int64_t>(rows.size()) - wanted;
  if (spare < 0) {
    return corrupt(std::to_string(rows.size()) + " tokens where " + std::to_string(wanted) +
                   " belong");
  }
  const auto first = rows.begin() + std::min(ring.keep, wanted);
  rows.erase(first, first + spare);
  return rows;
}

Result<cache::NamedArray> window_array(const V1Tensor& tensor, cache::HeadShape shape,
                                       const std::vector<std::int64_t>& rows, std::int64_t n_rows,
                                       Context& context) {
  cache::NamedArray array;
  array.name = tensor.name;
  TQC_TRY_ASSIGN(array.dtype, dense_dtype(tensor));
  array.shape = {static_cast<std::uint64_t>(shape.n_kv_heads), rows.size(),
                 static_cast<std::uint64_t>(shape.head_dim)};
  const std::size_t row_bytes = to_size(shape.head_dim) * dtype_size(array.dtype);
  const std::size_t bytes = to_size(shape.n_kv_heads) * rows.size() * row_bytes;
  TQC_TRY(context.take(bytes));
  array.data.resize(bytes);
  std::byte* out = array.data.data();
  for (std::int64_t head = 0; head < shape.n_kv_heads; ++head) {
    for (const std::int64_t row : rows) {
      std::memcpy(out, tensor.data.data() + to_size(head * n_rows + row) * row_bytes, row_bytes);
      out += row_bytes;
    }
  }
  return array;
}

// --- arrays

Result<cache::NamedArray> array_of(const V1Tensor& tensor, Context& context) {
  if (!tensor.shape.empty() && !tensor.data.empty() && tensor.shape[0] != 1) {
    return Error{ErrorCode::kUnsupported,
                 describe(tensor) + ": a batch of " + std::to_string(tensor.shape[0])};
  }
  TQC_TRY_ASSIGN(const Dtype dtype, dense_dtype(tensor));
  TQC_TRY(context.take(tensor.data.size()));
  return cache::NamedArray{tensor.name, dtype, tensor.shape, tensor.data};
}

}  // namespace

Result<MigratedLayer> rotating_layer(const V1Entry& entry, Context& context) {
  const State state(entry.state);
  TQC_TRY(state.require_only({"keys", "values"}));
  TQC_TRY_ASSIGN(const DensePair pair, dense_pair(state, "keys", "values"));
  TQC_TRY_ASSIGN(const Ring ring, read_ring(entry));
  TQC_TRY_ASSIGN(const auto rows, window_rows(ring, pair.n_tokens));
  const cache::Window window{.size = ring.max_size, .keep = ring.keep};
  TQC_TRY(cache::validate_window(pair.shape, window));
  const auto side_of = [&](const V1Tensor& tensor) -> Result<cache::Side> {
    TQC_TRY_ASSIGN(const cache::NamedArray array,
                   window_array(tensor, pair.shape, rows, pair.n_tokens, context));
    if (array.shape != cache::window_array_shape(pair.shape, window, ring.offset)) {
      return corrupt(array.name + ": not of the window's shape");
    }
    return cache::Side(
        cache::scatter_window(pair.shape, window, array.dtype, array.data, ring.offset));
  };
  TQC_TRY_ASSIGN(cache::Side k, side_of(*pair.keys));
  TQC_TRY_ASSIGN(cache::Side v, side_of(*pair.values));
  return MigratedLayer{
      cache::WindowLayer{{pair.shape, std::move(k), std::move(v)}, window}, ring.offset};
}

Result<MigratedLayer> arrays_layer(const V1Entry& entry, Context& context) {
  TQC_TRY_ASSIGN(const auto numbers, read_numbers(entry.meta_state));
  if (!numbers.empty()) return corrupt("meta_state: not empty");
  cache::StateLayer layer;
  for (const V1Tensor& tensor : entry.state) {
    if (tensor.name != std::to_string(layer.arrays.size())) {
      return corrupt(describe(tensor) + ": where \"" + std::to_string(layer.arrays.size()) +
                     "\" belongs");
    }
    TQC_TRY_ASSIGN(cache::NamedArray array, array_of(tensor, context));
    layer.arrays.push_back(std::move(array));
  }
  return MigratedLayer{std::move(layer), std::nullopt};
}

}  // namespace tqcache::migrations
