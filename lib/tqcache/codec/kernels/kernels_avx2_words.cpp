// Codes of 5 to 8 bits with AVX2: centroids lie on sixteen straight pieces (code_tables.h), so that
// sixteen entries are looked up at once whatever the width; the words that they make are multiplied
// by VPMADDWD.

#include "tqcache/codec/kernels/kernels_avx2.h"

#ifdef TQCACHE_X86

#include "tqcache/codec/codec_spec.h"
#include "tqcache/codec/kernels/int16_step.h"
#include "tqcache/codec/kernels/line_pass_avx2.h"

namespace tqcache::codec {
namespace {

using namespace avx2;

constexpr std::size_t kMostRows = 4;
constexpr std::size_t kMostFactors = kMaxHeadDim > kBlockTokens ? kMaxHeadDim : kBlockTokens;

struct WordRows {
  alignas(32) std::int16_t words[kMostRows][kMostFactors];
  float multipliers[kMostRows];
};

TQC_AVX2 float largest_of(__m256 v) {
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  four = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}

TQC_AVX2 float sum_of(__m256 v) {
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  four = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}

// n values as words. Requires: n is a multiple of 16.
TQC_AVX2_FUNCTION float round_to_words(const float* values, std::size_t n, std::int16_t* words) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  __m256 sum = _mm256_setzero_ps(), most = sum;
  for (std::size_t i = 0; i < n; i += kWidth) {
    const __m256 magnitude = _mm256_andnot_ps(sign, _mm256_loadu_ps(values + i));
    sum = _mm256_add_ps(sum, magnitude);
    most = _mm256_max_ps(most, magnitude);
  }
  const float step = int16_step(largest_of(most), sum_of(sum));
  const __m256 inverse = _mm256_set1_ps(1.0f / step);
  for (std::size_t i = 0; i < n; i += 2 * kWidth) {
    const __m256 low = _mm256_mul_ps(_mm256_loadu_ps(values + i), inverse);
    const __m256 high = _mm256_mul_ps(_mm256_loadu_ps(values + i + kWidth), inverse);
    const __m256i packed = _mm256_packs_epi32(_mm256_cvtps_epi32(low), _mm256_cvtps_epi32(high));
    _mm256_store_si256(reinterpret_cast<__m256i*>(words + i),
                       _mm256_permute4x64_epi64(packed, 0xd8));
  }
  return step;
}

struct Pieces {
  __m256i high, low, slope;
};

TQC_AVX2 __m256i load_sixteen(const void* bytes) {
  return _mm256_broadcastsi128_si256(_mm_load_si128(static_cast<const __m128i*>(bytes)));
}

// The centroids of half a line as words: of the first two lanes in every four, and of the others.
template <int kBits>
TQC_AVX2 void look_up(const Pieces& pieces, __m256i codes, __m256i (&words)[2]) {
  const __m256i zero = _mm256_setzero_si256(), one = bytes_of(1);
  const __m256i rest = shift_and<0>(codes, (1 << (kBits - 4)) - 1);
  const __m256i piece = shift_and<4 - kBits>(codes, 0x0f);
  const __m256i slope = _mm256_shuffle_epi8(pieces.slope, piece);
  const __m256i low = _mm256_shuffle_epi8(pieces.low, piece);
  const __m256i high = _mm256_shuffle_epi8(pieces.high, piece);
  const __m256i along[2] = {
      _mm256_maddubs_epi16(_mm256_unpacklo_epi8(rest, low), _mm256_unpacklo_epi8(slope, one)),
      _mm256_maddubs_epi16(_mm256_unpackhi_epi8(rest, low), _mm256_unpackhi_epi8(slope, one))};
  words[0] = _mm256_add_epi16(along[0], _mm256_unpacklo_epi8(zero, high));
  words[1] = _mm256_add_epi16(along[1], _mm256_unpackhi_epi8(zero, high));
}

template <int kBits, std::size_t kRows>
TQC_AVX2 void add_unit(const std::uint8_t* unit, const Pieces& pieces, const std::int16_t* factors,
                       __m256i (&sums)[kRows][2]) {
  __m256i codes[kUnit];
  load_codes<kBits>(unit, codes);
  TQC_UNROLL for (std::size_t k = 0; k < kUnit; ++k) {
    __m256i words[2];
    look_up<kBits>(pieces, codes[k], words);
    TQC_UNROLL for (std::size_t r = 0; r < kRows; ++r) {
      long long four;
      __builtin_memcpy(&four, factors + r * kMostFactors + kLaneCodes * k, sizeof(four));
      const __m256i factor = _mm256_set1_epi64x(four);
      TQC_UNROLL for (std::size_t i = 0; i < 2; ++i) {
        sums[r][i] = _mm256_add_epi32(sums[r][i], _mm256_madd_epi16(words[i], factor));
        asm("" : "+x"(sums[r][i]));  // as in add_line() of line_pass_avx2.h
      }
    }
  }
}

// Rows first_row and on of the results, kRows of them.
template <int kBits, std::size_t kRows>
TQC_AVX2_FUNCTION void word_pass(const LinePass& pass, const CodeTables& tables,
                                 const WordRows& rows, std::size_t first_row) {
  const Pieces pieces = {load_sixteen(tables.piece_high), load_sixteen(tables.piece_low),
                         load_sixteen(tables.piece_slope)};
  for (std::size_t half = 0; half * kWidth < pass.n_columns; ++half) {
    const std::uint8_t* unit = lines_of_half(pass, half);
    const std::int16_t* factors = rows.words[0];
    __m256i sums[kRows][2];
    TQC_UNROLL for (std::size_t r = 0; r < kRows; ++r) {
      sums[r][0] = sums[r][1] = _mm256_setzero_si256();
    }
    for (std::size_t u = 0; u < pass.whole_units; ++u) {
      prefetch_unit<kBits>(unit);
      add_unit<kBits, kRows>(unit, pieces, factors, sums);
      unit += kBits * kLineBytes;
      factors += kUnitLaneCodes;
    }
    if (pass.tail_lines > 0) {
      WholeUnit whole;
      complete(unit, pass.tail_lines, whole);
      add_unit<kBits, kRows>(whole.lines, pieces, factors, sums);
    }
    const __m256 scales =
        _mm256_mul_ps(column_scales(pass, half * kWidth), _mm256_set1_ps(tables.piece_step));
    TQC_UNROLL for (std::size_t r = 0; r < kRows; ++r) {
      const __m256i sum = _mm256_hadd_epi32(sums[r][0], sums[r][1]);
      const __m256 factor = _mm256_mul_ps(scales, _mm256_set1_ps(rows.multipliers[r]));
      put_columns(pass, half * kWidth, first_row + r, pass.adds,
                  _mm256_mul_ps(_mm256_cvtepi32_ps(sum), factor));
    }
  }
}

template <int kBits>
void word_passes(const LinePass& pass, const CodeTables& tables, const FloatRows& rows,
                 std::size_t n_rows) {
  using Pass = void (*)(const LinePass&, const CodeTables&, const WordRows&, std::size_t);
  constexpr Pass kPasses[kMostRows] = {word_pass<kBits, 1>, word_pass<kBits, 2>,
                                       word_pass<kBits, 3>, word_pass<kBits, 4>};
  const std::size_t n_factors = (pass.whole_units + (pass.tail_lines > 0 ? 1 : 0)) * kUnitLaneCodes;
  WordRows words;
  for (std::size_t first = 0; first < n_rows; first += kMostRows) {
    const std::size_t left = n_rows - first;
    const std::size_t n = left < kMostRows ? left : kMostRows;
    for (std::size_t r = 0; r < n; ++r) {
      words.multipliers[r] =
          round_to_words(rows.values + (first + r) * rows.stride, n_factors, words.words[r]);
    }
    kPasses[n - 1](pass, tables, words, first);
  }
}

}  // namespace

void avx2::run_words(const LinePass& pass, const CodeTables& tables, const FloatRows& rows,
                     std::size_t n_rows) {
  using Run = void (*)(const LinePass&, const CodeTables&, const FloatRows&, std::size_t);
  constexpr Run kRuns[] = {word_passes<5>, word_passes<6>, word_passes<7>, word_passes<8>};
  kRuns[tables.bits - CodeTables::kMinPieceBits](pass, tables, rows, n_rows);
}

}  // namespace tqcache::codec

#endif  // TQCACHE_X86
