// Trellis codes and f64 loops with AVX2.

#include "tqcache/codec/kernels/registers_avx2.h"

#ifdef TQCACHE_X86

#include "tqcache/codec/trellis/trellis_search.h"

namespace tqcache::codec {
namespace {

constexpr std::size_t kWalkBytes = 32;
constexpr unsigned kDoubles = 4;

// kWidth components of kWidth rows, transposed; only `left` components exist.
TQC_LANES void load_square(const float* const (&rows)[kWidth], std::size_t first, std::size_t left,
                           Lanes (&out)[kWidth]) {
  const __m256i there = first_lanes(left);
  TQC_UNROLL for (std::size_t l = 0; l < kWidth; ++l) {
    out[l] = _mm256_maskload_ps(rows[l] + first, there);
  }
  transpose(out);
}

TQC_LANES __m256i bits_of(Ints v) { return reinterpret_cast<__m256i>(v); }

TQC_LANES Ints larger(Ints a, Ints b) {
  return reinterpret_cast<Ints>(_mm256_max_epi32(bits_of(a), bits_of(b)));
}

TQC_LANES Lanes smaller(Lanes a, Lanes b) { return _mm256_min_ps(a, b); }

TQC_LANES Lanes clamp_lanes(Lanes v, float low, float high) {
  return _mm256_min_ps(_mm256_max_ps(v, _mm256_set1_ps(low)), _mm256_set1_ps(high));
}

TQC_LANES Lanes to_even(Lanes v) {
  return _mm256_round_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

// `yes` where b < a, else `no`.
TQC_LANES Ints where_less(Lanes b, Lanes a, Ints yes, Ints no) {
  const __m256i less = _mm256_castps_si256(_mm256_cmp_ps(b, a, _CMP_LT_OQ));
  return reinterpret_cast<Ints>(_mm256_blendv_epi8(bits_of(no), bits_of(yes), less));
}

// The lowest byte of each lane.
TQC_LANES void store_bytes(Ints v, std::uint8_t* to) {
  const __m256i first =
      _mm256_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 0, 4, 8, 12, -1,
                       -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
  const __m256i quads = _mm256_shuffle_epi8(bits_of(v), first);
  const __m256i both =
      _mm256_permutevar8x32_epi32(quads, _mm256_setr_epi32(0, 4, 1, 1, 1, 1, 1, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm256_castsi256_si128(both));
}

TQC_LANES Ints load_bytes(const std::uint8_t* from) {
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
  return reinterpret_cast<Ints>(_mm256_cvtepu8_epi32(bytes));
}

}  // namespace
}  // namespace tqcache::codec

#include "tqcache/codec/trellis/double_lanes.h"
#include "tqcache/codec/trellis/trellis_lanes.h"
#include "tqcache/codec/trellis/trellis_walk_lanes.h"

namespace tqcache::codec {

const TrellisKernels avx2::kTrellisKernels = {search_all, walk_to_codes, walk_to_symbols};
const DoubleLoops avx2::kDoubleLoops = kLoops;

}  // namespace tqcache::codec

#endif  // TQCACHE_X86
