#include "tqcache/interop/llama/llama_tensor.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>

#include "tqcache/base/integers.h"

namespace tqcache::interop {
namespace {

// If the range spans more than this many times the wanted cells, cells are read one by one.
constexpr std::uint64_t kMaxSpread = 64;
constexpr std::size_t kTile = 16;  // transposition tile: two cache lines of f16 per row

// Some cells of all components: values as [component][n].
struct Chunk {
  std::uint64_t first = 0;
  std::uint64_t n = 0;
  AlignedBytes values;
};

// [n_rows][stride] to [n_columns][n_rows].
template <std::size_t kBytes>
void transpose(const std::byte* in, std::size_t stride, std::size_t n_rows, std::size_t n_columns,
               std::byte* out) {
  for (std::size_t row = 0; row < n_rows; row += kTile) {
    const std::size_t end_row = std::min(row + kTile, n_rows);
    for (std::size_t column = 0; column < n_columns; ++column) {
      for (std::size_t r = row; r < end_row; ++r) {
        std::memcpy(out + (column * n_rows + r) * kBytes, in + (r * stride + column) * kBytes,
                    kBytes);
      }
    }
  }
}

class TransposedReader {
 public:
  explicit TransposedReader(LlamaTensor tensor)
      : tensor_(std::move(tensor)),
        value_bytes_(dtype_size(dense_dtype(tensor_.rows.format))),
        n_components_(to_size(tensor_.shape.n_kv_heads * tensor_.shape.head_dim)) {}

  Result<void> read(std::int64_t first, std::int64_t n, std::span<std::byte> out) {
    if (!is_in_order()) return read_scattered(first, n, out);
    const auto cell = static_cast<std::uint64_t>(first);
    const auto n_cells = static_cast<std::uint64_t>(n);
    if (cells_at_a_time() == cache::kTokenBlock) {
      Chunk chunk;
      TQC_TRY(read_chunk(cell, n_cells, chunk));
      give_out(chunk, cell, n_cells, out);
      return {};
    }
    // Other tensors can be read meanwhile; no chunk is read twice.
    const std::lock_guard lock(mutex_);
    TQC_TRY(keep(cell, n_cells));
    give_out(kept_, cell, n_cells, out);
    return {};
  }

 private:
  bool is_in_order() const { return tensor_.cells == nullptr || tensor_.cells->empty(); }

  std::uint64_t place_of(std::size_t component, std::uint64_t cell) const {
    return tensor_.rows.offset + (component * tensor_.n_cells + cell) * value_bytes_;
  }

  // Number of cells that may be kept at a time, in whole token blocks; at least one block.
  std::uint64_t cells_at_a_time() const {
    const std::uint64_t block_bytes = n_components_ * cache::kTokenBlock * value_bytes_;
    return std::max<std::uint64_t>(1, tensor_.transposed_bytes / block_bytes) * cache::kTokenBlock;
  }

  // Makes `kept_` hold these cells.
  Result<void> keep(std::uint64_t first, std::uint64_t n) {
    if (kept_.first <= first && first + n <= kept_.first + kept_.n) return {};
    const std::uint64_t size = cells_at_a_time();
    const std::uint64_t begin = first / size * size;
    kept_.n = 0;  // invalid until reading succeeds
    return read_chunk(begin, std::min(size, tensor_.n_cells - begin), kept_);
  }

  Result<void> read_chunk(std::uint64_t first, std::uint64_t n, Chunk& chunk) const {
    chunk.values.resize(n_components_ * n * value_bytes_);
    const std::size_t row = static_cast<std::size_t>(n) * value_bytes_;
    for (std::size_t i = 0; i < n_components_; ++i) {
      TQC_TRY(
          tensor_.file->read_at(place_of(i, first), std::span(chunk.values).subspan(i * row, row)));
    }
    chunk.first = first;
    chunk.n = n;
    return {};
  }

