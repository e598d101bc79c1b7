// Trellis codes and f64 loops with AVX-512.

#include "tqcache/codec/kernels/registers_avx512.h"

#ifdef TQCACHE_X86

#include "tqcache/codec/trellis/trellis_search.h"

namespace tqcache::codec {
namespace {

constexpr std::size_t kWalkBytes = 64;
constexpr unsigned kDoubles = 8;

// kWidth components of kWidth rows, transposed; only `left` components exist.
TQC_LANES void load_square(const float* const (&rows)[kWidth], std::size_t first, std::size_t left,
                           Lanes (&out)[kWidth]) {
  const __mmask16 there = part_of(left);
  TQC_UNROLL for (std::size_t l = 0; l < kWidth; ++l) {
    out[l] = _mm512_maskz_loadu_ps(there, rows[l] + first);
  }
  transpose(out);
}

TQC_LANES __m512i bits_of(Ints v) { return reinterpret_cast<__m512i>(v); }

TQC_LANES Ints larger(Ints a, Ints b) {
  return reinterpret_cast<Ints>(_mm512_max_epi32(bits_of(a), bits_of(b)));
}

TQC_LANES Lanes smaller(Lanes a, Lanes b) { return _mm512_min_ps(a, b); }

TQC_LANES Lanes clamp_lanes(Lanes v, float low, float high) {
  return _mm512_min_ps(_mm512_max_ps(v, _mm512_set1_ps(low)), _mm512_set1_ps(high));
}

TQC_LANES Lanes to_even(Lanes v) {
  return _mm512_roundscale_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

// `yes` where b < a, else `no`.
TQC_LANES Ints where_less(Lanes b, Lanes a, Ints yes, Ints no) {
  const __mmask16 less = _mm512_cmp_ps_mask(b, a, _CMP_LT_OQ);
  return reinterpret_cast<Ints>(_mm512_mask_mov_epi32(bits_of(no), less, bits_of(yes)));
}

TQC_LANES void store_bytes(Ints v, std::uint8_t* to) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(bits_of(v)));
}

TQC_LANES Ints load_bytes(const std::uint8_t* from) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return reinterpret_cast<Ints>(_mm512_cvtepu8_epi32(bytes));
}

}  // namespace
}  // namespace tqcache::codec

#include "tqcache/codec/trellis/double_lanes.h"
#include "tqcache/codec/trellis/trellis_lanes.h"
#include "tqcache/codec/trellis/trellis_walk_lanes.h"

namespace tqcache::codec {

const TrellisKernels avx512::kTrellisKernels = {search_all, walk_to_codes, walk_to_symbols};
const DoubleLoops avx512::kDoubleLoops = kLoops;

}  // namespace tqcache::codec

#endif  // TQCACHE_X86
