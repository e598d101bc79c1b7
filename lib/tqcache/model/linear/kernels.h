#pragma once
// model/linear/kernels.h: the inner loops of the decoder: dot products with plain weights, and
// softmax; model/block_kernels.h has those with quantized ones.
//
// The scalar functions define every result. A faster set repeats their sums in the same order, so
// that all sets give the same bits, and a cache does not depend on the CPU that filled it more
// than the BLAS makes it.
//
// A sum has 32 lanes: lane l adds the terms l, l + 32, l + 64, ... in turn; then the upper half
// of the lanes is added to the lower half until one is left.

#include <cstddef>

#include "tqcache/codec/kernels/kernels.h"

namespace tqcache::model {

inline constexpr std::size_t kLanes = 32;

struct BlockKernels;

struct Kernels {
  codec::Isa isa;

  // The sum of w[i] * x[i], each weight widened to f32 first.
  // Shapes:   row holds n weights at any alignment; x [n].
  using Dot = float(const std::byte* row, const float* x, std::size_t n);
  Dot* dot_f32;
  Dot* dot_f16;
  Dot* dot_bf16;

  // y += factor * row, each value widened to f32 first.
  // Shapes: row holds n values at any alignment; y [n].
  using AddScaled = void(float factor, const std::byte* row, std::size_t n, float* y);
  AddScaled* add_scaled_f32;
  AddScaled* add_scaled_f16;
  AddScaled* add_scaled_bf16;

  // The largest value; NaN does not count. Shapes: row [n].
  float (*max_value)(const float* row, std::size_t n);

  // Puts exp(row[i] - shift) in the place of every row[i], and gives the sum. Shapes: row [n].
  // Requires: no value is above `shift`.
  float (*exp_sum)(float shift, std::size_t n, float* row);

  // gate[i] = silu(gate[i]) * up[i], silu(x) = x / (1 + exp(-x)). Shapes: gate, up [n].
  void (*silu_multiply)(const float* up, std::size_t n, float* gate);

  const BlockKernels* blocks;  // dot products with quantized weights: block_kernels.h
};

// The kernels of an instruction set; null where this build or this CPU does not have it.
const Kernels* kernels_of(codec::Isa isa);

const Kernels& scalar_kernels();

// Those of the instruction set of codec::best_kernels(), so that TQCACHE_ISA decides on both.
const Kernels& best_kernels();

}  // namespace tqcache::model
