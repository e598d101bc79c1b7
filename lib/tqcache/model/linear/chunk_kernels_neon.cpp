// Products of panels of quantized weights in NEON: a vector has one quad of four rows, and each of
// four vectors x four sums.
//
// Codes of x have 16 bits, and what is fast multiplies bytes: so a code is 256 high + low + 128,
// where both are signed bytes. The sums over the high bytes come first, times 256; then the low
// ones are added, and 128 times the sum of the weights' codes, which all vectors share. The result
// has the bits of 32-bit sums of whole products.

#include "tqcache/codec/kernels/lanes.h"
#include "tqcache/model/linear/chunk_kernels.h"

#ifdef TQCACHE_NEON

#include <arm_neon.h>
#if defined(__linux__)
#include <sys/auxv.h>
#endif

#include "tqcache/model/linear/chunk_loops.h"

namespace tqcache::model {
namespace {

constexpr std::size_t kFourVectors = 4;  // of x, whose sums stay in registers
constexpr std::size_t kRowParts = kPanelRows / 4;

void widen_in_neon(const std::uint16_t* halves, float* values) {
  for (std::size_t i = 0; i < kPanelRows; i += 4) {
    vst1q_f32(values + i, vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(halves + i))));
  }
}

template <class Layout>
void pack_in_neon(const std::byte* rows, std::size_t n_rows, std::size_t n_groups,
                  std::int8_t* codes, float* scales, float* minima) {
  loops::pack<Layout>(rows, n_rows, n_groups, codes, scales, minima, widen_in_neon);
}

// The bytes of half a group of x, in the order of its values.
struct HalfBytes {
  int8x16_t high;
  int8x16_t low;  // less 128
};

inline HalfBytes split_half(const std::int16_t* codes) {
  const int16x8_t even = vld1q_s16(codes), odd = vld1q_s16(codes + loops::kOddCodes);
  const int8x8_t even_high = vshrn_n_s16(even, 8), odd_high = vshrn_n_s16(odd, 8);
  const int8x8_t minus_128 = vdup_n_s8(-128);  // which flips the upper bit
  const int8x8_t even_low = veor_s8(vmovn_s16(even), minus_128);
  const int8x8_t odd_low = veor_s8(vmovn_s16(odd), minus_128);
  return {vcombine_s8(vzip1_s8(even_high, odd_high), vzip2_s8(even_high, odd_high)),
          vcombine_s8(vzip1_s8(even_low, odd_low), vzip2_s8(even_low, odd_low))};
}

// Adds to each lane the products of four neighboring bytes of `w` with quad kQuadOf of x: pairs of
// products fit 16 bits.
struct WithoutDots {
  template <int kQuadOf>
  [[gnu::always_inline]] static inline int32x4_t add(int32x4_t sums, int8x16_t w, int8x16_t x) {
    const int8x16_t quad = vreinterpretq_s8_s32(vdupq_laneq_s32(vreinterpretq_s32_s8(x), kQuadOf));
    const int16x8_t first = vmull_s8(vget_low_s8(w), vget_low_s8(quad));
    const int16x8_t second = vmull_high_s8(w, quad);
    return vaddq_s32(sums, vpaddq_s32(vpaddlq_s16(first), vpaddlq_s16(second)));
  }
};

// The same with the instruction that does it. In assembly where the compiler's target lacks it,
// because a function for another target cannot be inlined into a loop for both. (clang 14 refuses
// it there: then products are those of all CPUs.)
#if defined(__clang__) && __clang_major__ < 18 && !defined(__ARM_FEATURE_DOTPROD)
#define TQC_NO_DOTS
#endif

#if defined(TQC_NO_DOTS)
using WithDots = WithoutDots;
#else
struct WithDots {
  template <int kQuadOf>
  [[gnu::always_inline]] static inline int32x4_t add(int32x4_t sums, int8x16_t w, int8x16_t x) {
#if defined(__ARM_FEATURE_DOTPROD)
    return vdotq_laneq_s32(sums, w, x, kQuadOf);
#else
    asm(".arch armv8.2-a+dotprod\n\tsdot %0.4s, %1.16b, %2.4b[%3]"
        : "+w"(sums)
        : "w"(w), "w"(x), "i"(kQuadOf));
    return sums;
#endif
  }
};
#endif

#define TQC_CHUNK_LOOP [[gnu::always_inline]] static inline

template <class Dots>
struct Loop {
  // Adds the products of half a group with one of the two kinds of bytes of four vectors.
  // Shapes: half [4 quads, 16 rows, 4]; x [4 vectors]; sums [4 vectors, 4 row parts].
  TQC_CHUNK_LOOP void add_half(const std::int8_t* half, const int8x16_t* x,
                               int32x4_t (*sums)[kRowParts]) {
    add_quad<0>(half, x, sums);
    add_quad<1>(half, x, sums);
    add_quad<2>(half, x, sums);
    add_quad<3>(half, x, sums);
  }

  template <int kQuadOf>
  TQC_CHUNK_LOOP void add_quad(const std::int8_t* half, const int8x16_t* x,
                               int32x4_t (*sums)[kRowParts]) {
    TQC_UNROLL
    for (std::size_t part = 0; part < kRowParts; ++part) {
      const int8x16_t w = vld1q_s8(half + (kQuadOf * kRowParts + part) * 16);
      TQC_UNROLL
      for (std::size_t i = 0; i < kFourVectors; ++i) {
        sums[i][part] = Dots::template add<kQuadOf>(sums[i][part], w, x[i]);
      }
    }
  }

