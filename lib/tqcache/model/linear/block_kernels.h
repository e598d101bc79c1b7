#pragma once
// model/linear/block_kernels.h: dot products with quantized weights, GGUF's blocks.
//
// A vector x comes as whole numbers of 16 bits, with one scale for every group of 32: a hundredth
// of what f16 would round off, and their products with the codes of weights are exact in 32 bits.
//
// As in model/kernels.h, the scalar functions define every result, and a sum has 32 lanes. Group g
// has four of them: lane 4 (g % 8) + l has values 4 l to 4 l + 3 of the group's first half, and
// those of the second half. For its values that share a scale, eight or twice four, it adds
//
//   f32(the sum of (code - offset) * x's code) * (scale * x's scale)
//   f32(the sum of x's codes) * (-minimum * x's scale)    in types that have a minimum
//
// where the sums are exact and every other operation is rounded once. In the end the upper half of
// the lanes is added to the lower half until one is left.

#include <array>
#include <cstddef>
#include <cstdint>

#include "tqcache/model/linear/kernels.h"
#include "tqcache/tensors/block_forms.h"

namespace tqcache::model {

inline constexpr std::size_t kGroup = tensors::forms::kGroup;  // values: 32
inline constexpr std::size_t kGroupLanes = 4;
inline constexpr std::size_t kStepGroups = 4;   // x is kept in steps of 128 values,
inline constexpr std::size_t kRoundGroups = 8;  // and read in rounds of two, one of each lane

// The vector x, from a round on.
//
// The parts of a step's codes: of the first halves of its groups the even and the odd values, and
// of the second halves. Sums are those of a lane's codes in the first half, in the second, and in
// both, each with the other sign.
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
  // Quantizes groups. Code c stands for c * scale, and the largest magnitude has code 32767 or
  // -32767; halves go to the even number. A group below 2^-100 becomes zero; the scale of one that
  // is not all finite becomes NaN, and so does every product with it. What is left of the last
  // round becomes zero.
  // Shapes: x [n_groups, 32]; the others as in QuantizedView, with whole rounds.
  void (*quantize)(const float* x, std::size_t n_groups, std::int16_t* codes,
                   std::int32_t* minus_sums, float* scales);

  // Shapes:   row [n_groups, 32] of the type, at any alignment.
  // Requires: blocks of 256 are whole.
  using Dot = float(const std::byte* row, const QuantizedView& x, std::size_t n_groups);
  std::array<Dot*, tensors::forms::All::kSize> dot;  // in the order of tensors::block_types()
};

// The kernels of a set in the order of the types: Maker::dot<Form>() of every form.
template <class Maker, class... Form>
constexpr auto make_dots(tensors::forms::List<Form...>) {
  return std::array<BlockKernels::Dot*, sizeof...(Form)>{Maker::template dot<Form>()...};
}

extern const BlockKernels kScalarBlocks;

// Those of the other instruction sets, where this build has them; kernels_of() says which ones the
// CPU has.
extern const BlockKernels kAvx2Blocks, kAvx512Blocks, kNeonBlocks;
extern const Kernels kAvx2Kernels, kAvx512Kernels, kNeonKernels;

inline const BlockKernels& best_blocks() { return *best_kernels().blocks; }

}  // namespace tqcache::model
