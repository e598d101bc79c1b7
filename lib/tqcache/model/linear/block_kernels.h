#pragma once
// model/linear/block_kernels.h: dot products with quantized weights in GGML blocks.
//
// A vector x is given as 16-bit integers, with one scale per group of 32. Their rounding error is a
// hundredth of f16's, and their products with the codes of weights are exact in 32 bits.
//
// As in model/linear/kernels.h, the scalar functions define every result, and a sum has 32 lanes.
// Group g uses four of them: lane 4 (g % 8) + l takes values 4 l to 4 l + 3 of the group's first
// half and of its second half. For each set of these values that shares a scale (all eight, or four
// and four), the lane adds
//
//   f32(the sum of (code - offset) * x's code) * (scale * x's scale)
//   f32(the sum of x's codes) * (-minimum * x's scale)    in types that have a minimum
//
// where the sums are exact and every other operation is rounded once. Finally the upper half of the
// lanes is added to the lower half until one is left.

#include <array>
#include <cstddef>
#include <cstdint>

#include "tqcache/model/linear/kernels.h"
#include "tqcache/tensors/block_forms.h"

namespace tqcache::model {

inline constexpr std::size_t kGroup = tensors::forms::kGroup;  // values: 32
inline constexpr std::size_t kGroupLanes = 4;
inline constexpr std::size_t kStepGroups = 4;   // x is stored in steps of 128 values,
inline constexpr std::size_t kRoundGroups = 8;  // and read in rounds of two steps (32 lanes)

// The vector x, from the start of a round.
//
// The codes of a step have four parts: the even and the odd values of the first halves of its
// groups, then those of the second halves. The sums of each lane's codes are negated: over the
// first half, over the second half, and over both.
struct QuantizedView {
  const std::int16_t* codes = nullptr;       // [n_steps, 4 parts, 4 groups, 8]
  const std::int32_t* minus_sums = nullptr;  // [n_steps, 3 sums, 4 groups, 4 lanes]
  const float* scales = nullptr;             // [n_steps, 4 groups]
};

inline constexpr std::size_t kStepParts = 4;
inline constexpr std::size_t kStepSums = 3;
inline constexpr std::size_t kPartCodes = kStepGroups * 8;
inline constexpr std::size_t kStepLanes = kStepGroups * kGroupLanes;

struct BlockKernels {
  // Quantizes groups. Code c means c * scale, and the largest magnitude has code 32767 or -32767;
  // halves round to even. A group below 2^-100 becomes zero; the scale of a group with a non-finite
  // value becomes NaN, and so does every product with it. The unused part of the last round becomes
  // zero.
  // Shapes: x [n_groups, 32]; the others as in QuantizedView, with whole rounds.
  void (*quantize)(const float* x, std::size_t n_groups, std::int16_t* codes,
                   std::int32_t* minus_sums, float* scales);

  // Shapes:   row [n_groups, 32] of the type, at any alignment.
  // Requires: GGML blocks of 256 are complete.
  using Dot = float(const std::byte* row, const QuantizedView& x, std::size_t n_groups);
  std::array<Dot*, tensors::forms::All::kSize> dot;  // in the order of tensors::block_types()
};

// The kernels of an instruction set in the order of the types: Maker::dot<Form>() for every Form.
template <class Maker, class... Form>
constexpr auto make_dots(tensors::forms::List<Form...>) {
  return std::array<BlockKernels::Dot*, sizeof...(Form)>{Maker::template dot<Form>()...};
}

extern const BlockKernels kScalarBlocks;

// The kernels of the other instruction sets that this build has; kernels_of() selects those that
// the CPU supports.
extern const BlockKernels kAvx2Blocks, kAvx512Blocks, kNeonBlocks;
extern const Kernels kAvx2Kernels, kAvx512Kernels, kNeonKernels;

inline const BlockKernels& best_blocks() { return *best_kernels().blocks; }

}  // namespace tqcache::model
