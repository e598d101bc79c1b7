#pragma once
// tensors/ggml_type.h: how many bytes a tensor of each ggml type takes.

#include <cstdint>

#include "tqcache/tensors/tensor.h"

namespace tqcache::tensors {

// A row of values is cut into blocks of `block_values`, each stored in `block_bytes`.
struct GgmlType {
  std::uint32_t id;
  const char* name;
  std::uint64_t block_values;
  std::uint64_t block_bytes;
  TensorType type;
};

// nullptr for an id whose size is not known, or that ggml has given up (4, 5, 31 to 33, 36 to 38).
//
// Source: ggml ggml.h (enum ggml_type) and gguf-py constants.py (GGML_QUANT_SIZES).
const GgmlType* find_ggml_type(std::uint32_t id);

}  // namespace tqcache::tensors
