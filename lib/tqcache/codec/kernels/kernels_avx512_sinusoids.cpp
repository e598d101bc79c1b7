// Sinusoids with AVX-512: FMA, or VPDPWSSD, which adds two products of 16 bits to a sum of 32.

#include "tqcache/codec/kernels/kernels_avx512.h"

#ifdef TQCACHE_X86

#include "tqcache/codec/kernels/sinusoid_rows.h"

namespace tqcache::codec {
namespace {

constexpr std::size_t kVectors = kSinusoidHalf / 16;  // of half a block

// Eight sinusoids, turned to the middle of a block: even and odd parts side by side.
TQC_AVX512 __m512 turn(const float* amplitudes, const float* phasors) {
  const __m512 ab = _mm512_loadu_ps(amplitudes), cs = _mm512_loadu_ps(phasors);
  const __m512 ba = _mm512_permute_ps(ab, 0xb1);
  return _mm512_fmsubadd_ps(ab, _mm512_moveldup_ps(cs), _mm512_mul_ps(ba, _mm512_movehdup_ps(cs)));
}

// An even and an odd part, eight times.
TQC_AVX512 __m512 spread_pair(const float* pair) {
  double both;
  __builtin_memcpy(&both, pair, sizeof(both));
  return _mm512_castpd_ps(_mm512_set1_pd(both));
}

// make_sinusoid_factors() for kQueries queries, which share the loads of the phasors and joins.
template <std::size_t kQueries>
TQC_AVX512_FUNCTION void make_factors(const SinusoidTable& table, const Sinusoids& sinusoids,
                                      std::size_t first, SinusoidRows& rows) {
  const std::size_t n_values = 2 * table.n_padded();
  for (std::size_t i = 0; i < n_values; i += 16) {
    TQC_UNROLL for (std::size_t q = 0; q < kQueries; ++q) {
      const float* const amplitudes = sinusoids.amplitudes + (first + q) * n_values;
      _mm512_store_ps(rows.factors[q] + i, turn(amplitudes + i, sinusoids.phasors + i));
    }
  }
  __m512 sums[kQueries][2];
  TQC_UNROLL for (std::size_t q = 0; q < kQueries; ++q) {
    _mm512_store_ps(rows.factors[q] + n_values, _mm512_setzero_ps());
    sums[q][0] = sums[q][1] = _mm512_setzero_ps();
  }
  const float* joins = table.joins.data();
  for (std::size_t i = table.n_fast; i < table.n_fast + table.n_joined(); i += 2, joins += 32) {
    TQC_UNROLL for (std::size_t k = 0; k < 2; ++k) {
      const __m512 join = _mm512_load_ps(joins + 16 * k);
      TQC_UNROLL for (std::size_t q = 0; q < kQueries; ++q) {
        const __m512 pair = spread_pair(rows.factors[q] + 2 * (i + k));
        sums[q][k] = _mm512_fmadd_ps(pair, join, sums[q][k]);
      }
    }
  }
  TQC_UNROLL for (std::size_t q = 0; q < kQueries; ++q) {
    float* const joined = rows.factors[q] + 2 * table.n_fast;
    _mm512_storeu_ps(joined, _mm512_add_ps(sums[q][0], sums[q][1]));
    _mm512_storeu_ps(joined + 16, _mm512_setzero_ps());
    _mm512_storeu_ps(joined + 32, _mm512_setzero_ps());
    joined[0] += sinusoids.constants[first + q];
  }
}

// Adds even and odd parts to sixteen tokens of either half of a block.
TQC_AVX512 void put_both_halves(float* scores, std::size_t vector, __m512 sum, __m512 difference) {
  const __m512i backwards = _mm512_setr_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  float* const upper = scores + kSinusoidHalf + 16 * vector;
  float* const lower = scores + kSinusoidHalf - 16 * (vector + 1);
  _mm512_storeu_ps(upper, _mm512_add_ps(_mm512_loadu_ps(upper), sum));
  const __m512 turned = _mm512_permutexvar_ps(backwards, difference);
  _mm512_storeu_ps(lower, _mm512_add_ps(_mm512_loadu_ps(lower), turned));
}

// Sums of floats from `row` on, which is in the even or the odd half of a row of the table.
template <std::size_t kQueries, std::size_t kTile>
TQC_AVX512 void sum_floats(const float* row, const SinusoidRows& rows, std::size_t part,
                           std::size_t n, __m512 (&sums)[kQueries][kTile]) {
  TQC_UNROLL for (std::size_t q = 0; q < kQueries; ++q) {
    TQC_UNROLL for (std::size_t i = 0; i < kTile; ++i) sums[q][i] = _mm512_setzero_ps();
  }
  for (std::size_t r = 0; r < n; ++r, row += kSinusoidRow) {
    __m512 values[kTile];
    TQC_UNROLL for (std::size_t i = 0; i < kTile; ++i) values[i] = _mm512_load_ps(row + 16 * i);
    TQC_UNROLL for (std::size_t q = 0; q < kQueries; ++q) {
      const __m512 factor = _mm512_set1_ps(rows.factors[q][2 * r + part]);
      TQC_UNROLL for (std::size_t i = 0; i < kTile; ++i) {
        sums[q][i] = _mm512_fmadd_ps(factor, values[i], sums[q][i]);
      }
    }
  }
}

template <std::size_t kQueries, std::size_t kTile>
TQC_AVX512_FUNCTION void add_floats(const SinusoidTable& table, const SinusoidRows& rows,
                                    OutputRows scores) {
  for (std::size_t v = 0; v < kVectors; v += kTile) {
    const float* const row = table.values.data() + 16 * v;
    __m512 even[kQueries][kTile], odd[kQueries][kTile];
    sum_floats<kQueries, kTile>(row, rows, 0, table.n_rows, even);
    sum_floats<kQueries, kTile>(row + kSinusoidHalf, rows, 1, table.n_rows, odd);
    TQC_UNROLL for (std::size_t q = 0; q < kQueries; ++q) {
      TQC_UNROLL for (std::size_t i = 0; i < kTile; ++i) {
        put_both_halves(scores.values + q * scores.stride, v + i,
                        _mm512_add_ps(even[q][i], odd[q][i]), _mm512_sub_ps(even[q][i], odd[q][i]));
      }
    }
  }
}

// Rows first to first + n - 1 of one query's factors as words.
TQC_AVX512_FUNCTION void round_to_words(const float* factors, std::size_t n, std::int32_t* pairs,
                                        float& multiplier) {
  __m512 sum = _mm512_setzero_ps(), most = sum;
  for (std::size_t i = 0; i < 2 * n; i += 16) {
    const __m512 magnitude = _mm512_abs_ps(_mm512_loadu_ps(factors + i));
    sum = _mm512_add_ps(sum, magnitude);
    most = _mm512_max_ps(most, magnitude);
  }
  const float step = int16_step(_mm512_reduce_max_ps(most), _mm512_reduce_add_ps(sum));
  const __m512 inverse = _mm512_set1_ps(1.0f / step);
  for (std::size_t i = 0; i < 2 * n; i += 16) {
    const __m512i steps = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(factors + i), inverse));
    // Both even parts of a pair of rows, and then both odd parts.
    const __m512i turned = _mm512_shuffle_epi32(steps, _MM_PERM_DBCA);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(pairs + i / 2), _mm512_cvtsepi32_epi16(turned));
  }
  multiplier = step / static_cast<float>(SinusoidTable::kUnit);
}

