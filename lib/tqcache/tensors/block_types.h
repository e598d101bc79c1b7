#pragma once
// tensors/block_types.h: the sizes of GGML's tensor types, and the conversion of its quantized
// blocks to f32.
//
// The layout of each block is in tensors/block_layouts.h.
//
// Source: ggml ggml-common.h (layouts), ggml-quants.c (dequantize_row_*).

#include <cstddef>
#include <cstdint>
#include <span>

#include "tqcache/tensors/tensor.h"

namespace tqcache::tensors {

// A row of values is divided into GGML blocks of `block_values`, each stored in `block_bytes`.
struct GgmlType {
  std::uint32_t id;
  const char* name;
  std::uint64_t block_values;
  std::uint64_t block_bytes;
  TensorType type;
};

// nullptr for an id of unknown size, or one that ggml has removed (4, 5, 31 to 33, 36 to 38).
//
// Source: ggml ggml.h (enum ggml_type) and gguf-py constants.py (GGML_QUANT_SIZES).
const GgmlType* find_ggml_type(std::uint32_t id);

struct BlockType {
  TensorType type;
  std::uint64_t block_values;  // 32 or 256
  std::uint64_t block_bytes;

  // Shapes: `blocks` holds values.size() values at any alignment.
  // Requires: block_values divides values.size().
  // Bytes:   equal to the results of ggml's own code for finite values, on every CPU.
  void (*widen)(const std::byte* blocks, std::span<float> values);
};

// All block types, in the order of layouts::All.
std::span<const BlockType> block_types();

// nullptr for a type that is not stored in such blocks.
const BlockType* find_block_type(TensorType type);

}  // namespace tqcache::tensors
