// Scores with AVX2, and sums of values in f32: bytes by VPSHUFB and VPMADDUBSW, floats by VPERMPS
// and FMA.

#include "tqcache/codec/kernels/kernels_avx2.h"

#ifdef TQCACHE_X86

#include "tqcache/codec/kernels/line_pass_avx2.h"

namespace tqcache::codec {
namespace {

using namespace avx2;

// Rows first_row and on of the factors, kRows of them. `adds`: to what is there already.
template <int kBits, std::size_t kRows>
TQC_AVX2_FUNCTION void byte_pass(const LinePass& pass, const std::uint8_t* table_bytes, float step,
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
TQC_AVX2 void add_unit(const std::uint8_t* unit, const FloatTable<kBits>& table,
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
TQC_AVX2_FUNCTION void float_pass(const LinePass& pass, const float* table_values,
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

// Requires: up to CodeTables::kMaxNarrowBits.
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
  const auto run = tables.piece_step > 0.0f ? run_words : run_floats;
  run(pass, tables, {queries.values, queries.stride}, queries.n_queries);
}

}  // namespace tqcache::codec

#endif  // TQCACHE_X86
