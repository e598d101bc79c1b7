#include "tqcache/interop/head_rows.h"

#include <string>
#include <utility>

#include "tqcache/cache/cache.h"

namespace tqcache::interop {

Result<cache::HeadShape> head_shape_of(std::span<const std::uint64_t> shape, std::int64_t n_rows) {
  if (shape.size() != 3) {
    return Error{ErrorCode::kCorrupt, std::to_string(shape.size()) + " dimensions"};
  }
  if (shape[0] > std::uint64_t{cache::kMaxKvHeads} ||
      shape[2] > std::uint64_t{cache::kMaxHeadDim}) {
    return Error{ErrorCode::kTooLarge, std::to_string(shape[0]) + " kv heads of " +
                                           std::to_string(shape[2]) + " components"};
  }
  if (shape[1] != static_cast<std::uint64_t>(n_rows)) {
    return Error{ErrorCode::kCorrupt,
                 std::to_string(shape[1]) + " rows where " + std::to_string(n_rows) + " belong"};
  }
  return cache::HeadShape{static_cast<std::int64_t>(shape[0]), static_cast<std::int64_t>(shape[2])};
}

ReadTensor tensor_at(std::shared_ptr<const ByteSource> file, std::uint64_t begin) {
  return [file = std::move(file), begin](std::uint64_t offset, std::span<std::byte> out) {
    return file->read_at(begin + offset, out);
  };
}

ReadRows rows_of(ReadTensor tensor, cache::HeadShape shape, std::int64_t n_tokens,
                 std::size_t value_bytes) {
  const std::size_t row_bytes = static_cast<std::size_t>(shape.head_dim) * value_bytes;
  return [tensor = std::move(tensor), shape, n_tokens, row_bytes](
             std::int64_t first, std::int64_t n, std::span<std::byte> out) -> Result<void> {
    const std::size_t head_bytes = static_cast<std::size_t>(n) * row_bytes;
    for (std::int64_t head = 0; head < shape.n_kv_heads; ++head) {
      const auto row = static_cast<std::uint64_t>(head * n_tokens + first);
      TQC_TRY(tensor(row * row_bytes,
                     out.subspan(static_cast<std::size_t>(head) * head_bytes, head_bytes)));
    }
    return {};
  };
}

}  // namespace tqcache::interop
