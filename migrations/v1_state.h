#pragma once
// migrations/v1_state.h: the tensors of one layer by name, held against the shapes they should
// have.

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "migrations/v1_file.h"
#include "tqcache/base/bytes.h"
#include "tqcache/base/dtype.h"
#include "tqcache/base/result.h"
#include "tqcache/cache/token_block.h"

namespace tqcache::migrations {

// What a tensor [1, n_kv_heads, n_tokens, width] holds for every head vector.
struct Grid {
  std::int64_t n_kv_heads = 0;
  std::int64_t n_tokens = 0;
  std::int64_t width = 0;
  bool operator==(const Grid&) const = default;

  std::size_t rows() const { return static_cast<std::size_t>(n_kv_heads * n_tokens); }
  std::size_t row(std::int64_t head, std::int64_t token) const {
    return static_cast<std::size_t>(head * n_tokens + token);
  }
};

// "keys 1 x 2 x 300 x 64" for messages.
std::string describe(const V1Tensor& tensor);

// Errors: kCorrupt when the tensor has not four dimensions (or three, which stand for a width of
// 1);
//         kUnsupported for a batch of other than 1; kTooLarge beyond cache/cache.h.
Result<Grid> grid_of(const V1Tensor& tensor);

// The number format of dense values. Errors: kCorrupt for bytes, words and booleans.
Result<Dtype> dense_dtype(const V1Tensor& tensor);

class State {
 public:
  explicit State(std::span<const V1Tensor> tensors) : tensors_(tensors) {}

  // Whatever its shape. Errors: kCorrupt, naming the tensor, when there is none of that name.
  Result<const V1Tensor*> named(std::string_view name) const;

  // Null when the tensor is not there or has no values: version 1 has no other word for "none".
  const V1Tensor* find(std::string_view name) const;

  // Errors: kCorrupt, naming the tensor, when it is absent.
  Result<const V1Tensor*> require(std::string_view name) const;

  // Whether none of the tensors is there. Errors: kCorrupt, naming the first that is.
  Result<void> require_absent(std::initializer_list<std::string_view> names) const;

  // Whether there is no tensor but these. Errors: kCorrupt, naming it.
  Result<void> require_only(std::initializer_list<std::string_view> names) const;

  // A tensor that has to be there, of exactly this dtype and grid. Errors: kCorrupt, naming it.
  Result<ByteView> bytes(std::string_view name, V1Dtype dtype, const Grid& grid) const;

  // The same for numbers, which may be f32, f16 or bf16, widened.
  Result<std::vector<float>> floats(std::string_view name, const Grid& grid) const;

 private:
  Result<const V1Tensor*> require(std::string_view name, const Grid& grid) const;

  std::span<const V1Tensor> tensors_;
};

}  // namespace tqcache::migrations
