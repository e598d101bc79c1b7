#include "tqcache/interop/mlx/mlx_lm_rows.h"

#include <span>
#include <utility>
#include <vector>

#include "tqcache/base/dtype.h"
#include "tqcache/base/integers.h"

namespace tqcache::interop {
namespace {

// `count` rows of a kv head, from `first` on, into as many bytes.
Result<void> read_rows(const ByteSource& file, const MlxRows& rows, std::int64_t head,
                       std::int64_t first, std::span<std::byte> out) {
  const std::int64_t row = head * rows.n_rows + rows.first + first;
  return file.read_at(rows.offset + static_cast<std::uint64_t>(row) * rows.row_bytes, out);
}

// Rows of groups, widened.
class GroupRows {
 public:
  GroupRows(MlxRows rows, Dtype dtype) : rows_(rows), dtype_(dtype) {}

  Result<void> read(const ByteSource& file, std::int64_t head, std::int64_t first, std::int64_t n) {
    bytes_.resize(to_size(n) * rows_.row_bytes);
    values_.resize(bytes_.size() / dtype_size(dtype_));
    TQC_TRY(read_rows(file, rows_, head, first, bytes_));
    load_f32(dtype_, bytes_.data(), values_);
    return {};
  }
  std::span<const float> row(std::int64_t i) const {
    const std::size_t count = rows_.row_bytes / dtype_size(dtype_);
    return std::span(values_).subspan(to_size(i) * count, count);
  }

 private:
  MlxRows rows_;
  Dtype dtype_;
  Bytes bytes_;
  std::vector<float> values_;
};

Result<void> decode_rows(const ByteSource& file, cache::HeadShape shape, const MlxAffineSide& side,
                         std::int64_t first, std::int64_t n, std::span<std::byte> out) {
  GroupRows scales(side.scales, side.dtype);
  GroupRows biases(side.biases, side.dtype);
  Bytes codes(to_size(n) * side.codes.row_bytes);
  std::vector<float> x(to_size(shape.head_dim));
  for (std::int64_t head = 0; head < shape.n_kv_heads; ++head) {
    TQC_TRY(read_rows(file, side.codes, head, first, codes));
    TQC_TRY(scales.read(file, head, first, n));
    TQC_TRY(biases.read(file, head, first, n));
    for (std::int64_t i = 0; i < n; ++i) {
      const auto row =
          ByteView(codes).subspan(to_size(i) * side.codes.row_bytes, side.codes.row_bytes);
      affine_decode(side.form, row, scales.row(i), biases.row(i), x);
      store_f32(Dtype::kF32, x, out.data() + to_size(head * n + i) * x.size() * sizeof(float));
    }
  }
  return {};
}

}  // namespace

ReadRows read_dense_rows(SharedFile file, cache::HeadShape shape, MlxRows rows) {
  return [file = std::move(file), shape, rows](std::int64_t first, std::int64_t n,
                                               std::span<std::byte> out) -> Result<void> {
    const std::size_t head_bytes = to_size(n) * rows.row_bytes;
    for (std::int64_t head = 0; head < shape.n_kv_heads; ++head) {
      TQC_TRY(
          read_rows(*file, rows, head, first, out.subspan(to_size(head) * head_bytes, head_bytes)));
    }
    return {};
  };
}

ReadRows read_affine_rows(SharedFile file, cache::HeadShape shape, const MlxAffineSide& side) {
  return [file = std::move(file), shape, side](std::int64_t first, std::int64_t n,
                                               std::span<std::byte> out) {
    return decode_rows(*file, shape, side, first, n, out);
  };
}

ReadArray read_row_runs(SharedFile file, std::int64_t n_kv_heads, MlxRows rows, RowRuns runs) {
  return [file = std::move(file), n_kv_heads, rows,
          runs = std::move(runs)](std::span<std::byte> out) -> Result<void> {
    for (std::int64_t head = 0; head < n_kv_heads; ++head) {
      for (const RowRun& run : runs) {
        const std::size_t bytes = to_size(run.count) * rows.row_bytes;
        TQC_TRY(read_rows(*file, rows, head, run.first, out.first(bytes)));
        out = out.subspan(bytes);
      }
    }
    return {};
  };
}

ReadArray read_bytes_at(SharedFile file, std::uint64_t offset) {
  return [file = std::move(file), offset](std::span<std::byte> out) {
    return file->read_at(offset, out);
  };
}

}  // namespace tqcache::interop
