#include "tqcache/interop/mlx/mlx_lm_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tqcache/base/integers.h"
#include "tqcache/bytes.h"
#include "tqcache/cache.h"
#include "tqcache/codec/block_layout.h"
#include "tqcache/error.h"

namespace tqcache::interop {
namespace {

RowRuns without_empty(RowRuns runs) {
  std::erase_if(runs, [](const RowRun& run) { return run.count <= 0; });
  return runs;
}

// The runs with `count` rows removed, from row `at` on. Requires: these rows exist.
RowRuns cut_rows(const RowRuns& runs, std::int64_t at, std::int64_t count) {
  RowRuns result;
  std::int64_t position = 0;  // index of the run's first row among all rows
  for (const RowRun& run : runs) {
    const std::int64_t before = std::clamp<std::int64_t>(at - position, 0, run.count);
    const std::int64_t behind = std::clamp<std::int64_t>(at + count - position, 0, run.count);
    result.push_back({run.first, before});
    result.push_back({run.first + behind, run.count - behind});
    position += run.count;
  }
  return without_empty(std::move(result));
}

// Keeps the first `keep` rows and the newest ones.
Result<RowRuns> newest_rows(const RowRuns& runs, std::int64_t keep, std::int64_t wanted) {
  const std::int64_t spare = count_rows(runs) - wanted;
  if (spare == 0) return runs;
  if (spare > 0) return cut_rows(runs, std::min(keep, wanted), spare);
  return corrupt(fmt::format("ring: {} tokens, expected {}", count_rows(runs), wanted));
}

constexpr float kMinScale = 1e-7f;

using HeadCodes = std::array<std::uint8_t, cache::kMaxHeadDim>;

struct Group {
  float scale = 0;
  float bias = 0;
};

// Code 0 is the edge farther from zero; zero itself gets a code if it lies within the range.
Group fit_group(std::span<const float> x, float max_code) {
  float low = std::numeric_limits<float>::infinity();
  float high = -low;
  for (const float value : x) {
    high = std::max(high, value);
    low = std::min(low, value);
  }
  const bool low_is_edge = std::abs(low) > std::abs(high);
  const float step = std::max((high - low) / max_code, kMinScale);
  Group group{.scale = low_is_edge ? step : -step, .bias = 0};
  const float edge = low_is_edge ? low : high;
  const float steps = std::rint(edge / group.scale);
  if (steps != 0) group = {.scale = edge / steps, .bias = edge};
  return group;
}

std::uint8_t code_of(float value, Group group, float max_code) {
  const float code = std::rint((value - group.bias) / group.scale);
  if (!(code > 0)) return 0;
  return static_cast<std::uint8_t>(std::min(code, max_code));
}

// Reads `count` rows of a kv head, from `first` on.
Result<void> read_rows(const ByteSource& file, const MlxRows& rows, std::int64_t head,
                       std::int64_t first, std::span<std::byte> out) {
  const std::int64_t row = head * rows.n_rows + rows.first + first;
  return file.read_at(rows.offset + static_cast<std::uint64_t>(row) * rows.row_bytes, out);
}

// Rows of affine groups, widened to f32.
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

Result<void> decode_rows(const ByteSource& file, cache::HeadShape shape,
                         const MlxAffineTensor& tensor, std::int64_t first, std::int64_t n,
                         std::span<std::byte> out) {
  GroupRows scales(tensor.scales, tensor.dtype);
  GroupRows biases(tensor.biases, tensor.dtype);
  Bytes codes(to_size(n) * tensor.codes.row_bytes);
  std::vector<float> x(to_size(shape.head_dim));
  for (std::int64_t head = 0; head < shape.n_kv_heads; ++head) {
    TQC_TRY(read_rows(file, tensor.codes, head, first, codes));
    TQC_TRY(scales.read(file, head, first, n));
    TQC_TRY(biases.read(file, head, first, n));
    for (std::int64_t i = 0; i < n; ++i) {
      const auto row =
          ByteView(codes).subspan(to_size(i) * tensor.codes.row_bytes, tensor.codes.row_bytes);
      affine_decode(tensor.groups, row, scales.row(i), biases.row(i), x);
      store_f32(Dtype::kF32, x, out.data() + to_size(head * n + i) * x.size() * sizeof(float));
    }
  }
  return {};
}

}  // namespace

std::int64_t count_rows(const RowRuns& runs) {
  std::int64_t count = 0;
  for (const RowRun& run : runs) count += run.count;
  return count;
}

Result<RowRuns> ring_rows(const MlxRing& ring, std::int64_t n_rows) {
  const std::int64_t next = std::min(ring.next, n_rows);
  RowRuns runs;
  if (next == n_rows) {
    runs = {{0, n_rows}};
  } else if (next >= ring.offset) {
    runs = {{0, next}};  // the rest was never written
  } else if (next >= ring.keep) {
    runs = {{0, ring.keep}, {next, n_rows - next}, {ring.keep, next - ring.keep}};
  } else {
    return corrupt(fmt::format("ring: _idx {} among the {} rows that stay", next, ring.keep));
  }
  runs = without_empty(std::move(runs));
  if (count_rows(runs) > ring.offset) {
    return corrupt(fmt::format("ring: {} rows of {} tokens", count_rows(runs), ring.offset));
  }
  return newest_rows(runs, ring.keep, std::min(ring.max_size, ring.offset));
}

Result<RowRuns> batch_ring_rows(const MlxBatchRing& ring, std::int64_t n_rows) {
  const std::int64_t next = std::min(ring.next, n_rows);
  RowRuns runs = {{0, next}};
  if (ring.rotated) runs = {{next, n_rows - next}, {0, next}};
  runs = without_empty(std::move(runs));
  const std::int64_t padding = std::max<std::int64_t>(ring.left_padding, 0);
  if (padding > count_rows(runs)) {
    return corrupt(fmt::format("ring: padding of {} in {} rows", padding, count_rows(runs)));
  }
  return newest_rows(cut_rows(runs, 0, padding), 0, std::min(ring.max_size, ring.offset));
}

Result<void> check_affine(std::int64_t bits, std::int64_t group_size, std::int64_t head_dim) {
  if (bits < 2 || bits > 8 || bits == 7) {
    return unsupported(fmt::format("groups of {} bits", bits));
  }
  if (group_size != 32 && group_size != 64 && group_size != 128) {
    return unsupported(fmt::format("groups of {} components", group_size));
  }
  if (head_dim % group_size == 0) return {};
  return corrupt(fmt::format("head_dim {} in groups of {}", head_dim, group_size));
}

void affine_decode(AffineGroups groups, std::span<const std::byte> codes,
                   std::span<const float> scales, std::span<const float> biases,
                   std::span<float> x) {
  HeadCodes values;
  codec::unpack_codes(codes, groups.bits, std::span(values).first(x.size()));
  const auto size = static_cast<std::size_t>(groups.group_size);
  for (std::size_t group = 0; group < scales.size(); ++group) {
    const float scale = scales[group];
    const float bias = biases[group];
    for (std::size_t i = group * size; i < (group + 1) * size; ++i) {
      x[i] = scale * static_cast<float>(values[i]) + bias;
    }
  }
}

void affine_encode(AffineGroups groups, Dtype dtype, std::span<const float> x,
                   std::span<std::byte> codes, std::span<std::byte> scales,
                   std::span<std::byte> biases) {
  HeadCodes values;
  const auto max_code = static_cast<float>((1 << groups.bits) - 1);
  const auto size = static_cast<std::size_t>(groups.group_size);
  for (std::size_t i = 0; i < affine_groups(groups, std::ssize(x)); ++i) {
    const auto part = x.subspan(i * size, size);
    const Group group = fit_group(part, max_code);
    std::ranges::transform(part, values.begin() + std::ptrdiff_t(i * size),
                           [&](float value) { return code_of(value, group, max_code); });
    store_f32(dtype, std::span(&group.scale, 1), scales.data() + i * dtype_size(dtype));
    store_f32(dtype, std::span(&group.bias, 1), biases.data() + i * dtype_size(dtype));
  }
  codec::pack_codes(std::span(values).first(x.size()), groups.bits, codes);
}

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

ReadRows read_affine_rows(SharedFile file, cache::HeadShape shape, const MlxAffineTensor& tensor) {
  return [file = std::move(file), shape, tensor](std::int64_t first, std::int64_t n,
                                                 std::span<std::byte> out) {
    return decode_rows(*file, shape, tensor, first, n, out);
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