  // [component][chunk.n] to [n_kv_heads, n, head_dim].
  void give_out(const Chunk& chunk, std::uint64_t first, std::size_t n,
                std::span<std::byte> out) const {
    const std::size_t head_dim = to_size(tensor_.shape.head_dim);
    const auto turn = value_bytes_ == 2 ? transpose<2> : transpose<4>;
    for (std::size_t head = 0; head < to_size(tensor_.shape.n_kv_heads); ++head) {
      const std::size_t at = head * head_dim * chunk.n + (first - chunk.first);
      turn(chunk.values.data() + at * value_bytes_, chunk.n, head_dim, n,
           out.data() + head * n * head_dim * value_bytes_);
    }
  }

  // Cells anywhere: reads, for each component, the range from the first to the last wanted cell.
  Result<void> read_scattered(std::int64_t first, std::int64_t n, std::span<std::byte> out) const {
    const auto cells = std::span(*tensor_.cells).subspan(to_size(first), to_size(n));
    const auto [low, high] = std::ranges::minmax(cells);
    const std::uint64_t n_between = std::uint64_t{high} - low + 1;
    const bool at_once = n_between <= kMaxSpread * static_cast<std::uint64_t>(n);
    AlignedBytes between(at_once ? n_between * value_bytes_ : 0);
    for (std::size_t i = 0; i < n_components_; ++i) {
      if (at_once) TQC_TRY(tensor_.file->read_at(place_of(i, low), between));
      for (std::size_t k = 0; k < cells.size(); ++k) {
        const auto to = out.subspan(place_in_block(i, k, cells.size()), value_bytes_);
        if (!at_once) TQC_TRY(tensor_.file->read_at(place_of(i, cells[k]), to));
        if (at_once) {
          std::memcpy(to.data(), between.data() + (cells[k] - low) * value_bytes_, to.size());
        }
      }
    }
    return {};
  }

  // [n_kv_heads, n, head_dim]
  std::size_t place_in_block(std::size_t component, std::size_t token, std::size_t n) const {
    const std::size_t head_dim = to_size(tensor_.shape.head_dim);
    const std::size_t head = component / head_dim;
    return ((head * n + token) * head_dim + component % head_dim) * value_bytes_;
  }

  LlamaTensor tensor_;
  std::size_t value_bytes_;
  std::size_t n_components_;
  std::mutex mutex_;
  Chunk kept_;
};

// As read_llama_tensor(). Requires: tensor.rows.is_transposed.
ReadRows read_transposed_llama_tensor(LlamaTensor tensor) {
  auto reader = std::make_shared<TransposedReader>(std::move(tensor));
  return [reader](std::int64_t first, std::int64_t n, std::span<std::byte> out) {
    return reader->read(first, n, out);
  };
}

// Rows that are consecutive in the file, cell by cell.
class RowReader {
 public:
  explicit RowReader(LlamaTensor tensor)
      : tensor_(std::move(tensor)),
        row_bytes_(
            *row_bytes_of(tensor_.rows.format, tensor_.shape.n_kv_heads, tensor_.shape.head_dim)),
        value_bytes_(dtype_size(dense_dtype(tensor_.rows.format))) {}

  Result<void> read(std::int64_t first, std::int64_t n, std::span<std::byte> out) const {
    const auto rows = tensor_.buffers->borrow([] { return std::make_unique<AlignedBytes>(); });
    rows->resize(to_size(n) * row_bytes_);
    TQC_TRY(read_rows(first, n, *rows));
    const LlamaRowFormat& format = tensor_.rows.format;
    if (format.plain != nullptr && format.plain->dense) return take_dense(*rows, n, out);
    return decode(*rows, n, out);
  }

 private:
  bool is_in_order() const { return tensor_.cells == nullptr || tensor_.cells->empty(); }
  std::uint64_t cell_of(std::int64_t token) const {
    return is_in_order() ? static_cast<std::uint64_t>(token) : (*tensor_.cells)[to_size(token)];
  }

