#pragma once
// interop/mlx/mlx_lm_rows.h: how head vectors are read out of the tensors of a prompt cache of mlx-lm.

#include <cstdint>
#include <memory>

#include "tqcache/base/file.h"
#include "tqcache/cache/token_block.h"
#include "tqcache/interop/foreign_cache.h"
#include "tqcache/interop/mlx/mlx_lm_affine.h"
#include "tqcache/interop/mlx/mlx_lm_ring.h"

namespace tqcache::interop {

using SharedFile = std::shared_ptr<const ByteSource>;

// Where rows of a tensor [n_kv_heads, n_rows, width] stand.
struct MlxRows {
  std::uint64_t offset = 0;  // in the file
  std::int64_t n_rows = 0;   // of each kv head
  std::int64_t first = 0;    // row of token 0
  std::size_t row_bytes = 0;
};

// Head vectors as they stand in the file.
ReadRows read_dense_rows(SharedFile file, cache::HeadShape shape, MlxRows rows);

// A side of a QuantizedKVCache.
struct MlxAffineSide {
  AffineForm form;
  Dtype dtype = Dtype::kF16;  // of scales and biases
  MlxRows codes, scales, biases;
};
// Head vectors as f32.
ReadRows read_affine_rows(SharedFile file, cache::HeadShape shape, const MlxAffineSide& side);

// Some rows of each kv head, one run after another.
ReadArray read_row_runs(SharedFile file, std::int64_t n_kv_heads, MlxRows rows, RowRuns runs);

// Bytes that are taken as they are.
ReadArray read_bytes_at(SharedFile file, std::uint64_t offset);

}  // namespace tqcache::interop