// Sums of words from `row` on, which is in the even or the odd half of a row of the table.
template <std::size_t kQueries, std::size_t kTile>
TQC_AVX512 void sum_words(const std::int16_t* row, const SinusoidRows& rows, std::size_t part,
                          std::size_t n, __m512i (&sums)[kQueries][kTile]) {
  TQC_UNROLL for (std::size_t q = 0; q < kQueries; ++q) {
    TQC_UNROLL for (std::size_t i = 0; i < kTile; ++i) sums[q][i] = _mm512_setzero_si512();
  }
  for (std::size_t r = 0; r < n; r += 2, row += 2 * kSinusoidRow) {
    __m512i values[kTile];
    TQC_UNROLL for (std::size_t i = 0; i < kTile; ++i) values[i] = _mm512_load_si512(row + 32 * i);
    TQC_UNROLL for (std::size_t q = 0; q < kQueries; ++q) {
      const __m512i factor = _mm512_set1_epi32(rows.words[q][r + part]);
      TQC_UNROLL for (std::size_t i = 0; i < kTile; ++i) {
        sums[q][i] = _mm512_dpwssd_epi32(sums[q][i], factor, values[i]);
      }
    }
  }
}

// Rows first to first + n - 1 of the table, of which rows.words holds the factors.
template <std::size_t kQueries, std::size_t kTile>
TQC_AVX512_FUNCTION void add_words(const SinusoidTable& table, const SinusoidRows& rows,
                                   std::size_t first, std::size_t n, OutputRows scores) {
  for (std::size_t v = 0; v < kVectors; v += kTile) {
    const std::int16_t* const row = table.words.data() + first * kSinusoidRow + 32 * v;
    __m512i even[kQueries][kTile], odd[kQueries][kTile];
    sum_words<kQueries, kTile>(row, rows, 0, n, even);
    sum_words<kQueries, kTile>(row + 2 * kSinusoidHalf, rows, 1, n, odd);
    TQC_UNROLL for (std::size_t q = 0; q < kQueries; ++q) {
      const __m512 multiplier = _mm512_set1_ps(rows.multipliers[q]);
      TQC_UNROLL for (std::size_t i = 0; i < kTile; ++i) {
        const __m512i sum = _mm512_add_epi32(even[q][i], odd[q][i]);
        const __m512i difference = _mm512_sub_epi32(even[q][i], odd[q][i]);
        put_both_halves(scores.values + q * scores.stride, v + i,
                        _mm512_mul_ps(_mm512_cvtepi32_ps(sum), multiplier),
                        _mm512_mul_ps(_mm512_cvtepi32_ps(difference), multiplier));
      }
    }
  }
}

// Vectors of tokens at a time: with these, sums fill half the registers.
constexpr std::size_t tile(std::size_t n_queries) { return n_queries < 3 ? 4 : 2; }

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

void avx512::add_sinusoids_exact(const SinusoidTable& table, const Sinusoids& sinusoids,
                                 OutputRows scores) {
  constexpr AddSinusoidGroup kGroups[] = {add_exact<1>, add_exact<2>, add_exact<3>, add_exact<4>};
  add_in_groups(kGroups, table, sinusoids, scores);
}

void avx512::add_sinusoids_fast(const SinusoidTable& table, const Sinusoids& sinusoids,
                                OutputRows scores) {
  constexpr AddSinusoidGroup kGroups[] = {add_fast<1>, add_fast<2>, add_fast<3>, add_fast<4>};
  add_in_groups(kGroups, table, sinusoids, scores);
}

}  // namespace tqcache::codec

#endif  // TQCACHE_X86
