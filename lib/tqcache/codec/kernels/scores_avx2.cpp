// Scores with AVX2, and sums of values in f32: bytes by VPSHUFB and VPMADDUBSW, floats by VPERMPS
// and FMA.

#include "tqcache/codec/kernels/packed_avx2.h"
#include "tqcache/codec_spec.h"

#ifdef TQCACHE_X86

namespace tqcache::codec {
namespace {

// Processes kRows rows of the factors from first_row on. `adds`: to the previous content.
template <int kBits, std::size_t kRows>
TQC_LANES_FUNCTION void byte_pass(const LinePass& pass, const std::uint8_t* table_bytes, float step,
                                  const ByteRows& rows, std::size_t first_row, bool adds) {
  constexpr std::size_t kChains = byte_chains(kRows);
  const ByteTable<kBits> table = load_table<kBits>(table_bytes);
  const RowConstants<kRows> constants(rows, first_row, CodeTables::kNarrowOffset, step);
  for (std::size_t half = 0; half * kWidth < pass.n_columns; ++half) {
    const std::uint8_t* unit = lines_of_half(pass, half);
    const std::int8_t* factors = rows.values + first_row * rows.stride;
    __m256i sums[kRows][kChains];
    TQC_UNROLL for (std::size_t r = 0; r < kRows; ++r) {
      TQC_UNROLL for (std::size_t c = 0; c < kChains; ++c) sums[r][c] = _mm256_setzero_si256();
      sums[r][0] = _mm256_set1_epi32(constants.offsets[r]);
    }
    for (std::size_t u = 0; u < pass.whole_units; ++u) {
      prefetch_unit<kBits>(unit);
      add_unit<Unsigned::kCentroids>(unit, table, factors, rows.stride, sums);
      unit += kBits * kLineBytes;
      factors += kUnitLaneCodes;
    }
    if (pass.tail_lines > 0) {
      WholeUnit whole;
      complete(unit, pass.tail_lines, whole);
      add_unit<Unsigned::kCentroids>(whole.lines, table, factors, rows.stride, sums);
    }
    const __m256 scales = column_scales(pass, half * kWidth);
    TQC_UNROLL for (std::size_t r = 0; r < kRows; ++r) {
      const std::size_t row = first_row + r;
      __m256i sum = sums[r][0];
      TQC_UNROLL for (std::size_t c = 1; c < kChains; ++c) sum = _mm256_add_epi32(sum, sums[r][c]);
      const __m256 factor = _mm256_mul_ps(scales, _mm256_set1_ps(constants.factors[r]));
      const bool first = !adds && (rows.n_levels == 1 || row % 2 == 0);
      put_columns(pass, half * kWidth, rows.n_levels == 1 ? row : row / 2, !first,
                  _mm256_mul_ps(_mm256_cvtepi32_ps(sum), factor));
    }
  }
}

template <int kBits>
void byte_passes(const LinePass& pass, const CodeTables& tables, const ByteRows& rows,
                 std::size_t n_rows) {
  const std::uint8_t* const bytes = tables.narrow;
  const float step = tables.narrow_step;
  std::size_t row = 0;
  for (; row + 4 <= n_rows; row += 4) {
    byte_pass<kBits, 4>(pass, bytes, step, rows, row, pass.adds);
  }
  for (; row + 2 <= n_rows; row += 2) {
    byte_pass<kBits, 2>(pass, bytes, step, rows, row, pass.adds);
  }
  for (; row < n_rows; ++row) byte_pass<kBits, 1>(pass, bytes, step, rows, row, pass.adds);
}

template <int kBits, std::size_t kRows>
TQC_LANES void add_unit(const std::uint8_t* unit, const FloatTable<kBits>& table,
                        const float* factors, std::size_t stride,
                        __m256 (&sums)[kRows][float_chains(kRows)]) {
  __m256i codes[kUnit];
  load_codes<kBits>(unit, codes);
  TQC_UNROLL for (std::size_t k = 0; k < kUnit; ++k) {
    TQC_UNROLL for (std::size_t j = 0; j < kLaneCodes; ++j) {
      const __m256 values = look_up<kBits>(table, codes[k]);
      codes[k] = _mm256_srli_epi32(codes[k], 8);
      TQC_UNROLL for (std::size_t r = 0; r < kRows; ++r) {
        const __m256 factor = _mm256_set1_ps(factors[r * stride + 4 * k + j]);
        __m256& sum = sums[r][j % float_chains(kRows)];
        sum = _mm256_fmadd_ps(values, factor, sum);
      }
    }
  }
}

template <int kBits, std::size_t kRows>
TQC_LANES_FUNCTION void float_pass(const LinePass& pass, const float* table_values,
                                   const FloatRows& rows, std::size_t first_row) {
  constexpr std::size_t kChains = float_chains(kRows);
  const FloatTable<kBits> table = load_table<kBits>(table_values);
  for (std::size_t half = 0; half * kWidth < pass.n_columns; ++half) {
    const std::uint8_t* unit = lines_of_half(pass, half);
    const float* factors = rows.values + first_row * rows.stride;
    __m256 sums[kRows][kChains];
    TQC_UNROLL for (std::size_t r = 0; r < kRows; ++r) {
      TQC_UNROLL for (std::size_t c = 0; c < kChains; ++c) sums[r][c] = _mm256_setzero_ps();
    }
    for (std::size_t u = 0; u < pass.whole_units; ++u) {
      add_unit<kBits, kRows>(unit, table, factors, rows.stride, sums);
      unit += kBits * kLineBytes;
      factors += kUnitLaneCodes;
    }
    if (pass.tail_lines > 0) {
      WholeUnit whole;
      complete(unit, pass.tail_lines, whole);
      add_unit<kBits, kRows>(whole.lines, table, factors, rows.stride, sums);
    }
    const __m256 scales = column_scales(pass, half * kWidth);
    TQC_UNROLL for (std::size_t r = 0; r < kRows; ++r) {
      __m256 sum = sums[r][0];
      TQC_UNROLL for (std::size_t c = 1; c < kChains; ++c) sum = _mm256_add_ps(sum, sums[r][c]);
      put_columns(pass, half * kWidth, first_row + r, pass.adds, _mm256_mul_ps(sum, scales));
    }
  }
}

template <int kBits>
void float_passes(const LinePass& pass, const CodeTables& tables, const FloatRows& rows,
                  std::size_t n_rows) {
  std::size_t row = 0;
  for (; row + 4 <= n_rows; row += 4) float_pass<kBits, 4>(pass, tables.values, rows, row);
  for (; row < n_rows; ++row) float_pass<kBits, 1>(pass, tables.values, rows, row);
}

// Requires: at most CodeTables::kMaxNarrowBits bits.
void run_bytes(const LinePass& pass, const CodeTables& tables, const ByteRows& rows,
               std::size_t n_rows) {
  using Run = void (*)(const LinePass&, const CodeTables&, const ByteRows&, std::size_t);
  constexpr Run kRuns[] = {byte_passes<1>, byte_passes<2>, byte_passes<3>, byte_passes<4>};
  kRuns[tables.bits - 1](pass, tables, rows, n_rows);
}

}  // namespace

void avx2::run_floats(const LinePass& pass, const CodeTables& tables, const FloatRows& rows,
                      std::size_t n_rows) {
  using Run = void (*)(const LinePass&, const CodeTables&, const FloatRows&, std::size_t);
  constexpr Run kRuns[] = {float_passes<1>, float_passes<2>, float_passes<3>, float_passes<4>,
                           float_passes<5>, float_passes<6>, float_passes<7>, float_passes<8>};
  kRuns[tables.bits - 1](pass, tables, rows, n_rows);
}

// Codes of 5 to 8 bits with AVX2: centroids lie on sixteen linear pieces (code_tables.h), so that
// one look-up of sixteen entries serves every width; VPMADDWD multiplies the resulting int16.

namespace {

constexpr std::size_t kMostRows = 4;
constexpr std::size_t kMostFactors = kMaxHeadDim > kBlockTokens ? kMaxHeadDim : kBlockTokens;

struct Int16Rows {
  alignas(32) std::int16_t int16[kMostRows][kMostFactors];
  float multipliers[kMostRows];
};

// n values as int16. Requires: n is a multiple of 16.
TQC_LANES_FUNCTION float round_to_int16(const float* values, std::size_t n, std::int16_t* int16) {
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
    _mm256_store_si256(reinterpret_cast<__m256i*>(int16 + i),
                       _mm256_permute4x64_epi64(packed, 0xd8));
  }
  return step;
}

struct Pieces {
  __m256i high, low, slope;
};

TQC_LANES __m256i load_sixteen(const void* bytes) {
  return _mm256_broadcastsi128_si256(_mm_load_si128(static_cast<const __m128i*>(bytes)));
}

// The centroids of half a line as int16: for the first two lanes in every four, and for the others.
template <int kBits>
TQC_LANES void look_up(const Pieces& pieces, __m256i codes, __m256i (&int16)[2]) {
  const __m256i zero = _mm256_setzero_si256(), one = bytes_of(1);
  const __m256i rest = shift_and<0>(codes, (1 << (kBits - 4)) - 1);
  const __m256i piece = shift_and<4 - kBits>(codes, 0x0f);
  const __m256i slope = _mm256_shuffle_epi8(pieces.slope, piece);
  const __m256i low = _mm256_shuffle_epi8(pieces.low, piece);
  const __m256i high = _mm256_shuffle_epi8(pieces.high, piece);
  const __m256i along[2] = {
      _mm256_maddubs_epi16(_mm256_unpacklo_epi8(rest, low), _mm256_unpacklo_epi8(slope, one)),
      _mm256_maddubs_epi16(_mm256_unpackhi_epi8(rest, low), _mm256_unpackhi_epi8(slope, one))};
  int16[0] = _mm256_add_epi16(along[0], _mm256_unpacklo_epi8(zero, high));
  int16[1] = _mm256_add_epi16(along[1], _mm256_unpackhi_epi8(zero, high));
}

template <int kBits, std::size_t kRows>
TQC_LANES void add_unit(const std::uint8_t* unit, const Pieces& pieces, const std::int16_t* factors,
                        __m256i (&sums)[kRows][2]) {
  __m256i codes[kUnit];
  load_codes<kBits>(unit, codes);
  TQC_UNROLL for (std::size_t k = 0; k < kUnit; ++k) {
    __m256i int16[2];
    look_up<kBits>(pieces, codes[k], int16);
    TQC_UNROLL for (std::size_t r = 0; r < kRows; ++r) {
      long long four;
      __builtin_memcpy(&four, factors + r * kMostFactors + kLaneCodes * k, sizeof(four));
      const __m256i factor = _mm256_set1_epi64x(four);
      TQC_UNROLL for (std::size_t i = 0; i < 2; ++i) {
        sums[r][i] = _mm256_add_epi32(sums[r][i], _mm256_madd_epi16(int16[i], factor));
        asm("" : "+x"(sums[r][i]));  // as in add_line() of packed_avx2.h
      }
    }
  }
}

// Computes kRows rows of the results from first_row on.
template <int kBits, std::size_t kRows>
TQC_LANES_FUNCTION void int16_pass(const LinePass& pass, const CodeTables& tables,
                                   const Int16Rows& rows, std::size_t first_row) {
  const Pieces pieces = {load_sixteen(tables.piece_high), load_sixteen(tables.piece_low),
                         load_sixteen(tables.piece_slope)};
  for (std::size_t half = 0; half * kWidth < pass.n_columns; ++half) {
    const std::uint8_t* unit = lines_of_half(pass, half);
    const std::int16_t* factors = rows.int16[0];
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
void int16_passes(const LinePass& pass, const CodeTables& tables, const FloatRows& rows,
                  std::size_t n_rows) {
  using Pass = void (*)(const LinePass&, const CodeTables&, const Int16Rows&, std::size_t);
  constexpr Pass kPasses[kMostRows] = {int16_pass<kBits, 1>, int16_pass<kBits, 2>,
                                       int16_pass<kBits, 3>, int16_pass<kBits, 4>};
  const std::size_t n_factors = (pass.whole_units + (pass.tail_lines > 0 ? 1 : 0)) * kUnitLaneCodes;
  Int16Rows int16;
  for (std::size_t first = 0; first < n_rows; first += kMostRows) {
    const std::size_t left = n_rows - first;
    const std::size_t n = left < kMostRows ? left : kMostRows;
    for (std::size_t r = 0; r < n; ++r) {
      int16.multipliers[r] =
          round_to_int16(rows.values + (first + r) * rows.stride, n_factors, int16.int16[r]);
    }
    kPasses[n - 1](pass, tables, int16, first);
  }
}

}  // namespace

void avx2::run_int16(const LinePass& pass, const CodeTables& tables, const FloatRows& rows,
                     std::size_t n_rows) {
  using Run = void (*)(const LinePass&, const CodeTables&, const FloatRows&, std::size_t);
  constexpr Run kRuns[] = {int16_passes<5>, int16_passes<6>, int16_passes<7>, int16_passes<8>};
  kRuns[tables.bits - CodeTables::kMinPieceBits](pass, tables, rows, n_rows);
}

void avx2::score_exact(const PackedBlock& block, const CodeTables& tables, const QueryRows& queries,
                       OutputRows scores) {
  run_floats(key_pass(block, scores), tables, {queries.values, queries.stride}, queries.n_queries);
}

void avx2::score_fast(const PackedBlock& block, const CodeTables& tables, const QueryRows& queries,
                      OutputRows scores) {
  const LinePass pass = key_pass(block, scores);
  if (tables.bits <= CodeTables::kMaxNarrowBits) {
    return run_bytes(pass, tables, byte_rows(queries), queries.n_queries * queries.n_levels);
  }
  const auto run = tables.piece_step > 0.0f ? avx2::run_int16 : avx2::run_floats;
  run(pass, tables, {queries.values, queries.stride}, queries.n_queries);
}

}  // namespace tqcache::codec

#endif  // TQCACHE_X86
