#pragma once
// interop/turbomlx/turbomlx_rows.h: readers of head vectors in a TurboMLX file, decoded from arrays
// with checked shapes. Safe for untrusted input.
//
// Spec:   docs/reference/interop.md, "TurboMLX".
// Source: src/turbomlx/core_ref/{quantizers,mixed_precision,packing,qjl}.py; mlx/ops.cpp (affine
//         quantization).

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "tqcache/bytes.h"
#include "tqcache/cache.h"
#include "tqcache/error.h"
#include "tqcache/file.h"
#include "tqcache/interop/foreign_cache.h"
#include "tqcache/interop/turbomlx/turbomlx_artifacts.h"
#include "tqcache/interop/turbomlx/value_tree.h"

namespace tqcache::interop {

using TurboMlxSource = std::shared_ptr<const ByteSource>;

// An array [1, n_kv_heads, n_tokens, ...] with one row per head vector.
struct TurboMlxRows {
  ByteRun bytes;
  std::int64_t n_tokens = 0;
  std::size_t row_bytes = 0;
};

// The rows of n tokens of one kv head, as stored and as f32. Errors: those of the file.
Result<Bytes> turbomlx_row_bytes(const ByteSource& file, const TurboMlxRows& rows, std::size_t head,
                                 std::int64_t first, std::int64_t n);
Result<std::vector<float>> turbomlx_row_floats(const ByteSource& file, const TurboMlxRows& rows,
                                               Dtype dtype, std::size_t head, std::int64_t first,
                                               std::int64_t n);

// One quantizer for some of the channels.
struct TurboMlxPart {
  std::vector<std::uint16_t> channels;  // ascending
  int bits = 0;                         // per code
  TurboMlxRows codes, lengths;
  std::optional<TurboMlxRows> signs, residuals;  // mode "prod"
  std::shared_ptr<const std::vector<float>> codebook;
  std::shared_ptr<const TurboMlxMatrix> rotation;
  std::shared_ptr<const TurboMlxMatrix> sketch;  // present with signs
};

// Keys, decoded to f32: (c[codes] M + gamma sqrt(pi / 2) / dim (signs S)) * length, in f32, summed
// in the order of M's rows. Errors when read: kCorrupt (an invalid length, a result beyond f32).
ReadRows turbomlx_key_rows(TurboMlxSource file, cache::HeadShape shape,
                           std::vector<TurboMlxPart> parts);

// Dense values, unchanged.
ReadRows turbomlx_dense_rows(TurboMlxSource file, cache::HeadShape shape, TurboMlxRows rows);

// Values in MLX groups, decoded to f32: code * scale + bias.
struct TurboMlxGroups {
  int bits = 0;
  std::size_t group_size = 0;
  Dtype dtype = Dtype::kF32;  // dtype of scales and biases
  TurboMlxRows codes, scales, biases;
};
ReadRows turbomlx_affine_rows(TurboMlxSource file, cache::HeadShape shape, TurboMlxGroups groups);

// A whole array, or some of its rows in this order for each kv head.
ReadArray turbomlx_whole_array(TurboMlxSource file, ByteRun bytes);
ReadArray turbomlx_listed_rows(TurboMlxSource file, std::int64_t n_kv_heads, TurboMlxRows rows,
                               std::vector<std::int64_t> order);

// A value that must be an array; nullptr: None, or an array without values, which means None.
// Errors: kCorrupt.
Result<const ArrayValue*> find_array(const Value& value, std::string_view name);

// As find_array(), for an array that must be present.
Result<const ArrayValue*> require_array(const Value& value, std::string_view name);

// Errors: kUnsupported when it is not a dtype of .tqkv files.
Result<Dtype> dense_dtype_of(const ArrayValue& array, std::string_view name);

// [1, n_kv_heads, n_tokens, width]
struct TurboMlxGrid {
  std::int64_t n_kv_heads = 0;
  std::int64_t n_tokens = 0;
  std::int64_t width = 0;
};

// Errors: kCorrupt (other dimensions, a size of 0), kTooLarge, kUnsupported (a batch).
Result<TurboMlxGrid> turbomlx_grid_of(const ArrayValue& array, std::string_view name);

// The rows of an array of this type and shape: [1, n_kv_heads, n_tokens, width], or without the
// last dimension if `width` is nullopt.
// Errors: kCorrupt, kUnsupported (a batch).
Result<TurboMlxRows> rows_of_array(const Value& value, std::string_view name,
                                   tensors::TensorType type, std::int64_t n_kv_heads,
                                   std::int64_t n_tokens, std::optional<std::int64_t> width);

// The rows of a dense array. Errors: as above.
struct TurboMlxDense {
  TurboMlxGrid grid;
  Dtype dtype = Dtype::kF32;
  TurboMlxRows rows;
};
Result<TurboMlxDense> turbomlx_dense_array(const Value& value, std::string_view name);

}  // namespace tqcache::interop
