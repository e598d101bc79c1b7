#pragma once
// interop/turbomlx/turbomlx_arrays.h: the arrays of a layer's state, held against the shapes that they must
// have. Safe for untrusted input.

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "tqcache/base/dtype.h"
#include "tqcache/base/result.h"
#include "tqcache/cache/side.h"
#include "tqcache/interop/turbomlx/turbomlx_rows.h"
#include "tqcache/interop/value_tree.h"

namespace tqcache::interop {

// A value that must be an array; nullptr: None, or an array without values, which stands for it.
// Errors: kCorrupt.
Result<const ArrayValue*> find_array(const Value& value, std::string_view name);

// The same of one that must be there.
Result<const ArrayValue*> require_array(const Value& value, std::string_view name);

// Errors: kUnsupported when it is none of ours.
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
// last dimension where `width` is nothing.
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
