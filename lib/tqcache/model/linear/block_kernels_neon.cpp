// Products with quantized weights in NEON: the four lanes of a group are one vector. The scalar
// code of Layout unpacks the codes; compilers vectorize it.

#include "tqcache/model/linear/block_kernels.h"
#include "tqcache/model/linear/block_loops.h"
#include "tqcache/model/linear/lanes_neon.h"

#ifdef TQCACHE_NEON

namespace tqcache::model {
namespace {

// The products of x with the codes of one half of a group, four per lane.
template <class Layout>
int32x4_t multiply_half(const std::uint8_t* code, const QuantizedView<std::int16_t>& x,
                        std::size_t group, std::size_t half) {
  const uint16x8_t both = vreinterpretq_u16_u8(vld1q_u8(code + half * kGroup / 2));
  const int16x8_t even = vreinterpretq_s16_u16(vandq_u16(both, vdupq_n_u16(255)));
  const int16x8_t odd = vreinterpretq_s16_u16(vshrq_n_u16(both, 8));
  const int16x8_t even_x = vld1q_s16(x.codes + loops::code_place<std::int16_t>(group, 2 * half));
  const int16x8_t odd_x = vld1q_s16(x.codes + loops::code_place<std::int16_t>(group, 2 * half + 1));
  int32x4_t low = vmull_s16(vget_low_s16(even), vget_low_s16(even_x));
  int32x4_t high = vmull_high_s16(even, even_x);
  low = vmlal_s16(low, vget_low_s16(odd), vget_low_s16(odd_x));
  high = vmlal_high_s16(high, odd, odd_x);
  return vpaddq_s32(low, high);
}

// Codes of eight bits, which are multiplied with bytes of x less their offset, as signed bytes.
template <class Layout>
inline constexpr bool kInBytes = Layout::kOffset == 128;

template <class Layout>
int32x4_t multiply_half(const std::uint8_t* code, const QuantizedView<std::int8_t>& x,
                        std::size_t group, std::size_t half) {
  uint8x16_t codes = vld1q_u8(code + half * kGroup / 2);
  if constexpr (kInBytes<Layout>) codes = veorq_u8(codes, vdupq_n_u8(128));
  const int8x16_t of_w = vreinterpretq_s8_u8(codes);
  const int8x16_t of_x = vld1q_s8(x.codes + loops::code_place<std::int8_t>(group, half));
  const int16x8_t low = vmull_s8(vget_low_s8(of_w), vget_low_s8(of_x));
  const int16x8_t high = vmull_high_s8(of_w, of_x);
  return vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high));
}

// Adds the products of a group's lanes that share a factor, and the minima of the same values.
template <class Layout, class Code>
float32x4_t add_run(float32x4_t lanes, int32x4_t sums, int32x4_t minus_sums, float scale,
                    float minimum) {
  if constexpr (!kInBytes<Layout> || sizeof(Code) == 2) {
    sums = vmlaq_n_s32(sums, minus_sums, Layout::kOffset);
  }
  lanes = vaddq_f32(lanes, vmulq_n_f32(vcvtq_f32_s32(sums), scale));
  if constexpr (!Layout::kHasMinimum) return lanes;
  return vaddq_f32(lanes, vmulq_n_f32(vcvtq_f32_s32(minus_sums), minimum));
}

// Adds the product of group `group` of x and group `in_block` of a GGML block.
template <class Layout, class Code>
float32x4_t add_group(float32x4_t lanes, const std::byte* block, std::size_t in_block,
                      const tensors::layouts::Scales<Layout::kValues / Layout::kRun>& scales,
                      const QuantizedView<Code>& x, std::size_t group) {
  std::uint8_t code[kGroup];
  Layout::codes(block, in_block, code);
  const int32x4_t sums[2] = {multiply_half<Layout>(code, x, group, 0),
                             multiply_half<Layout>(code, x, group, 1)};
  const auto sums_of_x = [&](std::size_t kind) {
    return vld1q_s32(x.minus_sums + loops::sum_place(group, kind));
  };
  const float of_x = x.scales[group];
  if constexpr (Layout::kRun == kGroup) {
    return add_run<Layout, Code>(lanes, vaddq_s32(sums[0], sums[1]), sums_of_x(2),
                                 scales.scale[in_block] * of_x, scales.minimum[in_block] * of_x);
  } else {
    for (std::size_t half = 0; half < 2; ++half) {
      const std::size_t run = 2 * in_block + half;
      lanes = add_run<Layout, Code>(lanes, sums[half], sums_of_x(half), scales.scale[run] * of_x,
                                    scales.minimum[run] * of_x);
    }
    return lanes;
  }
}

template <class Layout, class Code>
float multiply_row(const std::byte* row, const QuantizedView<Code>& x, std::size_t n_groups) {
  constexpr std::size_t kGroups = Layout::kValues / kGroup;
  Lanes lanes;
  for (std::size_t group = 0; group < n_groups; group += kGroups, row += Layout::kBytes) {
    const auto scales = Layout::scales(row);
    for (std::size_t i = 0; i < kGroups; ++i) {
      float32x4_t& of_group = lanes.v[(group + i) % kRoundGroups];
      of_group = add_group<Layout>(of_group, row, i, scales, x, group + i);
    }
  }
  return fold(lanes);
}

template <class Layout, class Code>
void multiply_rows(const std::byte* rows, std::size_t n_rows, const QuantizedView<Code>& x,
                   std::size_t n_groups, float* y) {
  const std::size_t row_bytes = bytes_of_groups<Layout>(n_groups);
  for (std::size_t i = 0; i < n_rows; ++i, rows += row_bytes) {
    y[i] = multiply_row<Layout>(rows, x, n_groups);
  }
}

template <class Code>
void quantize_groups(const float* x, std::size_t n_groups, Code* codes, std::int32_t* minus_sums,
                     float* scales) {
  loops::quantize(x, n_groups, codes, minus_sums, scales);
}

struct Neon {
  template <class Code>
  static constexpr auto quantize() {
    return quantize_groups<Code>;
  }
  template <class Layout, class Code>
  static constexpr auto multiply() {
    return multiply_rows<Layout, Code>;
  }
};

}  // namespace

constexpr AllBlockKernels kNeonBlocks = make_all_kernels<Neon>();

}  // namespace tqcache::model

#endif
