#pragma once
// interop/mlx/mlx_lm_rows.h: readers of head vectors from the tensors of an mlx-lm prompt cache:
// dense rows, rows of a ring buffer (a sliding window, oldest token first), and MLX's affine
// groups.
//
// An affine value is bias + scale * code. The codes of a head vector are one bit stream in 32-bit
// words, least significant bit first (codec/block_layout.h).
//
// Source: ml-explore/mlx mlx/ops.cpp, mlx/backend/cpu/quantized.cpp; ml-explore/mlx-lm
//         mlx_lm/models/cache.py, RotatingKVCache and BatchRotatingKVCache.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "tqcache/bytes.h"
#include "tqcache/description.h"
#include "tqcache/error.h"
#include "tqcache/file.h"
#include "tqcache/interop/foreign_cache.h"

namespace tqcache::interop {

// Consecutive rows.
struct RowRun {
  std::int64_t first = 0;
  std::int64_t count = 0;
  bool operator==(const RowRun&) const = default;
};

using RowRuns = std::vector<RowRun>;  // without empty runs

std::int64_t count_rows(const RowRuns& runs);

// A RotatingKVCache. Once all rows are used, the first `keep` stay and the others are overwritten
// in a ring.
struct MlxRing {
  std::int64_t keep = 0;
  std::int64_t max_size = 0;  // tokens that a query can see
  std::int64_t offset = 0;    // tokens seen
  std::int64_t next = 0;      // "_idx": next row to write; past the end it counts as n_rows
};

// Rows of the min(max_size, offset) tokens of the window. A buffer of `n_rows` may hold further
// rows that no query sees: prefill keeps whole prompts for a while.
//
// Requires: 0 <= keep < max_size; the other numbers are not negative.
// Errors:   kCorrupt (an impossible ring state, too few rows).
Result<RowRuns> ring_rows(const MlxRing& ring, std::int64_t n_rows);

// One row of a BatchRotatingKVCache, which does not pin first tokens.
struct MlxBatchRing {
  std::int64_t max_size = 0;
  std::int64_t next = 0;          // "_idx"
  bool rotated = false;           // the rows form a ring that begins at `next`
  std::int64_t left_padding = 0;  // rows before the first token; negative once it is overwritten
  std::int64_t offset = 0;        // tokens seen
};

// As ring_rows().
Result<RowRuns> batch_ring_rows(const MlxBatchRing& ring, std::int64_t n_rows);

struct AffineGroups {
  int bits = 8;
  std::int64_t group_size = 64;  // components that share a scale and a bias
};

// Bytes of one head vector. Requires: `groups` fits `head_dim`.
constexpr std::size_t affine_code_bytes(AffineGroups groups, std::int64_t head_dim) {
  return static_cast<std::size_t>(head_dim * groups.bits / 8);
}
constexpr std::size_t affine_groups(AffineGroups groups, std::int64_t head_dim) {
  return static_cast<std::size_t>(head_dim / groups.group_size);
}

// Errors: kUnsupported (bits other than 2, 3, 4, 5, 6, 8; groups other than 32, 64, 128), kCorrupt
//         (groups that do not divide head_dim).
Result<void> check_affine(std::int64_t bits, std::int64_t group_size, std::int64_t head_dim);

// x = scale * code + bias, in f32, rounded after each operation.
//
// Shapes: codes [affine_code_bytes]; scales, biases [affine_groups]; x [head_dim].
void affine_decode(AffineGroups groups, std::span<const std::byte> codes,
                   std::span<const float> scales, std::span<const float> biases,
                   std::span<float> x);

// The same result as mlx.core.quantize() on a CPU, bit for bit: computed in f32, with scales and
// biases finally rounded to `dtype`. (NaN gets code 0.)
//
// Shapes: x [head_dim], values of `dtype`; scales, biases: affine_groups of `dtype`.
void affine_encode(AffineGroups groups, Dtype dtype, std::span<const float> x,
                   std::span<std::byte> codes, std::span<std::byte> scales,
                   std::span<std::byte> biases);

using SharedFile = std::shared_ptr<const ByteSource>;

// The location of the rows of a tensor [n_kv_heads, n_rows, width].
struct MlxRows {
  std::uint64_t offset = 0;  // in the file
  std::int64_t n_rows = 0;   // of each kv head
  std::int64_t first = 0;    // row of token 0
  std::size_t row_bytes = 0;
};

// Head vectors, unchanged from the file.
ReadRows read_dense_rows(SharedFile file, cache::HeadShape shape, MlxRows rows);

// K or V of a QuantizedKVCache.
struct MlxAffineTensor {
  AffineGroups groups;
  Dtype dtype = Dtype::kF16;  // dtype of scales and biases
  MlxRows codes, scales, biases;
};
// Head vectors as f32.
ReadRows read_affine_rows(SharedFile file, cache::HeadShape shape, const MlxAffineTensor& tensor);

// Some rows of each kv head, run after run.
ReadArray read_row_runs(SharedFile file, std::int64_t n_kv_heads, MlxRows rows, RowRuns runs);

// Unchanged bytes of the file.
ReadArray read_bytes_at(SharedFile file, std::uint64_t offset);

}  // namespace tqcache::interop
