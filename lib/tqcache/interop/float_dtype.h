#pragma once
// interop/float_dtype.h: which types of foreign tensors keys, values and states may have.

#include <optional>

#include "tqcache/base/dtype.h"
#include "tqcache/tensors/tensor.h"

namespace tqcache::interop {

// Nothing: not f32, f16 or bf16.
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

}  // namespace tqcache::interop
