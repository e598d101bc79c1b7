#pragma once
// interop/llama/llama_row_maker.h: rows of a llama.cpp KV cache, one a token, from a dense token block.

#include <cstdint>
#include <span>
#include <vector>

#include "tqcache/base/bytes.h"
#include "tqcache/base/dtype.h"
#include "tqcache/cache/token_block.h"
#include "tqcache/interop/llama/llama_rows.h"

namespace tqcache::interop {

struct LlamaRowPlan {
  cache::HeadShape shape;
  Dtype dtype = Dtype::kF16;  // of the token blocks
  const LlamaRowType* type = nullptr;
  std::int64_t n_rot = 0;     // components to put into pairs side by side; 0: none
  std::int64_t rotation = 0;  // runs to apply the Hadamard transform to; 0: none
};

class LlamaRowMaker {
 public:
  // Requires: the type's blocks divide the row.
  explicit LlamaRowMaker(const LlamaRowPlan& side);

  std::uint64_t row_size() const { return row_size_; }  // bytes

  // `block` is [n_kv_heads, n, head_dim]; `rows` gets n rows: the heads of a token, one after
  // another. Values of the type that they have already keep every bit.
  void make(ByteView block, std::int64_t n, std::span<std::byte> rows);

 private:
  void copy_row(ByteView block, std::size_t n, std::size_t token, std::span<std::byte> row) const;
  void convert_row(ByteView block, std::size_t n, std::size_t token, std::span<std::byte> row);

  LlamaRowPlan side_;
  std::size_t n_heads_;
  std::size_t head_bytes_;  // of one head vector in a block
  std::uint64_t row_size_;
  std::vector<float> values_;  // [n_kv_heads, head_dim]
};

}  // namespace tqcache::interop
