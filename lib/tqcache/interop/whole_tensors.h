#pragma once
// interop/whole_tensors.h: contiguous K, V and array tensors in foreign files: reading token blocks
// from them, and assembling them from token blocks. Safe for untrusted input.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "tqcache/bytes.h"
#include "tqcache/description.h"
#include "tqcache/error.h"
#include "tqcache/file.h"
#include "tqcache/interop/foreign_cache.h"
#include "tqcache/progress.h"
#include "tqcache/reader.h"
#include "tqcache/tensors/tensor.h"

namespace tqcache::interop {

// nullopt: not f32, f16 or bf16.
constexpr std::optional<Dtype> float_dtype(tensors::TensorType type) {
  switch (type) {
    case tensors::TensorType::kF32:
      return Dtype::kF32;
    case tensors::TensorType::kF16:
      return Dtype::kF16;
    case tensors::TensorType::kBF16:
      return Dtype::kBF16;
    default:
      return std::nullopt;
  }
}

// The heads of a tensor [n_kv_heads, n_rows, head_dim] in a file with `n_rows` rows.
//
// Errors: kCorrupt (another number of dimensions or of rows), kTooLarge.
Result<cache::HeadShape> head_shape_of(std::span<const std::uint64_t> shape, std::int64_t n_rows);

// As float_dtype(), and f16 for numbers of 8 bits: it holds each of them exactly.
constexpr std::optional<Dtype> wide_dtype(tensors::TensorType type) {
  const bool is_f8 = type == tensors::TensorType::kF8E4M3 || type == tensors::TensorType::kF8E5M2;
  return is_f8 ? Dtype::kF16 : float_dtype(type);
}

// The f16 of the same value; NaN becomes NaN.
std::uint16_t f8_e4m3_to_f16(std::uint8_t bits);
constexpr std::uint16_t f8_e5m2_to_f16(std::uint8_t bits) {
  return static_cast<std::uint16_t>(bits << 8);
}

// Fills `out` from byte `offset` of a tensor on.
using ReadTensor = std::function<Result<void>(std::uint64_t offset, std::span<std::byte> out)>;

// The tensor that begins at byte `begin` of a file.
ReadTensor tensor_at(std::shared_ptr<const ByteSource> file, std::uint64_t begin);

// The same for a tensor of this type, read as wide_dtype() of it. Requires: wide_dtype() has a
// value; offsets and sizes are those of whole numbers.
ReadTensor wide_tensor_at(std::shared_ptr<const ByteSource> file, std::uint64_t begin,
                          tensors::TensorType type);

// Rows of a tensor [n_kv_heads, n_tokens, head_dim].
// Requires: the tensor has the number of bytes that this shape needs.
ReadRows rows_of(ReadTensor tensor, cache::HeadShape shape, std::int64_t n_tokens,
                 std::size_t value_bytes);

class WholeTensors {
 public:
  // All K and V of `source` are dense (cache::dequantize()). Both arguments must outlive this.
  // Progress counts bytes of sections.
  WholeTensors(const cache::CacheReader& source, const Progress& progress);

  // Reads [n_kv_heads, n_tokens, head_dim]. Reuses the memory of `out` if it is large enough.
  // Requires: an attention layer; kKeys or kValues.
  // Errors:   those of the source; kInterrupted.
  Result<void> read_tensor(std::size_t layer, cache::TensorKind tensor, AlignedBytes& out);

  // Reads an array of a recurrent state. Errors: as above.
  Result<void> read_array(std::size_t layer, std::size_t array, AlignedBytes& out);

 private:
  const std::vector<std::size_t>& sections_of(std::size_t layer, cache::TensorKind tensor) const;
  Result<void> read_section(std::size_t section, AlignedBytes& raw);

  const cache::CacheReader& source_;
  const Progress& progress_;
  std::map<std::pair<std::size_t, cache::TensorKind>, std::vector<std::size_t>> numbers_;
  AlignedBytes block_;
  std::uint64_t done_ = 0;
  std::uint64_t total_ = 0;
};

// Doubles the size of `values`: every bf16 becomes the f32 of the same value, including the bits of
// NaN.
void widen_bf16(AlignedBytes& values);

// `wide` holds f32 values, and `narrow` has half as many bytes. Values of widen_bf16() are restored
// bit for bit; other values are rounded (base/half.h).
void narrow_to_bf16(std::span<const std::byte> wide, std::span<std::byte> narrow);

}  // namespace tqcache::interop
