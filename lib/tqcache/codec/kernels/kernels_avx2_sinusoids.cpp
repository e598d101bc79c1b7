// Sinusoids with AVX2: FMA, or VPMADDWD, which adds two products of 16 bits.

#include "tqcache/codec/kernels/kernels_avx2.h"

#ifdef TQCACHE_X86

#include "tqcache/codec/kernels/sinusoid_rows.h"

namespace tqcache::codec {
namespace {

using avx2::kWidth;

constexpr std::size_t kVectors = kSinusoidHalf / kWidth;  // of half a block

// Four sinusoids, turned to the middle of a block: even and odd parts side by side.
TQC_AVX2 __m256 turn(const float* amplitudes, const float* phasors) {
  const __m256 ab = _mm256_loadu_ps(amplitudes), cs = _mm256_loadu_ps(phasors);
  const __m256 ba = _mm256_permute_ps(ab, 0xb1);
  return _mm256_fmsubadd_ps(ab, _mm256_moveldup_ps(cs), _mm256_mul_ps(ba, _mm256_movehdup_ps(cs)));
}

// An even and an odd part, four times.
TQC_AVX2 __m256 spread_pair(const float* pair) {
  double both;
  __builtin_memcpy(&both, pair, sizeof(both));
  return _mm256_castpd_ps(_mm256_set1_pd(both));
}

// make_sinusoid_factors() for kQueries queries, which share the loads of the phasors and joins.
template <std::size_t kQueries>
TQC_AVX2_FUNCTION void make_factors(const SinusoidTable& table, const Sinusoids& sinusoids,
                                    std::size_t first, SinusoidRows& rows) {
  const std::size_t n_values = 2 * table.n_padded();
  for (std::size_t i = 0; i < n_values; i += kWidth) {
    TQC_UNROLL for (std::size_t q = 0; q < kQueries; ++q) {
      const float* const amplitudes = sinusoids.amplitudes + (first + q) * n_values;
      _mm256_store_ps(rows.factors[q] + i, turn(amplitudes + i, sinusoids.phasors + i));
    }
  }
  __m256 low[kQueries], high[kQueries];
  TQC_UNROLL for (std::size_t q = 0; q < kQueries; ++q) { low[q] = high[q] = _mm256_setzero_ps(); }
  const float* join = table.joins.data();
  for (std::size_t i = table.n_fast; i < table.n_padded(); ++i, join += 2 * kWidth) {
    const __m256 join_low = _mm256_load_ps(join), join_high = _mm256_load_ps(join + kWidth);
    TQC_UNROLL for (std::size_t q = 0; q < kQueries; ++q) {
      const __m256 pair = spread_pair(rows.factors[q] + 2 * i);
      low[q] = _mm256_fmadd_ps(pair, join_low, low[q]);
      high[q] = _mm256_fmadd_ps(pair, join_high, high[q]);
    }
  }
  TQC_UNROLL for (std::size_t q = 0; q < kQueries; ++q) {
    float* const joined = rows.factors[q] + 2 * table.n_fast;
    _mm256_storeu_ps(joined, low[q]);
    _mm256_storeu_ps(joined + kWidth, high[q]);
    for (std::size_t i = 2; i < 6; ++i) _mm256_storeu_ps(joined + i * kWidth, _mm256_setzero_ps());
    joined[0] += sinusoids.constants[first + q];
  }
}

// Adds even and odd parts to eight tokens of either half of a block.
TQC_AVX2 void put_both_halves(float* scores, std::size_t vector, __m256 sum, __m256 difference) {
  const __m256i backwards = _mm256_setr_epi32(7, 6, 5, 4, 3, 2, 1, 0);
  float* const upper = scores + kSinusoidHalf + kWidth * vector;
  float* const lower = scores + kSinusoidHalf - kWidth * (vector + 1);
  _mm256_storeu_ps(upper, _mm256_add_ps(_mm256_loadu_ps(upper), sum));
  const __m256 turned = _mm256_permutevar8x32_ps(difference, backwards);
  _mm256_storeu_ps(lower, _mm256_add_ps(_mm256_loadu_ps(lower), turned));
}

template <std::size_t kQueries, std::size_t kTile>
TQC_AVX2_FUNCTION void add_floats(const SinusoidTable& table, const SinusoidRows& rows,
                                  OutputRows scores) {
  for (std::size_t v = 0; v < kVectors; v += kTile) {
    __m256 even[kQueries][kTile], odd[kQueries][kTile];
    TQC_UNROLL for (std::size_t q = 0; q < kQueries; ++q) {
      TQC_UNROLL for (std::size_t i = 0; i < kTile; ++i) {
        even[q][i] = odd[q][i] = _mm256_setzero_ps();
      }
    }
    const float* row = table.values.data() + kWidth * v;
    for (std::size_t r = 0; r < table.n_rows; ++r, row += kSinusoidRow) {
      TQC_UNROLL for (std::size_t i = 0; i < kTile; ++i) {
        const __m256 even_row = _mm256_load_ps(row + kWidth * i);
        const __m256 odd_row = _mm256_load_ps(row + kSinusoidHalf + kWidth * i);
        TQC_UNROLL for (std::size_t q = 0; q < kQueries; ++q) {
          const float* const factor = rows.factors[q] + 2 * r;
          even[q][i] = _mm256_fmadd_ps(even_row, _mm256_set1_ps(factor[0]), even[q][i]);
          odd[q][i] = _mm256_fmadd_ps(odd_row, _mm256_set1_ps(factor[1]), odd[q][i]);
        }
      }
    }
    TQC_UNROLL for (std::size_t q = 0; q < kQueries; ++q) {
      TQC_UNROLL for (std::size_t i = 0; i < kTile; ++i) {
        put_both_halves(scores.values + q * scores.stride, v + i,
                        _mm256_add_ps(even[q][i], odd[q][i]), _mm256_sub_ps(even[q][i], odd[q][i]));
      }
    }
  }
}

TQC_AVX2 float largest_of(__m256 v) {
  alignas(32) float lanes[kWidth];
  _mm256_store_ps(lanes, v);
  float most = lanes[0];
  for (std::size_t l = 1; l < kWidth; ++l) most = lanes[l] > most ? lanes[l] : most;
  return most;
}

TQC_AVX2 float sum_of(__m256 v) {
  alignas(32) float lanes[kWidth];
  _mm256_store_ps(lanes, v);
  float sum = lanes[0];
  for (std::size_t l = 1; l < kWidth; ++l) sum += lanes[l];
  return sum;
}

// n rows of one query's factors as words. Requires: n is a multiple of kSinusoidStep.
TQC_AVX2_FUNCTION void round_to_words(const float* factors, std::size_t n, std::int32_t* pairs,
                                      float& multiplier) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  __m256 sum = _mm256_setzero_ps(), most = sum;
  for (std::size_t i = 0; i < 2 * n; i += kWidth) {
    const __m256 magnitude = _mm256_andnot_ps(sign, _mm256_loadu_ps(factors + i));
    sum = _mm256_add_ps(sum, magnitude);
    most = _mm256_max_ps(most, magnitude);
  }
  const float step = int16_step(largest_of(most), sum_of(sum));
  const __m256 inverse = _mm256_set1_ps(1.0f / step);
  for (std::size_t i = 0; i < 2 * n; i += kWidth) {
    const __m256i steps = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(factors + i), inverse));
    // Both even parts of a pair of rows, and then both odd parts.
    const __m256i turned = _mm256_shuffle_epi32(steps, 0xd8);
    const __m128i words =
        _mm_packs_epi32(_mm256_castsi256_si128(turned), _mm256_extracti128_si256(turned, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(pairs + i / 2), words);
  }
  multiplier = step / static_cast<float>(SinusoidTable::kUnit);
}

