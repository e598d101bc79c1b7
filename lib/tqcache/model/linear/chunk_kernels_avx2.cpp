// Products of panels of quantized weights in AVX2: two vectors have one quad of eight rows each,
// and each of four vectors x two sums.

#include "tqcache/model/linear/chunk_kernels.h"

#if defined(__x86_64__) && !defined(TQCACHE_SCALAR)

#include "tqcache/codec/kernels/lanes.h"
#include "tqcache/model/linear/chunk_loops.h"
#include "tqcache/model/linear/lanes_avx2.h"

namespace tqcache::model {
namespace {

constexpr std::size_t kFourVectors = 4;  // of x, whose sums stay in registers
constexpr std::size_t kRowsOfHalf = kPanelRows / 2;

TQC_AVX2_INLINE void widen_in_256(const std::uint16_t* halves, float* values) {
  for (std::size_t i = 0; i < kPanelRows; i += 8) {
    const __m128i eight = _mm_loadu_si128(reinterpret_cast<const __m128i*>(halves + i));
    _mm256_storeu_ps(values + i, _mm256_cvtph_ps(eight));
  }
}

template <class Form>
TQC_AVX2 void pack_in_256(const std::byte* rows, std::size_t n_rows, std::size_t n_groups,
                          std::int8_t* codes, float* scales, float* minima) {
  loops::pack<Form>(rows, n_rows, n_groups, codes, scales, minima, widen_in_256);
}

TQC_AVX2_INLINE __m256i pair_of_codes(const std::int16_t* codes) {
  return _mm256_set1_epi32(
      tensors::forms::load<std::int32_t>(reinterpret_cast<const std::byte*>(codes)));
}

// Adds the products of half a group with eight rows.
TQC_AVX2_INLINE void add_quads(const std::int8_t* half, const std::int16_t* const* x,
                               std::size_t place, __m256i* sums) {
  for (std::size_t q = 0; q < 4; ++q) {
    const __m256i quad =
        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(half + q * kPanelRows * kQuad));
    const __m256i even = _mm256_srai_epi16(_mm256_slli_epi16(quad, 8), 8);
    const __m256i odd = _mm256_srai_epi16(quad, 8);
    TQC_UNROLL
    for (std::size_t i = 0; i < kFourVectors; ++i) {
      const std::int16_t* const codes = x[i] + place + 2 * q;
      const __m256i a = _mm256_madd_epi16(even, pair_of_codes(codes));
      const __m256i b = _mm256_madd_epi16(odd, pair_of_codes(codes + loops::kOddCodes));
      sums[i] = _mm256_add_epi32(sums[i], _mm256_add_epi32(a, b));
    }
  }
}

struct FourVectors {
  const std::int16_t* codes[kFourVectors];
  const float* scales[kFourVectors];
  const float* minus_sums[kFourVectors];
};

// The products with eight rows, from row `first` of the panel on.
template <std::size_t kRun, bool kHasMinimum>
TQC_AVX2_INLINE void multiply_four(const PanelView& panel, std::size_t first, const FourVectors& x,
                                   __m256* lanes) {
  constexpr std::size_t kHalves = kRun / 16, kRuns = kGroup / kRun;
  TQC_UNROLL
  for (std::size_t i = 0; i < kFourVectors; ++i) lanes[i] = _mm256_setzero_ps();
  const std::int8_t* codes = panel.codes + first * kQuad;
  for (std::size_t group = 0; group < panel.n_groups; ++group) {
    for (std::size_t run = 0; run < kRuns; ++run) {
      __m256i sums[kFourVectors];
      TQC_UNROLL
      for (std::size_t i = 0; i < kFourVectors; ++i) sums[i] = _mm256_setzero_si256();
      for (std::size_t half = run * kHalves; half < (run + 1) * kHalves; ++half) {
        add_quads(codes, x.codes, loops::quads_place(group, half), sums);
        codes += kGroup / 2 * kPanelRows;
      }
      const std::size_t at = (group * kRuns + run) * kPanelRows + first;
      const __m256 scale = _mm256_loadu_ps(panel.scales + at);
      __m256 minimum = _mm256_setzero_ps();
      if constexpr (kHasMinimum) minimum = _mm256_loadu_ps(panel.minima + at);
      TQC_UNROLL
      for (std::size_t i = 0; i < kFourVectors; ++i) {
        __m256 term = _mm256_mul_ps(_mm256_cvtepi32_ps(sums[i]), scale);
        if constexpr (kHasMinimum) {
          const float minus_sum = x.minus_sums[i][group * 3 + (kRuns == 1 ? 2 : run)];
          term = _mm256_add_ps(term, _mm256_mul_ps(_mm256_set1_ps(minus_sum), minimum));
        }
        lanes[i] = _mm256_add_ps(lanes[i], _mm256_mul_ps(term, _mm256_set1_ps(x.scales[i][group])));
      }
    }
  }
}

template <std::size_t kRun, bool kHasMinimum>
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
    for (std::size_t rows = 0; rows < panel.n_rows; rows += kRowsOfHalf) {
      __m256 lanes[kFourVectors];
      multiply_four<kRun, kHasMinimum>(panel, rows, four, lanes);
      for (std::size_t i = 0; i < std::min(kFourVectors, x.n - first); ++i) {
        float values[kRowsOfHalf];
        _mm256_storeu_ps(values, lanes[i]);
        std::copy_n(values, std::min(kRowsOfHalf, panel.n_rows - rows),
                    y + (first + i) * stride + rows);
      }
    }
  }
}

TQC_AVX2 void multiply_in_256(const PanelView& panel, const ChunkView& x, float* y,
                              std::size_t stride) {
  const bool has_minimum = panel.minima != nullptr;
  if (panel.run == kGroup) {
    return has_minimum ? multiply_chunk_of<kGroup, true>(panel, x, y, stride)
                       : multiply_chunk_of<kGroup, false>(panel, x, y, stride);
  }
  return has_minimum ? multiply_chunk_of<kGroup / 2, true>(panel, x, y, stride)
                     : multiply_chunk_of<kGroup / 2, false>(panel, x, y, stride);
}

struct Avx2Chunks {
  template <class Form>
  static constexpr auto pack() {
    return pack_in_256<Form>;
  }
};

}  // namespace

constexpr ChunkKernels kAvx2Chunks = {make_packs<Avx2Chunks>(tensors::forms::All{}),
                                      multiply_in_256};

}  // namespace tqcache::model

#endif
