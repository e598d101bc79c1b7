#pragma once
// interop/mlx/mlx_lm_affine.h: affine groups of MLX: bias + scale * code, codes in words of 32 bits.
//
// Codes of one head vector are one stream of bits, least significant first (codec/block_layout.h).
//
// Source: ml-explore/mlx mlx/ops.cpp and mlx/backend/cpu/quantized.cpp.

#include <cstddef>
#include <cstdint>
#include <span>

#include "tqcache/base/dtype.h"
#include "tqcache/base/result.h"

namespace tqcache::interop {

struct AffineForm {
  int bits = 8;
  std::int64_t group_size = 64;  // components that share a scale and a bias
};

// What one head vector takes. Requires: the form fits `head_dim`.
constexpr std::size_t affine_code_bytes(AffineForm form, std::int64_t head_dim) {
  return static_cast<std::size_t>(head_dim * form.bits / 8);
}
constexpr std::size_t affine_groups(AffineForm form, std::int64_t head_dim) {
  return static_cast<std::size_t>(head_dim / form.group_size);
}

// Errors: kUnsupported (bits other than 2, 3, 4, 5, 6, 8; groups other than 32, 64, 128), kCorrupt
//         (groups that do not divide head_dim).
Result<void> check_affine(std::int64_t bits, std::int64_t group_size, std::int64_t head_dim);

// x = scale * code + bias, in f32, rounded after each step.
//
// Shapes: codes [affine_code_bytes]; scales, biases [affine_groups]; x [head_dim].
void affine_decode(AffineForm form, std::span<const std::byte> codes, std::span<const float> scales,
                   std::span<const float> biases, std::span<float> x);

// As mlx.core.quantize() on a CPU, to the bit: all in f32, scales and biases rounded to `dtype` in
// the end. (What is no number gets a code all the same: 0.)
//
// Shapes: x [head_dim], values of `dtype`; scales, biases: affine_groups of `dtype`.
void affine_encode(AffineForm form, Dtype dtype, std::span<const float> x,
                   std::span<std::byte> codes, std::span<std::byte> scales,
                   std::span<std::byte> biases);

}  // namespace tqcache::interop
