#include "tqcache/interop/turbomlx/turbomlx_arrays.h"

#include <string>
#include <utility>

#include "tqcache/base/integers.h"
#include "tqcache/base/result.h"
#include "tqcache/cache/cache.h"
#include "tqcache/interop/float_dtype.h"

namespace tqcache::interop {
namespace {

using tensors::TensorType;

std::string named(std::string_view name, const ArrayValue& array) {
  return std::string(name) + " " + describe(array);
}

Result<void> check_batch(const ArrayValue& array, std::string_view name) {
  if (array.shape.empty() || array.shape[0] == 1) return {};
  return Error{ErrorCode::kUnsupported,
               named(name, array) + ": a batch of " + std::to_string(array.shape[0])};
}

}  // namespace

Result<const ArrayValue*> find_array(const Value& value, std::string_view name) {
  const ArrayValue* array = nullptr;
  if (value.kind == Value::Kind::kNone) return array;
  if (value.kind != Value::Kind::kArray) return corrupt(std::string(name) + ": not an array");
  if (value.array->bytes.size > 0) array = value.array.get();
  return array;
}

Result<const ArrayValue*> require_array(const Value& value, std::string_view name) {
  TQC_TRY_ASSIGN(const ArrayValue* array, find_array(value, name));
  if (array == nullptr) return corrupt(std::string(name) + ": missing");
  return array;
}

Result<Dtype> dense_dtype_of(const ArrayValue& array, std::string_view name) {
  if (const auto dtype = float_dtype(array.type)) return *dtype;
  return Error{ErrorCode::kUnsupported, named(name, array) + ": not f32, f16 or bf16"};
}

Result<TurboMlxGrid> turbomlx_grid_of(const ArrayValue& array, std::string_view name) {
  TQC_TRY(check_batch(array, name));
  if (array.shape.size() != 4) return corrupt(named(name, array) + ": not four dimensions");
  for (const std::uint64_t n : array.shape) {
    if (n == 0) return corrupt(named(name, array) + ": a size of 0");
    if (n > static_cast<std::uint64_t>(cache::kMaxTokens)) {
      return Error{ErrorCode::kTooLarge, named(name, array)};
    }
  }
  return TurboMlxGrid{static_cast<std::int64_t>(array.shape[1]),
                      static_cast<std::int64_t>(array.shape[2]),
                      static_cast<std::int64_t>(array.shape[3])};
}

Result<TurboMlxRows> rows_of_array(const Value& value, std::string_view name, TensorType type,
                                   std::int64_t n_kv_heads, std::int64_t n_tokens,
                                   std::optional<std::int64_t> width) {
  TQC_TRY_ASSIGN(const ArrayValue* array, require_array(value, name));
  TQC_TRY(check_batch(*array, name));
  std::vector<std::uint64_t> expected = {1, static_cast<std::uint64_t>(n_kv_heads),
                                         static_cast<std::uint64_t>(n_tokens)};
  if (width) expected.push_back(static_cast<std::uint64_t>(*width));
  if (array->type != type || array->shape != expected) {
    return corrupt(named(name, *array) + ": of another type or shape than its layer says");
  }
  const auto row_values = static_cast<std::uint64_t>(width.value_or(1));
  return TurboMlxRows{array->bytes, n_tokens,
                      static_cast<std::size_t>(row_values * type_size(type))};
}

Result<TurboMlxDense> turbomlx_dense_array(const Value& value, std::string_view name) {
  TQC_TRY_ASSIGN(const ArrayValue* array, require_array(value, name));
  TurboMlxDense dense;
  TQC_TRY_ASSIGN(dense.dtype, dense_dtype_of(*array, name));
  TQC_TRY_ASSIGN(dense.grid, turbomlx_grid_of(*array, name));
  const auto row_bytes = static_cast<std::size_t>(dense.grid.width) * dtype_size(dense.dtype);
  dense.rows = {array->bytes, dense.grid.n_tokens, row_bytes};
  return dense;
}

}  // namespace tqcache::interop
