// Dense keys and values, and sinusoids, with AVX-512.

#include "tqcache/codec/kernels/registers_avx512.h"

#ifdef TQCACHE_X86

namespace tqcache::codec {
namespace {

constexpr std::size_t kMostQueries = 8;
constexpr std::size_t tile_tokens(std::size_t n_queries) { return kWidth / n_queries; }
// One query reads row after row: prefetching works best when memory is read in order. With several
// queries there is more work per value, and four rows share the loads of the queries.
constexpr std::size_t tokens_together(std::size_t n_queries) {
  return n_queries == 1 ? 1 : n_queries == 8 ? 2 : 4;
}
constexpr std::size_t chunks(std::size_t n_queries) { return n_queries == 1 ? 8 : 16 / n_queries; }

// For sinusoids: with these tiles, sums fill half the registers.
constexpr std::size_t float_tile(std::size_t n_queries) { return n_queries < 3 ? 4 : 2; }
constexpr std::size_t int16_tile(std::size_t n_queries) {
  return n_queries == 1 ? 8 : n_queries == 2 ? 4 : 2;
}
constexpr std::size_t kJoinChains = 2;

TQC_LANES Lanes rotate(const float* amplitudes, const float* phasors) {
  const __m512 ab = _mm512_loadu_ps(amplitudes), cs = _mm512_loadu_ps(phasors);
  const __m512 ba = _mm512_permute_ps(ab, 0xb1);
  return _mm512_fmsubadd_ps(ab, _mm512_moveldup_ps(cs), _mm512_mul_ps(ba, _mm512_movehdup_ps(cs)));
}

TQC_LANES Lanes spread_pair(const float* pair) {
  double both;
  __builtin_memcpy(&both, pair, sizeof(both));
  return _mm512_castpd_ps(_mm512_set1_pd(both));
}

TQC_LANES Lanes backwards(Lanes v) {
  const __m512i order = _mm512_setr_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  return _mm512_permutexvar_ps(order, v);
}

TQC_LANES Ints load_pairs(const std::int16_t* p) {
  return reinterpret_cast<Ints>(_mm512_load_si512(p));
}

TQC_LANES Ints add_products(Ints sum, Ints pairs, std::int32_t factor) {
  return reinterpret_cast<Ints>(_mm512_dpwssd_epi32(
      reinterpret_cast<__m512i>(sum), reinterpret_cast<__m512i>(pairs), _mm512_set1_epi32(factor)));
}

TQC_LANES Lanes to_floats(Ints v) { return _mm512_cvtepi32_ps(reinterpret_cast<__m512i>(v)); }

TQC_LANES void round_pairs(const float* factors, Lanes inverse, std::int32_t* pairs) {
  const __m512i steps = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(factors), inverse));
  // Both even parts of a pair of rows, then both odd parts.
  const __m512i transposed = _mm512_shuffle_epi32(steps, _MM_PERM_DBCA);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(pairs), _mm512_cvtsepi32_epi16(transposed));
}

}  // namespace
}  // namespace tqcache::codec

#include "tqcache/codec/kernels/dense_lanes.h"
#include "tqcache/codec/kernels/sinusoid_lanes.h"

#endif  // TQCACHE_X86
