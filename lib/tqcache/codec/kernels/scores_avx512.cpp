// Scores with AVX-512, and sums of values in f32: bytes by VPERMB and VPDPBUSD, floats by VPERMPS
// and FMA.

#include "tqcache/codec/kernels/packed_avx512.h"

#ifdef TQCACHE_X86

namespace tqcache::codec {
namespace {

template <int kBits, std::size_t kRows>
TQC_LANES void add_unit(const std::uint8_t* unit, const ByteTable<kBits>& table,
                        const std::int8_t* factors, std::size_t stride,
                        __m512i (&sums)[kRows][chains(kRows)]) {
  __m512i values[kUnit];
  look_up_unit<kBits>(unit, table, values);
  TQC_UNROLL for (std::size_t k = 0; k < kUnit; ++k) {
    TQC_UNROLL for (std::size_t r = 0; r < kRows; ++r) {
      int four;
      __builtin_memcpy(&four, factors + r * stride + 4 * k, 4);
      __m512i& sum = sums[r][k % chains(kRows)];
      sum = _mm512_dpbusd_epi32(sum, values[k], _mm512_set1_epi32(four));
    }
  }
}

// Processes kRows rows of the factors from first_row on. `adds`: to the previous content.
template <int kBits, std::size_t kRows>
TQC_LANES_FUNCTION void byte_pass(const LinePass& pass, const std::uint8_t* table_bytes, float step,
                                  const ByteRows& rows, std::size_t first_row, bool adds) {
  constexpr std::size_t kChains = chains(kRows);
  constexpr std::size_t kUnitBytes = unit_lines(kBits) * kLineBytes;
  const ByteTable<kBits> table = load_table<kBits>(table_bytes);
  const RowConstants<kRows> constants(rows, first_row, 128, step);
  for (std::size_t g = 0; g < pass.n_groups; ++g) {
    const std::uint8_t* unit = pass.lines + g * pass.group_bytes;
    const std::int8_t* factors = rows.values + first_row * rows.stride;
    __m512i sums[kRows][kChains];
    TQC_UNROLL for (std::size_t r = 0; r < kRows; ++r) {
      TQC_UNROLL for (std::size_t c = 0; c < kChains; ++c) sums[r][c] = _mm512_setzero_si512();
      sums[r][0] = _mm512_set1_epi32(constants.offsets[r]);
    }
    for (std::size_t u = 0; u < pass.whole_units; ++u) {
      prefetch_unit<kBits>(unit);
      add_unit<kBits, kRows>(unit, table, factors, rows.stride, sums);
      unit += kUnitBytes;
      factors += kUnitLaneCodes;
    }
    if (pass.tail_lines > 0) {
      WholeUnit whole;
      complete(unit, pass.tail_lines, whole);
      add_unit<kBits, kRows>(whole.lines, table, factors, rows.stride, sums);
    }
    const __m512 scales = column_scales(pass, g);
    TQC_UNROLL for (std::size_t r = 0; r < kRows; ++r) {
      const std::size_t row = first_row + r;
      __m512i sum = sums[r][0];
      TQC_UNROLL for (std::size_t c = 1; c < kChains; ++c) sum = _mm512_add_epi32(sum, sums[r][c]);
      const __m512 factor = _mm512_mul_ps(scales, _mm512_set1_ps(constants.factors[r]));
      const bool first = !adds && (rows.n_levels == 1 || row % 2 == 0);
      put_columns(pass, g, rows.n_levels == 1 ? row : row / 2, !first,
                  _mm512_mul_ps(_mm512_cvtepi32_ps(sum), factor));
    }
  }
}

// Processes all rows with one table.
template <int kBits>
void table_passes(const LinePass& pass, const std::uint8_t* bytes, float step, const ByteRows& rows,
                  std::size_t n_rows, bool adds) {
  std::size_t row = 0;
  if constexpr (is_common(kBits)) {
    for (; row + 8 <= n_rows; row += 8) byte_pass<kBits, 8>(pass, bytes, step, rows, row, adds);
  }
  for (; row + 4 <= n_rows; row += 4) byte_pass<kBits, 4>(pass, bytes, step, rows, row, adds);
  if constexpr (is_common(kBits)) {
    for (; row + 2 <= n_rows; row += 2) byte_pass<kBits, 2>(pass, bytes, step, rows, row, adds);
  }
  for (; row < n_rows; ++row) byte_pass<kBits, 1>(pass, bytes, step, rows, row, adds);
}

template <int kBits>
void byte_passes(const LinePass& pass, const CodeTables& tables, const ByteRows& rows,
                 std::size_t n_rows) {
  if constexpr (kBits == 8) {
    table_passes<kPlain>(pass, nullptr, tables.linear_step, rows, n_rows, pass.adds);
    table_passes<8>(pass, tables.remainder, tables.remainder_step, rows, n_rows, /*adds=*/true);
  } else if (tables.n_levels == 1) {
    table_passes<kBits>(pass, tables.bytes[0], tables.step, rows, n_rows, pass.adds);
  } else {
    table_passes<kBits>(pass, tables.bytes[0], 256.0f * tables.step, rows, n_rows, pass.adds);
    table_passes<kBits>(pass, tables.bytes[1], tables.step, rows, n_rows, /*adds=*/true);
  }
}

template <int kBits, std::size_t kRows>
TQC_LANES void add_unit(const std::uint8_t* unit, const FloatTable<kBits>& table,
                        const float* factors, std::size_t stride,
                        __m512 (&sums)[kRows][chains(kRows)]) {
  __m512i codes[kUnit];
  load_codes<kBits>(unit, codes);
  TQC_UNROLL for (std::size_t k = 0; k < kUnit; ++k) {
    TQC_UNROLL for (std::size_t j = 0; j < kLaneCodes; ++j) {
      const __m512 values = look_up<kBits>(table, codes[k]);
      codes[k] = _mm512_srli_epi32(codes[k], 8);
      TQC_UNROLL for (std::size_t r = 0; r < kRows; ++r) {
        const float factor = factors[r * stride + 4 * k + j];
        __m512& sum = sums[r][j % chains(kRows)];
        sum = _mm512_fmadd_ps(values, _mm512_set1_ps(factor), sum);
      }
    }
  }
}

template <int kBits, std::size_t kRows>
TQC_LANES_FUNCTION void float_pass(const LinePass& pass, const float* table_values,
                                   const FloatRows& rows, std::size_t first_row) {
  constexpr std::size_t kChains = chains(kRows);
  constexpr std::size_t kUnitBytes = kBits * kLineBytes;
  const FloatTable<kBits> table = load_table<kBits>(table_values);
  for (std::size_t g = 0; g < pass.n_groups; ++g) {
    const std::uint8_t* unit = pass.lines + g * pass.group_bytes;
    const float* factors = rows.values + first_row * rows.stride;
    __m512 sums[kRows][kChains];
    TQC_UNROLL for (std::size_t r = 0; r < kRows; ++r) {
      TQC_UNROLL for (std::size_t c = 0; c < kChains; ++c) sums[r][c] = _mm512_setzero_ps();
    }
    for (std::size_t u = 0; u < pass.whole_units; ++u) {
      prefetch_unit<kBits>(unit);
      add_unit<kBits, kRows>(unit, table, factors, rows.stride, sums);
      unit += kUnitBytes;
      factors += kUnitLaneCodes;
    }
    if (pass.tail_lines > 0) {
      WholeUnit whole;
      complete(unit, pass.tail_lines, whole);
      add_unit<kBits, kRows>(whole.lines, table, factors, rows.stride, sums);
    }
    const __m512 scales = column_scales(pass, g);
    TQC_UNROLL for (std::size_t r = 0; r < kRows; ++r) {
      __m512 sum = sums[r][0];
      TQC_UNROLL for (std::size_t c = 1; c < kChains; ++c) sum = _mm512_add_ps(sum, sums[r][c]);
      put_columns(pass, g, first_row + r, pass.adds, _mm512_mul_ps(sum, scales));
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

void run_bytes(const LinePass& pass, const CodeTables& tables, const ByteRows& rows,
               std::size_t n_rows) {
  using Run = void (*)(const LinePass&, const CodeTables&, const ByteRows&, std::size_t);
  constexpr Run kRuns[] = {byte_passes<1>, byte_passes<2>, byte_passes<3>, byte_passes<4>,
                           byte_passes<5>, byte_passes<6>, byte_passes<7>, byte_passes<8>};
  kRuns[tables.bits - 1](pass, tables, rows, n_rows);
}

}  // namespace

void avx512::run_floats(const LinePass& pass, const CodeTables& tables, const FloatRows& rows,
                        std::size_t n_rows) {
  using Run = void (*)(const LinePass&, const CodeTables&, const FloatRows&, std::size_t);
  constexpr Run kRuns[] = {float_passes<1>, float_passes<2>, float_passes<3>, float_passes<4>,
                           float_passes<5>, float_passes<6>, float_passes<7>, float_passes<8>};
  kRuns[tables.bits - 1](pass, tables, rows, n_rows);
}

void avx512::score_exact(const PackedBlock& block, const CodeTables& tables,
                         const QueryRows& queries, OutputRows scores) {
  run_floats(key_pass(block, scores), tables, {queries.values, queries.stride}, queries.n_queries);
}

void avx512::score_fast(const PackedBlock& block, const CodeTables& tables,
                        const QueryRows& queries, OutputRows scores) {
  run_bytes(key_pass(block, scores), tables, byte_rows(queries),
            queries.n_queries * queries.n_levels);
}

}  // namespace tqcache::codec

#endif  // TQCACHE_X86
