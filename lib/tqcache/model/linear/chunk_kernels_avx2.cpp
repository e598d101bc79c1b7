// Products of panels of quantized weights in AVX2, and with AVX-VNNI where a processor has it: two
// registers have one quad of eight rows each, and each of four vectors x two sums.

#include "tqcache/model/linear/chunk_kernels.h"

#if defined(__x86_64__) && !defined(TQCACHE_SCALAR)

#include "tqcache/codec/kernels/lanes.h"
#include "tqcache/model/linear/chunk_loops.h"
#include "tqcache/model/linear/lanes_avx2.h"

namespace tqcache::model {
namespace {

constexpr std::size_t kFourVectors = 4;  // of x, whose sums stay in registers
constexpr std::size_t kPartRows = 8;     // of a panel, in a register

TQC_AVX2_INLINE void widen_in_256(const std::uint16_t* halves, float* values) {
  for (std::size_t i = 0; i < kPanelRows; i += 8) {
    const __m128i eight = _mm_loadu_si128(reinterpret_cast<const __m128i*>(halves + i));
    _mm256_storeu_ps(values + i, _mm256_cvtph_ps(eight));
  }
}

template <class Layout>
TQC_AVX2 void pack_in_256(const std::byte* rows, std::size_t n_rows, std::size_t n_groups,
                          std::int8_t* codes, float* scales, float* minima) {
  loops::pack<Layout>(rows, n_rows, n_groups, codes, scales, minima, widen_in_256);
}

TQC_AVX2_INLINE __m256i pair_of_codes(const std::int16_t* codes) {
  return _mm256_set1_epi32(
      tensors::layouts::load<std::int32_t>(reinterpret_cast<const std::byte*>(codes)));
}

// Adds to each lane of `sums` the products of the four codes of a quad.
struct WithoutVnni {
  static constexpr std::size_t kParts = 1;  // at a time: all of a loop stays in registers

  [[gnu::target("avx2,f16c"), gnu::always_inline]] static inline __m256i add(
      __m256i sums, __m256i even, __m256i odd, __m256i even_x, __m256i odd_x) {
    return _mm256_add_epi32(
        sums, _mm256_add_epi32(_mm256_madd_epi16(even, even_x), _mm256_madd_epi16(odd, odd_x)));
  }
};

// In assembly, because a function for another target cannot be inlined into a loop for both.
struct WithVnni {
  static constexpr std::size_t kParts = 2;

