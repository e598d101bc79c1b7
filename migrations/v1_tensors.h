#pragma once
// migrations/v1_tensors.h: the tensors of one layer by name, with checks of their shapes.

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "migrations/v1_file.h"
#include "tqcache/bytes.h"
#include "tqcache/description.h"
#include "tqcache/error.h"

namespace tqcache::migrations {

// The dimensions of a tensor [1, n_kv_heads, n_tokens, width].
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

// Errors: kCorrupt if the tensor does not have four dimensions (or three, which mean a width of 1);
//         kUnsupported for a batch other than 1; kTooLarge beyond the limits of tqcache/cache.h.
Result<Grid> grid_of(const V1Tensor& tensor);

// The number format of dense values. Errors: kCorrupt for integers and booleans.
Result<Dtype> dense_dtype(const V1Tensor& tensor);

class NamedTensors {
 public:
  explicit NamedTensors(std::span<const V1Tensor> tensors) : tensors_(tensors) {}

  // The tensor of any shape. Errors: kCorrupt, naming the tensor, if it is missing.
  Result<const V1Tensor*> named(std::string_view name) const;

  // Null if the tensor is missing or empty: version 1 does not distinguish the two.
  const V1Tensor* find(std::string_view name) const;

  // Errors: kCorrupt, naming the tensor, if it is missing or empty.
  Result<const V1Tensor*> require(std::string_view name) const;

  // Errors: kCorrupt, naming the first of these tensors that exists.
  Result<void> require_absent(std::initializer_list<std::string_view> names) const;

  // Errors: kCorrupt, naming the first tensor that is not one of these.
  Result<void> require_only(std::initializer_list<std::string_view> names) const;

  // A tensor that must exist, with exactly this dtype and grid. Errors: kCorrupt, naming it.
  Result<ByteView> bytes(std::string_view name, V1Dtype dtype, const Grid& grid) const;

  // The same for numbers of type f32, f16 or bf16, widened to f32.
  Result<std::vector<float>> floats(std::string_view name, const Grid& grid) const;

 private:
  Result<const V1Tensor*> require(std::string_view name, const Grid& grid) const;

  std::span<const V1Tensor> tensors_;
};

}  // namespace tqcache::migrations