TQC_AVX2 __m256i load(const std::int16_t* p) {
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(p));
}

// Rows first to first + n - 1 of the table, of which rows.words holds the factors.
template <std::size_t kQueries, std::size_t kTile>
TQC_AVX2_FUNCTION void add_words(const SinusoidTable& table, const SinusoidRows& rows,
                                 std::size_t first, std::size_t n, OutputRows scores) {
  for (std::size_t v = 0; v < kVectors; v += kTile) {
    __m256i even[kQueries][kTile], odd[kQueries][kTile];
    TQC_UNROLL for (std::size_t q = 0; q < kQueries; ++q) {
      TQC_UNROLL for (std::size_t i = 0; i < kTile; ++i) {
        even[q][i] = odd[q][i] = _mm256_setzero_si256();
      }
    }
    const std::int16_t* row = table.words.data() + first * kSinusoidRow + 2 * kWidth * v;
    for (std::size_t r = 0; r < n; r += 2, row += 2 * kSinusoidRow) {
      TQC_UNROLL for (std::size_t i = 0; i < kTile; ++i) {
        const __m256i even_rows = load(row + 2 * kWidth * i);
        const __m256i odd_rows = load(row + 2 * kSinusoidHalf + 2 * kWidth * i);
        TQC_UNROLL for (std::size_t q = 0; q < kQueries; ++q) {
          const std::int32_t* const factor = rows.words[q] + r;
          const __m256i e = _mm256_madd_epi16(even_rows, _mm256_set1_epi32(factor[0]));
          const __m256i o = _mm256_madd_epi16(odd_rows, _mm256_set1_epi32(factor[1]));
          even[q][i] = _mm256_add_epi32(even[q][i], e);
          odd[q][i] = _mm256_add_epi32(odd[q][i], o);
        }
      }
    }
    TQC_UNROLL for (std::size_t q = 0; q < kQueries; ++q) {
      const __m256 multiplier = _mm256_set1_ps(rows.multipliers[q]);
      TQC_UNROLL for (std::size_t i = 0; i < kTile; ++i) {
        const __m256i sum = _mm256_add_epi32(even[q][i], odd[q][i]);
        const __m256i difference = _mm256_sub_epi32(even[q][i], odd[q][i]);
        put_both_halves(scores.values + q * scores.stride, v + i,
                        _mm256_mul_ps(_mm256_cvtepi32_ps(sum), multiplier),
                        _mm256_mul_ps(_mm256_cvtepi32_ps(difference), multiplier));
      }
    }
  }
}

