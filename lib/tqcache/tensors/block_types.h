#pragma once
// tensors/block_types.h: the quantized types of GGUF whose values can be had as f32.
//
// Values stand in blocks, each with scales of its own. What the bytes of a block mean is in
// tensors/block_forms.h.
//
// Source: ggml ggml-common.h (layouts), ggml-quants.c (dequantize_row_*).

#include <cstddef>
#include <cstdint>
#include <span>

#include "tqcache/tensors/tensor.h"

namespace tqcache::tensors {

struct BlockType {
  TensorType type;
  std::uint64_t block_values;  // 32 or 256
  std::uint64_t block_bytes;

  // Shapes: `blocks` holds values.size() values at any alignment.
  // Requires: block_values divides values.size().
  // Bytes:   as ggml's own code has them, finite values to the bit, on every CPU.
  void (*widen)(const std::byte* blocks, std::span<float> values);
};

// All of them, each at the place that its form has in forms::All.
std::span<const BlockType> block_types();

// nullptr for a type that is not kept in such blocks.
const BlockType* find_block_type(TensorType type);

}  // namespace tqcache::tensors