  [[gnu::target("avx2,f16c"), gnu::always_inline]] static inline __m256i add(
      __m256i sums, __m256i even, __m256i odd, __m256i even_x, __m256i odd_x) {
    asm("%{vex%} vpdpwssd %2, %1, %0" : "+x"(sums) : "x"(even), "x"(even_x));
    asm("%{vex%} vpdpwssd %2, %1, %0" : "+x"(sums) : "x"(odd), "x"(odd_x));
    return sums;
  }
};

struct FourVectors {
  const std::int16_t* codes[kFourVectors];
  const float* scales[kFourVectors];
  const float* minus_sums[kFourVectors];
};

// Adds the products of half a group.
template <class Dots>
TQC_AVX2_INLINE void add_quads(const std::int8_t* half, const FourVectors& x, std::size_t place,
                               __m256i (*sums)[Dots::kParts]) {
#if !defined(__clang__)
#pragma GCC unroll 1  // with -O3 g++ unrolls this otherwise, which costs 15%
#endif
  for (std::size_t q = 0; q < 4; ++q, half += kPanelRows * kQuad) {
    __m256i even[Dots::kParts], odd[Dots::kParts];
    TQC_UNROLL
    for (std::size_t part = 0; part < Dots::kParts; ++part) {
      const __m256i quad = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(half) + part);
      even[part] = _mm256_srai_epi16(_mm256_slli_epi16(quad, 8), 8);
      odd[part] = _mm256_srai_epi16(quad, 8);
    }
    TQC_UNROLL
    for (std::size_t i = 0; i < kFourVectors; ++i) {
      const __m256i of_even = pair_of_codes(x.codes[i] + place + 2 * q);
      const __m256i of_odd = pair_of_codes(x.codes[i] + place + 2 * q + loops::kOddCodes);
      TQC_UNROLL
      for (std::size_t part = 0; part < Dots::kParts; ++part) {
        sums[i][part] = Dots::add(sums[i][part], even[part], odd[part], of_even, of_odd);
      }
    }
  }
}

// The products with rows [first, first + 8 kParts) of the panel. Shapes: y [4 vectors, 16 rows].
template <class Dots, std::size_t kRun, bool kHasMinimum>
TQC_AVX2_INLINE void multiply_four(const PanelView& panel, std::size_t first, const FourVectors& x,
                                   float (*y)[kPanelRows]) {
  constexpr std::size_t kHalves = kRun / 16, kRuns = kGroup / kRun;
  const std::int8_t* codes = panel.codes + first * kQuad;
  __m256 lanes[kFourVectors][Dots::kParts];
  TQC_UNROLL
  for (std::size_t i = 0; i < kFourVectors; ++i) {
    TQC_UNROLL
    for (std::size_t part = 0; part < Dots::kParts; ++part) lanes[i][part] = _mm256_setzero_ps();
  }
  for (std::size_t group = 0; group < panel.n_groups; ++group) {
    for (std::size_t run = 0; run < kRuns; ++run) {
      __m256i sums[kFourVectors][Dots::kParts];
      TQC_UNROLL
      for (std::size_t i = 0; i < kFourVectors; ++i) {
        TQC_UNROLL
        for (std::size_t part = 0; part < Dots::kParts; ++part) {
          sums[i][part] = _mm256_setzero_si256();
        }
      }
      for (std::size_t half = run * kHalves; half < (run + 1) * kHalves; ++half) {
        add_quads<Dots>(codes, x, loops::quads_place(group, half), sums);
        codes += kGroup / 2 * kPanelRows;
      }
      TQC_UNROLL
      for (std::size_t part = 0; part < Dots::kParts; ++part) {
        const std::size_t at = (group * kRuns + run) * kPanelRows + first + part * kPartRows;
        const __m256 scale = _mm256_loadu_ps(panel.scales + at);
        __m256 minimum = _mm256_setzero_ps();
        if constexpr (kHasMinimum) minimum = _mm256_loadu_ps(panel.minima + at);
        TQC_UNROLL
        for (std::size_t i = 0; i < kFourVectors; ++i) {
          __m256 term = _mm256_mul_ps(_mm256_cvtepi32_ps(sums[i][part]), scale);
          if constexpr (kHasMinimum) {
            const float minus_sum = x.minus_sums[i][group * 3 + (kRuns == 1 ? 2 : run)];
            term = _mm256_add_ps(term, _mm256_mul_ps(_mm256_set1_ps(minus_sum), minimum));
          }
          term = _mm256_mul_ps(term, _mm256_set1_ps(x.scales[i][group]));
          lanes[i][part] = _mm256_add_ps(lanes[i][part], term);
        }
      }
    }
  }
  TQC_UNROLL
  for (std::size_t i = 0; i < kFourVectors; ++i) {
    TQC_UNROLL
    for (std::size_t part = 0; part < Dots::kParts; ++part) {
      _mm256_store_ps(y[i] + first + part * kPartRows, lanes[i][part]);
    }
  }
}

template <class Dots, std::size_t kRun, bool kHasMinimum>
TQC_AVX2 void multiply_chunk_of(const PanelView& panel, const ChunkView& x, float* y,
                                std::size_t stride) {
  for (std::size_t first = 0; first < x.n; first += kFourVectors) {
    FourVectors four;
    for (std::size_t i = 0; i < kFourVectors; ++i) {
      const std::size_t row = std::min(first + i, x.n - 1);  // the last one again where none is
      four.codes[i] = x.codes + row * x.row_codes;
      four.scales[i] = x.scales + row * x.row_groups;
      four.minus_sums[i] = x.minus_sums + row * x.row_groups * 3;
    }
    alignas(32) float sums[kFourVectors][kPanelRows];
    for (std::size_t rows = 0; rows < panel.n_rows; rows += Dots::kParts * kPartRows) {
      multiply_four<Dots, kRun, kHasMinimum>(panel, rows, four, sums);
    }
    for (std::size_t i = 0; i < std::min(kFourVectors, x.n - first); ++i) {
      std::copy_n(sums[i], panel.n_rows, y + (first + i) * stride);
    }
  }
}

template <class Dots>
void multiply_in_256(const PanelView& panel, const ChunkView& x, float* y, std::size_t stride) {
  loops::by_run_shape(panel, [&]<std::size_t kRun, bool kHasMinimum>() {
    multiply_chunk_of<Dots, kRun, kHasMinimum>(panel, x, y, stride);
  });
}

struct Avx2Chunks {
  template <class Layout>
  static constexpr auto pack() {
    return pack_in_256<Layout>;
  }
};

}  // namespace

constexpr ChunkKernels kAvx2Chunks = {make_packs<Avx2Chunks>(tensors::layouts::All{}),
                                      multiply_in_256<WithoutVnni>};
constexpr ChunkKernels kAvx2VnniChunks = {make_packs<Avx2Chunks>(tensors::layouts::All{}),
                                          multiply_in_256<WithVnni>};

}  // namespace tqcache::model

#endif
