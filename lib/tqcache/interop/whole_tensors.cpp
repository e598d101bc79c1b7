#include "tqcache/interop/whole_tensors.h"

#include <fmt/format.h>

#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "tqcache/base/half.h"
#include "tqcache/base/integers.h"
#include "tqcache/bytes.h"
#include "tqcache/cache.h"
#include "tqcache/cache/blocks.h"
#include "tqcache/description.h"
#include "tqcache/error.h"

namespace tqcache::interop {
namespace {

using cache::TensorKind;

}  // namespace

Result<cache::HeadShape> head_shape_of(std::span<const std::uint64_t> shape, std::int64_t n_rows) {
  if (shape.size() != 3) {
    return corrupt(fmt::format("{} dimensions", shape.size()));
  }
  if (shape[0] > std::uint64_t{cache::kMaxKvHeads} ||
      shape[2] > std::uint64_t{cache::kMaxHeadDim}) {
    return too_large(fmt::format("{} kv heads of {} components", shape[0], shape[2]));
  }
  if (shape[1] != static_cast<std::uint64_t>(n_rows)) {
    return corrupt(fmt::format("{} rows, expected {}", shape[1], n_rows));
  }
  return cache::HeadShape{static_cast<std::int64_t>(shape[0]), static_cast<std::int64_t>(shape[2])};
}

ReadTensor tensor_at(std::shared_ptr<const ByteSource> file, std::uint64_t begin) {
  return [file = std::move(file), begin](std::uint64_t offset, std::span<std::byte> out) {
    return file->read_at(begin + offset, out);
  };
}

std::uint16_t f8_e4m3_to_f16(std::uint8_t bits) {
  const unsigned sign = (bits & 0x80u) << 8;
  unsigned exponent = (bits >> 3) & 0xfu, fraction = bits & 7u;
  if (exponent == 0xf && fraction == 7) return static_cast<std::uint16_t>(sign | 0x7e00u);
  if (exponent == 0) {
    if (fraction == 0) return static_cast<std::uint16_t>(sign);
    // fraction * 2^-9, a normal number of f16: its first bit becomes the implicit one.
    exponent = 1;
    while ((fraction & 8u) == 0) {
      fraction <<= 1;
      --exponent;  // wraps below 0, and the bias brings it back
    }
    fraction &= 7u;
  }
  return static_cast<std::uint16_t>(sign | ((exponent + 15 - 7) << 10) | (fraction << 7));
}

ReadTensor wide_tensor_at(std::shared_ptr<const ByteSource> file, std::uint64_t begin,
                          tensors::TensorType type) {
  if (float_dtype(type)) return tensor_at(std::move(file), begin);
  const bool is_e4m3 = type == tensors::TensorType::kF8E4M3;
  return [file = std::move(file), begin, is_e4m3](std::uint64_t offset,
                                                  std::span<std::byte> out) -> Result<void> {
    // The bytes are read to the upper half and widened from the front: a number is read before the
    // place that it stood at is written.
    const std::size_t n = out.size() / sizeof(std::uint16_t);
    const std::span<std::byte> bytes = out.last(n);
    TQC_TRY(file->read_at(begin + offset / sizeof(std::uint16_t), bytes));
    for (std::size_t i = 0; i < n; ++i) {
      const auto bits = static_cast<std::uint8_t>(bytes[i]);
      const std::uint16_t half = is_e4m3 ? f8_e4m3_to_f16(bits) : f8_e5m2_to_f16(bits);
      std::memcpy(out.data() + i * sizeof(half), &half, sizeof(half));
    }
    return {};
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

WholeTensors::WholeTensors(const cache::CacheReader& source, const Progress& progress)
    : source_(source), progress_(progress) {
  const std::vector<cache::BlockInfo>& blocks = source.blocks();
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    numbers_[{to_size(blocks[i].layer), blocks[i].tensor}].push_back(i);
    total_ += blocks[i].raw_bytes;
  }
}

const std::vector<std::size_t>& WholeTensors::sections_of(std::size_t layer,
                                                          TensorKind tensor) const {
  static const std::vector<std::size_t> kNone;  // K or V of a cache without tokens
  const auto found = numbers_.find({layer, tensor});
  return found == numbers_.end() ? kNone : found->second;
}

Result<void> WholeTensors::read_section(std::size_t section, AlignedBytes& raw) {
  TQC_TRY(source_.read(section, raw));
  done_ += raw.size();
  if (!progress_ || progress_(done_, total_)) return {};
  return interrupted_error();
}

Result<void> WholeTensors::read_tensor(std::size_t layer, TensorKind tensor, AlignedBytes& out) {
  const std::int64_t n_tokens = source_.n_tokens();
  const cache::LayerDesc& desc = source_.description().layers[layer];
  const cache::HeadShape shape = cache::shape_of(desc, tensor);
  const std::size_t row_bytes =
      to_size(shape.head_dim) * dtype_size(cache::tensor_of(desc, tensor).dtype);
  const std::size_t head_bytes = to_size(n_tokens) * row_bytes;
  out.resize(to_size(shape.n_kv_heads) * head_bytes);
  for (const std::size_t section : sections_of(layer, tensor)) {
    TQC_TRY(read_section(section, block_));
    const std::int64_t block = source_.blocks()[section].block;
    const std::size_t n_bytes = to_size(cache::tokens_in_block(n_tokens, block)) * row_bytes;
    const std::size_t begin = to_size(block * cache::kTokenBlock) * row_bytes;
    for (std::size_t head = 0; head < to_size(shape.n_kv_heads); ++head) {
      std::memcpy(out.data() + head * head_bytes + begin, block_.data() + head * n_bytes, n_bytes);
    }
  }
  return {};
}

Result<void> WholeTensors::read_array(std::size_t layer, std::size_t array, AlignedBytes& out) {
  return read_section(sections_of(layer, TensorKind::kArray)[array], out);
}

void widen_bf16(AlignedBytes& values) {
  const std::size_t n = values.size() / 2;
  values.resize(4 * n);
  // Backward, so that no value is overwritten before it is read.
  for (std::size_t i = n; i-- > 0;) {
    std::uint16_t half;
    std::memcpy(&half, values.data() + 2 * i, sizeof(half));
    const std::uint32_t word = static_cast<std::uint32_t>(half) << 16;
    std::memcpy(values.data() + 4 * i, &word, sizeof(word));
  }
}

void narrow_to_bf16(std::span<const std::byte> wide, std::span<std::byte> narrow) {
  for (std::size_t i = 0; 2 * i < narrow.size(); ++i) {
    std::uint32_t word;
    std::memcpy(&word, wide.data() + 4 * i, sizeof(word));
    // Rounding would make a signaling NaN quiet.
    const bool is_exact = (word & 0xffff) == 0;
    const std::uint16_t half =
        is_exact ? static_cast<std::uint16_t>(word >> 16) : f32_to_bf16(std::bit_cast<float>(word));
    std::memcpy(narrow.data() + 2 * i, &half, sizeof(half));
  }
}

}  // namespace tqcache::interop
