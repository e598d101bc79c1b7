// Dense keys and values, and sinusoids, with AVX2.

#include "tqcache/codec/kernels/registers_avx2.h"

#ifdef TQCACHE_X86

namespace tqcache::codec {
namespace {

constexpr std::size_t kMostQueries = 4;
constexpr std::size_t tile_tokens(std::size_t) { return kWidth; }
// One query reads row after row: prefetching works best when memory is read in order. With several
// queries there is more work per value, and rows share the loads of the queries, as many rows as
// there are registers for their sums.
constexpr std::size_t tokens_together(std::size_t n_queries) {
  return n_queries == 1 ? 1 : n_queries == 2 ? 4 : 3;
}
constexpr std::size_t chunks(std::size_t n_queries) { return 8 / n_queries; }

// For sinusoids: with these tiles, sums fill half the registers.
constexpr std::size_t float_tile(std::size_t n_queries) {
  return n_queries == 1 ? 4 : n_queries == 2 ? 2 : 1;
}
constexpr std::size_t int16_tile(std::size_t n_queries) { return float_tile(n_queries); }
constexpr std::size_t kJoinChains = 1;

TQC_LANES Lanes rotate(const float* amplitudes, const float* phasors) {
  const __m256 ab = _mm256_loadu_ps(amplitudes), cs = _mm256_loadu_ps(phasors);
  const __m256 ba = _mm256_permute_ps(ab, 0xb1);
  return _mm256_fmsubadd_ps(ab, _mm256_moveldup_ps(cs), _mm256_mul_ps(ba, _mm256_movehdup_ps(cs)));
}

TQC_LANES Lanes spread_pair(const float* pair) {
  double both;
  __builtin_memcpy(&both, pair, sizeof(both));
  return _mm256_castpd_ps(_mm256_set1_pd(both));
}

TQC_LANES Lanes backwards(Lanes v) {
  return _mm256_permutevar8x32_ps(v, _mm256_setr_epi32(7, 6, 5, 4, 3, 2, 1, 0));
}

TQC_LANES Ints load_pairs(const std::int16_t* p) {
  return reinterpret_cast<Ints>(_mm256_load_si256(reinterpret_cast<const __m256i*>(p)));
}

TQC_LANES Ints add_products(Ints sum, Ints pairs, std::int32_t factor) {
  const __m256i products =
      _mm256_madd_epi16(reinterpret_cast<__m256i>(pairs), _mm256_set1_epi32(factor));
  return sum + reinterpret_cast<Ints>(products);
}

TQC_LANES Lanes to_floats(Ints v) { return _mm256_cvtepi32_ps(reinterpret_cast<__m256i>(v)); }

TQC_LANES void round_pairs(const float* factors, Lanes inverse, std::int32_t* pairs) {
  const __m256i steps = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(factors), inverse));
  // Both even parts of a pair of rows, then both odd parts.
  const __m256i transposed = _mm256_shuffle_epi32(steps, 0xd8);
  const __m128i narrow =
      _mm_packs_epi32(_mm256_castsi256_si128(transposed), _mm256_extracti128_si256(transposed, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(pairs), narrow);
}

}  // namespace
}  // namespace tqcache::codec

#include "tqcache/codec/kernels/dense_lanes.h"
#include "tqcache/codec/kernels/sinusoid_lanes.h"

#endif  // TQCACHE_X86