// Vectors of tokens at a time: with these, sums fill half the registers.
constexpr std::size_t tile(std::size_t n_queries) {
  return n_queries == 1 ? 4 : n_queries == 2 ? 2 : 1;
}

template <std::size_t kQueries>
void add_exact(const SinusoidTable& table, const Sinusoids& sinusoids, std::size_t first,
               OutputRows scores) {
  SinusoidRows rows;
  make_factors<kQueries>(table, sinusoids, first, rows);
  add_floats<kQueries, tile(kQueries)>(table, rows, scores);
}

template <std::size_t kQueries>
void add_fast(const SinusoidTable& table, const Sinusoids& sinusoids, std::size_t first,
              OutputRows scores) {
  SinusoidRows rows;
  make_factors<kQueries>(table, sinusoids, first, rows);
  for (std::size_t r = 0; r < table.n_rows; r += kWordRows) {
    const std::size_t left = table.n_rows - r;
    const std::size_t n = left < kWordRows ? left : kWordRows;
    for (std::size_t q = 0; q < kQueries; ++q) {
      round_to_words(rows.factors[q] + 2 * r, n, rows.words[q], rows.multipliers[q]);
    }
    add_words<kQueries, tile(kQueries)>(table, rows, r, n, scores);
  }
}

}  // namespace

void avx2::add_sinusoids_exact(const SinusoidTable& table, const Sinusoids& sinusoids,
                               OutputRows scores) {
  constexpr AddSinusoidGroup kGroups[] = {add_exact<1>, add_exact<2>, add_exact<3>, add_exact<4>};
  add_in_groups(kGroups, table, sinusoids, scores);
}

void avx2::add_sinusoids_fast(const SinusoidTable& table, const Sinusoids& sinusoids,
                              OutputRows scores) {
  constexpr AddSinusoidGroup kGroups[] = {add_fast<1>, add_fast<2>, add_fast<3>, add_fast<4>};
  add_in_groups(kGroups, table, sinusoids, scores);
}

}  // namespace tqcache::codec

#endif  // TQCACHE_X86
