#include "tqcache/interop/llama/llama_side.h"

#include <cstring>
#include <utility>

#include "tqcache/base/integers.h"
#include "tqcache/interop/llama/llama_transposed.h"

namespace tqcache::interop {
namespace {

// Rows that stand one after another in the file, cell by cell.
class RowReader {
 public:
  explicit RowReader(LlamaSide side)
      : side_(std::move(side)),
        row_bytes_(*row_bytes_of(side_.rows.format, side_.shape.n_kv_heads, side_.shape.head_dim)),
        value_bytes_(dtype_size(dense_dtype(side_.rows.format))) {}

  Result<void> read(std::int64_t first, std::int64_t n, std::span<std::byte> out) const {
    const auto rows = side_.buffers->borrow([] { return std::make_unique<AlignedBytes>(); });
    rows->resize(to_size(n) * row_bytes_);
    TQC_TRY(read_rows(first, n, *rows));
    const LlamaRowFormat& format = side_.rows.format;
    if (format.plain != nullptr && format.plain->dense) return take_dense(*rows, n, out);
    return decode(*rows, n, out);
  }

 private:
  bool is_in_order() const { return side_.cells == nullptr || side_.cells->empty(); }
  std::uint64_t cell_of(std::int64_t token) const {
    return is_in_order() ? static_cast<std::uint64_t>(token) : (*side_.cells)[to_size(token)];
  }

  // Cells that follow each other in the file are read at once.
  Result<void> read_rows(std::int64_t first, std::int64_t n, std::span<std::byte> rows) const {
    for (std::int64_t i = 0; i < n;) {
      const std::uint64_t cell = cell_of(first + i);
      std::int64_t run = is_in_order() ? n : 1;
      while (i + run < n && cell_of(first + i + run) == cell + static_cast<std::uint64_t>(run)) {
        ++run;
      }
      const auto part = rows.subspan(to_size(i) * row_bytes_, to_size(run) * row_bytes_);
      TQC_TRY(side_.file->read_at(side_.rows.offset + cell * row_bytes_, part));
      i += run;
    }
    return {};
  }

  // [n, n_kv_heads, head_dim] to [n_kv_heads, n, head_dim].
  Result<void> take_dense(ByteView rows, std::int64_t n, std::span<std::byte> out) const {
    const std::size_t head_bytes = to_size(side_.shape.head_dim) * value_bytes_;
    for (std::size_t head = 0; head < to_size(side_.shape.n_kv_heads); ++head) {
      for (std::size_t i = 0; i < to_size(n); ++i) {
        std::byte* to = out.data() + (head * to_size(n) + i) * head_bytes;
        std::memcpy(to, rows.data() + i * row_bytes_ + head * head_bytes, head_bytes);
      }
    }
    if (side_.n_rot == 0) return {};
    for (std::size_t at = 0; at < out.size(); at += head_bytes) {
      to_half_split(side_.n_rot, value_bytes_, out.subspan(at, head_bytes));
    }
    return {};
  }

  Result<void> decode(ByteView rows, std::int64_t n, std::span<std::byte> out) const {
    const std::size_t head_dim = to_size(side_.shape.head_dim);
    AlignedFloats values(to_size(side_.shape.n_kv_heads) * head_dim);
    for (std::size_t i = 0; i < to_size(n); ++i) {
      TQC_TRY(decode_one(rows.subspan(i * row_bytes_, row_bytes_), values));
      for (std::size_t head = 0; head < to_size(side_.shape.n_kv_heads); ++head) {
        const std::span<std::byte> to = out.subspan(
            (head * to_size(n) + i) * head_dim * sizeof(float), head_dim * sizeof(float));
        std::memcpy(to.data(), values.data() + head * head_dim, to.size());
        if (side_.n_rot != 0) to_half_split(side_.n_rot, sizeof(float), to);
      }
    }
    return {};
  }

  Result<void> decode_one(ByteView row, std::span<float> values) const {
    const LlamaRowFormat& format = side_.rows.format;
    if (format.turbo != nullptr) return decode_turbo(row, values);
    decode_row(*format.plain, row, values);
    if (side_.rotation != 0) hadamard(side_.rotation, values);
    return {};
  }

  Result<void> decode_turbo(ByteView row, std::span<float> values) const {
    const std::size_t head_dim = to_size(side_.shape.head_dim);
    const std::size_t head_bytes = row.size() / to_size(side_.shape.n_kv_heads);
    for (std::size_t head = 0; head < to_size(side_.shape.n_kv_heads); ++head) {
      TQC_TRY(decode_turbo_head(*side_.rows.format.turbo,
                                row.subspan(head * head_bytes, head_bytes),
                                values.subspan(head * head_dim, head_dim)));
    }
    return {};
  }

  LlamaSide side_;
  std::size_t row_bytes_;
  std::size_t value_bytes_;  // of what is given out
};

}  // namespace

Dtype dense_dtype(const LlamaRowFormat& format) {
  return format.plain != nullptr ? format.plain->dense.value_or(Dtype::kF32) : Dtype::kF32;
}

ReadRows read_llama_side(LlamaSide side) {
  if (side.rows.is_transposed) return read_transposed_llama_side(std::move(side));
  auto reader = std::make_shared<const RowReader>(std::move(side));
  return [reader](std::int64_t first, std::int64_t n, std::span<std::byte> out) {
    return reader->read(first, n, out);
  };
}

}  // namespace tqcache::interop
