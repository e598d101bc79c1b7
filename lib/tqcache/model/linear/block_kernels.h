#pragma once
// model/linear/block_kernels.h: dot products with quantized weights in GGML blocks.
//
// A vector x is given as integers of 16 bits, or of 8 bits on request, with one scale per group of
// 32. The rounding error of 16 bits is a hundredth of f16's. The products of both with the codes of
// weights are exact in 32 bits.
//
// As in model/linear/product_kernels.h, the scalar functions define every result, and a sum has 32
// lanes. Group g uses four of them: lane 4 (g % 8) + l takes values 4 l to 4 l + 3 of the group's
// first half and of its second half. For each set of these values that shares a scale (all eight,
// or four and four), the lane adds
//
//   f32(the sum of (code - offset) * x's code) * (scale * x's scale)
//   f32(the sum of x's codes) * (-minimum * x's scale)    in types that have a minimum
//
// where the sums are exact and every other operation is rounded once. Finally the upper half of the
// lanes is added to the lower half until one is left.

#include <array>
#include <cstddef>
#include <cstdint>

#include "tqcache/model/linear/product_kernels.h"
#include "tqcache/tensors/block_layouts.h"

namespace tqcache::model {

inline constexpr std::size_t kGroup = tensors::layouts::kGroup;  // values: 32
inline constexpr std::size_t kGroupLanes = 4;
inline constexpr std::size_t kStepGroups = 4;   // x is stored in steps of 128 values,
inline constexpr std::size_t kRoundGroups = 8;  // and read in rounds of two steps (32 lanes)

// The codes of a step have parts of 64 bytes. 16 bits: the even and the odd values of the first
// halves of its groups, then those of the second halves. 8 bits: the first halves, then the second
// halves.
template <class Code>
inline constexpr std::size_t kStepParts = 2 * sizeof(Code);
template <class Code>
inline constexpr std::size_t kGroupCodes = 16 / sizeof(Code);  // in one part
template <class Code>
inline constexpr std::size_t kPartCodes = kStepGroups* kGroupCodes<Code>;

inline constexpr std::size_t kStepSums = 3;
inline constexpr std::size_t kStepLanes = kStepGroups * kGroupLanes;

// The vector x, from the start of a round. Code: std::int16_t or std::int8_t.
//
// The sums of each lane's codes are negated: over the first half, over the second half, and over
// both.
template <class Code>
struct QuantizedView {
  const Code* codes = nullptr;               // [n_steps, parts, 4 groups, 8 or 16]
  const std::int32_t* minus_sums = nullptr;  // [n_steps, 3 sums, 4 groups, 4 lanes]
  const float* scales = nullptr;             // [n_steps, 4 groups]
};

template <class Code>
struct BlockKernels {
  // Quantizes groups. Code c means c * scale, and the largest magnitude has the largest code of the
  // type or its negative; halves round to even. A group below 2^-100 becomes zero; the scale of a
  // group with a non-finite value becomes NaN, and so does every product with it. The unused part
  // of the last round becomes zero.
  // Shapes: x [n_groups, 32]; the others as in QuantizedView, with whole rounds.
  void (*quantize)(const float* x, std::size_t n_groups, Code* codes, std::int32_t* minus_sums,
                   float* scales);

  // The products of x with consecutive rows of a matrix.
  // Shapes:   rows [n_rows, n_groups, 32] of the type, at any alignment; y [n_rows].
  // Requires: GGML blocks of 256 are complete.
  using Multiply = void(const std::byte* rows, std::size_t n_rows, const QuantizedView<Code>& x,
                        std::size_t n_groups, float* y);
  std::array<Multiply*, tensors::layouts::All::kSize> multiply;  // as tensors::block_types()
};

// The kernels of an instruction set in the order of the types: Maker::multiply<Layout, Code>() for
// every Layout.
template <class Maker, class Code, class... Layout>
constexpr auto make_products(tensors::layouts::List<Layout...>) {
  return std::array<typename BlockKernels<Code>::Multiply*, sizeof...(Layout)>{
      Maker::template multiply<Layout, Code>()...};
}

template <class Layout>
constexpr std::size_t bytes_of_groups(std::size_t n_groups) {
  return n_groups * kGroup / Layout::kValues * Layout::kBytes;
}

// The kernels of both types of codes.
struct AllBlockKernels {
  BlockKernels<std::int16_t> words;
  BlockKernels<std::int8_t> bytes;

  template <class Code>
  const BlockKernels<Code>& of() const {
    if constexpr (sizeof(Code) == 2) {
      return words;
    } else {
      return bytes;
    }
  }
};

template <class Maker>
constexpr AllBlockKernels make_all_kernels() {
  constexpr tensors::layouts::All kLayouts{};
  return {{Maker::template quantize<std::int16_t>(), make_products<Maker, std::int16_t>(kLayouts)},
          {Maker::template quantize<std::int8_t>(), make_products<Maker, std::int8_t>(kLayouts)}};
}

extern const AllBlockKernels kScalarBlocks;

// The kernels of the other instruction sets that this build has; kernels_of() selects those that
// the CPU supports.
extern const AllBlockKernels kAvx2Blocks, kAvx512Blocks, kNeonBlocks;
extern const Kernels kAvx512Kernels;
const Kernels& avx2_kernels();  // those for this CPU: with or without AVX-VNNI
const Kernels& neon_kernels();  // likewise: with or without products of four bytes

inline const AllBlockKernels& best_blocks() { return *best_kernels().blocks; }

}  // namespace tqcache::model