  template <std::size_t kRun, bool kHasMinimum>
  TQC_CHUNK_LOOP void multiply_four(const PanelView& panel, const ChunkView& x,
                                    const std::size_t* rows, float (*lanes)[kPanelRows]) {
    constexpr std::size_t kHalves = kRun / 16, kRuns = kGroup / kRun;
    const std::int8_t* codes = panel.codes;
    const int8x16_t ones = vdupq_n_s8(1);
    for (std::size_t group = 0; group < panel.n_groups; ++group) {
      for (std::size_t run = 0; run < kRuns; ++run, codes += kRun * kPanelRows) {
        int8x16_t high[kHalves][kFourVectors], low[kHalves][kFourVectors];
        int32x4_t sums[kFourVectors][kRowParts], of_weights[1][kRowParts];
        for (std::size_t half = 0; half < kHalves; ++half) {
          TQC_UNROLL
          for (std::size_t i = 0; i < kFourVectors; ++i) {
            const HalfBytes bytes = split_half(x.codes + rows[i] * x.row_codes +
                                               loops::quads_place(group, run * kHalves + half));
            high[half][i] = bytes.high;
            low[half][i] = bytes.low;
          }
        }
        TQC_UNROLL
        for (std::size_t part = 0; part < kRowParts; ++part) {
          of_weights[0][part] = vdupq_n_s32(0);
          TQC_UNROLL
          for (std::size_t i = 0; i < kFourVectors; ++i) sums[i][part] = vdupq_n_s32(0);
        }
        for (std::size_t half = 0; half < kHalves; ++half) {
          const std::int8_t* const of_half = codes + half * kGroup / 2 * kPanelRows;
          add_half(of_half, high[half], sums);
          for (std::size_t quad = 0; quad < 4; ++quad) {
            TQC_UNROLL
            for (std::size_t part = 0; part < kRowParts; ++part) {
              of_weights[0][part] = Dots::template add<0>(
                  of_weights[0][part], vld1q_s8(of_half + (quad * kRowParts + part) * 16), ones);
            }
          }
        }
        TQC_UNROLL
        for (std::size_t part = 0; part < kRowParts; ++part) {
          const int32x4_t times_128 = vshlq_n_s32(of_weights[0][part], 7);
          TQC_UNROLL
          for (std::size_t i = 0; i < kFourVectors; ++i) {
            sums[i][part] = vaddq_s32(vshlq_n_s32(sums[i][part], 8), times_128);
          }
        }
        for (std::size_t half = 0; half < kHalves; ++half) {
          add_half(codes + half * kGroup / 2 * kPanelRows, low[half], sums);
        }
        const std::size_t at = (group * kRuns + run) * kPanelRows;
        for (std::size_t part = 0; part < kRowParts; ++part) {
          const float32x4_t scale = vld1q_f32(panel.scales + at + part * 4);
          float32x4_t minimum = vdupq_n_f32(0);
          if constexpr (kHasMinimum) minimum = vld1q_f32(panel.minima + at + part * 4);
          TQC_UNROLL
          for (std::size_t i = 0; i < kFourVectors; ++i) {
            const std::size_t at_x = rows[i] * x.row_groups + group;
            float32x4_t term = vmulq_f32(vcvtq_f32_s32(sums[i][part]), scale);
            if constexpr (kHasMinimum) {
              const float minus_sum = x.minus_sums[at_x * 3 + (kRuns == 1 ? 2 : run)];
              term = vaddq_f32(term, vmulq_n_f32(minimum, minus_sum));
            }
            float* const to = lanes[i] + part * 4;
            vst1q_f32(to, vaddq_f32(vld1q_f32(to), vmulq_n_f32(term, x.scales[at_x])));
          }
        }
      }
    }
  }

  template <std::size_t kRun, bool kHasMinimum>
  TQC_CHUNK_LOOP void multiply_all(const PanelView& panel, const ChunkView& x, float* y,
                                   std::size_t stride) {
    for (std::size_t first = 0; first < x.n; first += kFourVectors) {
      std::size_t rows[kFourVectors];  // the last one again where none is
      for (std::size_t i = 0; i < kFourVectors; ++i) rows[i] = std::min(first + i, x.n - 1);
      float lanes[kFourVectors][kPanelRows] = {};
      multiply_four<kRun, kHasMinimum>(panel, x, rows, lanes);
      for (std::size_t i = 0; i < std::min(kFourVectors, x.n - first); ++i) {
        std::copy_n(lanes[i], panel.n_rows, y + (first + i) * stride);
      }
    }
  }

  static void multiply(const PanelView& panel, const ChunkView& x, float* y, std::size_t stride) {
    loops::by_run_shape(panel, [&]<std::size_t kRun, bool kHasMinimum>() {
      multiply_all<kRun, kHasMinimum>(panel, x, y, stride);
    });
  }
};

struct NeonChunks {
  template <class Layout>
  static constexpr auto pack() {
    return pack_in_neon<Layout>;
  }
};

}  // namespace

constexpr ChunkKernels kNeonChunks = {make_packs<NeonChunks>(tensors::layouts::All{}),
                                      Loop<WithoutDots>::multiply};
constexpr ChunkKernels kNeonDotChunks = {make_packs<NeonChunks>(tensors::layouts::All{}),
                                         Loop<WithDots>::multiply};

bool has_dot_products() {
#if defined(TQC_NO_DOTS)
  return false;
#elif defined(__linux__)
  return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#elif defined(__APPLE__)
  return true;  // from the first of these processors on
#else
  return false;
#endif
}

}  // namespace tqcache::model

#endif