  // Reads cells that are consecutive in the file at once.
  Result<void> read_rows(std::int64_t first, std::int64_t n, std::span<std::byte> rows) const {
    for (std::int64_t i = 0; i < n;) {
      const std::uint64_t cell = cell_of(first + i);
      std::int64_t run = is_in_order() ? n : 1;
      while (i + run < n && cell_of(first + i + run) == cell + static_cast<std::uint64_t>(run)) {
        ++run;
      }
      const auto part = rows.subspan(to_size(i) * row_bytes_, to_size(run) * row_bytes_);
      TQC_TRY(tensor_.file->read_at(tensor_.rows.offset + cell * row_bytes_, part));
      i += run;
    }
    return {};
  }

  // [n, n_kv_heads, head_dim] to [n_kv_heads, n, head_dim].
  Result<void> take_dense(ByteView rows, std::int64_t n, std::span<std::byte> out) const {
    const std::size_t head_bytes = to_size(tensor_.shape.head_dim) * value_bytes_;
    for (std::size_t head = 0; head < to_size(tensor_.shape.n_kv_heads); ++head) {
      for (std::size_t i = 0; i < to_size(n); ++i) {
        std::byte* to = out.data() + (head * to_size(n) + i) * head_bytes;
        std::memcpy(to, rows.data() + i * row_bytes_ + head * head_bytes, head_bytes);
      }
    }
    if (tensor_.n_rot == 0) return {};
    for (std::size_t at = 0; at < out.size(); at += head_bytes) {
      to_half_split(tensor_.n_rot, value_bytes_, out.subspan(at, head_bytes));
    }
    return {};
  }

  Result<void> decode(ByteView rows, std::int64_t n, std::span<std::byte> out) const {
    const std::size_t head_dim = to_size(tensor_.shape.head_dim);
    AlignedFloats values(to_size(tensor_.shape.n_kv_heads) * head_dim);
    for (std::size_t i = 0; i < to_size(n); ++i) {
      TQC_TRY(decode_one(rows.subspan(i * row_bytes_, row_bytes_), values));
      for (std::size_t head = 0; head < to_size(tensor_.shape.n_kv_heads); ++head) {
        const std::span<std::byte> to = out.subspan(
            (head * to_size(n) + i) * head_dim * sizeof(float), head_dim * sizeof(float));
        std::memcpy(to.data(), values.data() + head * head_dim, to.size());
        if (tensor_.n_rot != 0) to_half_split(tensor_.n_rot, sizeof(float), to);
      }
    }
    return {};
  }

  Result<void> decode_one(ByteView row, std::span<float> values) const {
    const LlamaRowFormat& format = tensor_.rows.format;
    if (format.turbo != nullptr) return decode_turbo(row, values);
    decode_row(*format.plain, row, values);
    if (tensor_.rotation != 0) hadamard(tensor_.rotation, values);
    return {};
  }

  Result<void> decode_turbo(ByteView row, std::span<float> values) const {
    const std::size_t head_dim = to_size(tensor_.shape.head_dim);
    const std::size_t head_bytes = row.size() / to_size(tensor_.shape.n_kv_heads);
    for (std::size_t head = 0; head < to_size(tensor_.shape.n_kv_heads); ++head) {
      TQC_TRY(decode_turbo_head(*tensor_.rows.format.turbo,
                                row.subspan(head * head_bytes, head_bytes),
                                values.subspan(head * head_dim, head_dim)));
    }
    return {};
  }

  LlamaTensor tensor_;
  std::size_t row_bytes_;
  std::size_t value_bytes_;  // bytes per value returned
};

}  // namespace

Dtype dense_dtype(const LlamaRowFormat& format) {
  return format.plain != nullptr ? format.plain->dense.value_or(Dtype::kF32) : Dtype::kF32;
}

ReadRows read_llama_tensor(LlamaTensor tensor) {
  if (tensor.rows.is_transposed) return read_transposed_llama_tensor(std::move(tensor));
  auto reader = std::make_shared<const RowReader>(std::move(tensor));
  return [reader](std::int64_t first, std::int64_t n, std::span<std::byte> out) {
    return reader->read(first, n, out);
  };
}

}  // namespace tqcache::interop
