// Products of panels of quantized weights in AVX-512 with VNNI: a vector has one quad of sixteen
// rows, and each of eight vectors x a sum of its own.

#include "tqcache/model/linear/chunk_kernels.h"

#if defined(__x86_64__) && !defined(TQCACHE_SCALAR)

#define TQC_AVX512_TARGET gnu::target("avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")

#include "tqcache/codec/kernels/lanes.h"
#include "tqcache/model/linear/chunk_loops.h"
#include "tqcache/model/linear/lanes_avx512.h"

namespace tqcache::model {
namespace {

constexpr std::size_t kChunkVectors = 8;  // sums of x that stay in registers

TQC_AVX512_INLINE void widen_in_512(const std::uint16_t* halves, float* values) {
  const __m256i sixteen = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(halves));
  _mm512_storeu_ps(values, _mm512_cvtph_ps(sixteen));
}

template <class Layout>
TQC_AVX512 void pack_in_512(const std::byte* rows, std::size_t n_rows, std::size_t n_groups,
                            std::int8_t* codes, float* scales, float* minima) {
  loops::pack<Layout>(rows, n_rows, n_groups, codes, scales, minima, widen_in_512);
}

TQC_AVX512_INLINE __m512i two_codes(const std::int16_t* codes) {
  return _mm512_set1_epi32(
      tensors::layouts::load<std::int32_t>(reinterpret_cast<const std::byte*>(codes)));
}

// Adds the products of half a group.
TQC_AVX512_INLINE void add_half(const std::int8_t* half, const std::int16_t* const* x,
                                std::size_t place, __m512i* sums) {
  for (std::size_t q = 0; q < 4; ++q) {
    const __m512i quad = _mm512_loadu_si512(half + q * kPanelRows * kQuad);
    const __m512i even = _mm512_srai_epi16(_mm512_slli_epi16(quad, 8), 8);
    const __m512i odd = _mm512_srai_epi16(quad, 8);
    TQC_UNROLL
    for (std::size_t i = 0; i < kChunkVectors; ++i) {
      const std::int16_t* const codes = x[i] + place + 2 * q;
      sums[i] = _mm512_dpwssd_epi32(sums[i], even, two_codes(codes));
      sums[i] = _mm512_dpwssd_epi32(sums[i], odd, two_codes(codes + loops::kOddCodes));
    }
  }
}

// Eight vectors; the pointers are to the codes, scales and sums of each.
struct EightVectors {
  const std::int16_t* codes[kChunkVectors];
  const float* scales[kChunkVectors];
  const float* minus_sums[kChunkVectors];
};

template <std::size_t kRun, bool kHasMinimum>
TQC_AVX512_INLINE void multiply_eight(const PanelView& panel, const EightVectors& x,
                                      __m512* lanes) {
  constexpr std::size_t kHalves = kRun / 16, kRuns = kGroup / kRun;
  TQC_UNROLL
  for (std::size_t i = 0; i < kChunkVectors; ++i) lanes[i] = _mm512_setzero_ps();
  const std::int8_t* codes = panel.codes;
  for (std::size_t group = 0; group < panel.n_groups; ++group) {
    for (std::size_t run = 0; run < kRuns; ++run) {
      __m512i sums[kChunkVectors];
      TQC_UNROLL
      for (std::size_t i = 0; i < kChunkVectors; ++i) sums[i] = _mm512_setzero_si512();
      for (std::size_t half = run * kHalves; half < (run + 1) * kHalves; ++half) {
        add_half(codes, x.codes, loops::quads_place(group, half), sums);
        codes += kGroup / 2 * kPanelRows;
      }
      const std::size_t at = (group * kRuns + run) * kPanelRows;
      const __m512 scale = _mm512_loadu_ps(panel.scales + at);
      __m512 minimum = _mm512_setzero_ps();
      if constexpr (kHasMinimum) minimum = _mm512_loadu_ps(panel.minima + at);
      TQC_UNROLL
      for (std::size_t i = 0; i < kChunkVectors; ++i) {
        __m512 term = _mm512_mul_ps(_mm512_cvtepi32_ps(sums[i]), scale);
        if constexpr (kHasMinimum) {
          const float minus_sum = x.minus_sums[i][group * 3 + (kRuns == 1 ? 2 : run)];
          term = _mm512_add_ps(term, _mm512_mul_ps(_mm512_set1_ps(minus_sum), minimum));
        }
        lanes[i] = _mm512_add_ps(lanes[i], _mm512_mul_ps(term, _mm512_set1_ps(x.scales[i][group])));
      }
    }
  }
}

template <std::size_t kRun, bool kHasMinimum>
TQC_AVX512 void multiply_all(const PanelView& panel, const ChunkView& x, float* y,
                             std::size_t stride) {
  const auto present = static_cast<__mmask16>((1u << panel.n_rows) - 1);
  for (std::size_t first = 0; first < x.n; first += kChunkVectors) {
    EightVectors eight;
    for (std::size_t i = 0; i < kChunkVectors; ++i) {
      const std::size_t row = std::min(first + i, x.n - 1);  // the last one again where none is
      eight.codes[i] = x.codes + row * x.row_codes;
      eight.scales[i] = x.scales + row * x.row_groups;
      eight.minus_sums[i] = x.minus_sums + row * x.row_groups * 3;
    }
    __m512 lanes[kChunkVectors];
    multiply_eight<kRun, kHasMinimum>(panel, eight, lanes);
    for (std::size_t i = 0; i < std::min(kChunkVectors, x.n - first); ++i) {
      _mm512_mask_storeu_ps(y + (first + i) * stride, present, lanes[i]);
    }
  }
}

void multiply_in_512(const PanelView& panel, const ChunkView& x, float* y, std::size_t stride) {
  loops::by_run_shape(panel, [&]<std::size_t kRun, bool kHasMinimum>() {
    multiply_all<kRun, kHasMinimum>(panel, x, y, stride);
  });
}

struct Avx512Chunks {
  template <class Layout>
  static constexpr auto pack() {
    return pack_in_512<Layout>;
  }
};

}  // namespace

constexpr ChunkKernels kAvx512Chunks = {make_packs<Avx512Chunks>(tensors::layouts::All{}),
                                        multiply_in_512};

}  // namespace tqcache::model

#endif
