#pragma once
// model/linear/product_kernels.h: the inner loops of the decoder: dot products with plain weights,
// and softmax; model/linear/block_kernels.h has those with quantized weights.
//
// The scalar functions define every result. A faster set repeats their sums in the same order, so
// all sets give the same bits.
//
// A sum has 32 lanes: lane l adds the terms l, l + 32, l + 64, ... in turn; then the upper half of
// the lanes is added to the lower half until one is left.

#include <cstddef>

#include "tqcache/codec/kernels/kernels.h"

namespace tqcache::model {

inline constexpr std::size_t kLanes = 32;

struct AllBlockKernels;
struct ChunkKernels;

struct Kernels {
  codec::Isa isa;

  // The sum of w[i] * x[i]; each weight is first widened to f32.
  // Shapes:   row holds n weights at any alignment; x [n].
  using Dot = float(const std::byte* row, const float* x, std::size_t n);
  Dot* dot_f32;
  Dot* dot_f16;
  Dot* dot_bf16;

  // y += factor * row; each value is first widened to f32.
  // Shapes: row holds n values at any alignment; y [n].
  using AddScaled = void(float factor, const std::byte* row, std::size_t n, float* y);
  AddScaled* add_scaled_f32;
  AddScaled* add_scaled_f16;
  AddScaled* add_scaled_bf16;

  // The largest value; NaN is ignored. Shapes: row [n].
  float (*max_value)(const float* row, std::size_t n);

  // Replaces every row[i] by exp(row[i] - shift), and returns the sum. Shapes: row [n].
  // Requires: no value is above `shift`.
  float (*exp_sum)(float shift, std::size_t n, float* row);

  // gate[i] = silu(gate[i]) * up[i], silu(x) = x / (1 + exp(-x)). Shapes: gate, up [n].
  void (*silu_multiply)(const float* up, std::size_t n, float* gate);

  const AllBlockKernels* blocks;  // dot products with quantized weights: block_kernels.h
  const ChunkKernels* chunks;     // products of many vectors with them: chunk_kernels.h
};

// The kernels of an instruction set; nullptr if this build or this CPU does not support it.
const Kernels* kernels_of(codec::Isa isa);

const Kernels& scalar_kernels();

// The kernels for the instruction set of codec::best_kernels(), so TQCACHE_ISA selects both.
const Kernels& best_kernels();

}  // namespace tqcache::model
