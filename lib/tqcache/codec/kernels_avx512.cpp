// Packed codes with AVX-512: bytes by VPERMB and VPDPBUSD, floats by VPERMPS and FMA.
//
// VPERMB looks at six bits of an index and VPERMPS at four, so what stands above a code need not
// be cleared; and a table whose entry i is c[i >> s] saves the shift by s as well.

#include "tqcache/codec/kernels_avx512.h"

#ifdef TQCACHE_X86

#include "tqcache/codec/codes_avx512.h"
#include "tqcache/codec/line_pass.h"

namespace tqcache::codec {
namespace {

using namespace avx512;

// A table of bytes in registers. Of 2 and 3 bits: for a code at bit 0, and at the bits above it
// that VPERMB still sees.
template <int kBits>
struct ByteTable {
  static constexpr int kParts = kBits == 2 ? 3 : kBits == 3 || kBits == 7 ? 2 : kBits == 8 ? 4 : 1;
  __m512i parts[kParts];
};

template <>
struct ByteTable<kPlain> {};

template <int kBits>
TQC_AVX512 ByteTable<kBits> load_table(const std::uint8_t* bytes) {
  ByteTable<kBits> table;
  if constexpr (kBits == 2 || kBits == 3) {
    const __m512i all = load(bytes);
    const __m512i index = load(avx512::kIota);
    table.parts[0] = all;
    table.parts[1] = _mm512_permutexvar_epi8(shift<-kBits>(index), all);
    if constexpr (kBits == 2) table.parts[2] = _mm512_permutexvar_epi8(shift<-4>(index), all);
  } else if constexpr (kBits != kPlain) {
    for (int i = 0; i < ByteTable<kBits>::kParts; ++i) table.parts[i] = load(bytes + 64 * i);
  }
  return table;
}

template <int kBits>
TQC_AVX512 __m512i look_up(const ByteTable<kBits>& table, __m512i codes) {
  if constexpr (kBits == 8) {
    const __m512i low = _mm512_permutex2var_epi8(table.parts[0], codes, table.parts[1]);
    const __m512i high = _mm512_permutex2var_epi8(table.parts[2], codes, table.parts[3]);
    return _mm512_mask_blend_epi8(_mm512_movepi8_mask(codes), low, high);
  } else if constexpr (kBits == 7) {
    return _mm512_permutex2var_epi8(table.parts[0], codes, table.parts[1]);
  } else {
    return _mm512_permutexvar_epi8(codes, table.parts[0]);
  }
}

template <int kBits>
TQC_AVX512 void look_up_unit(const std::uint8_t* unit, const ByteTable<kBits>& table,
                             __m512i (&values)[kUnit]) {
  if constexpr (kBits == 2) {
    TQC_UNROLL for (int g = 0; g < 2; ++g) {
      const __m512i line = load(unit + 64 * g);
      values[4 * g] = _mm512_permutexvar_epi8(line, table.parts[0]);
      values[4 * g + 1] = _mm512_permutexvar_epi8(line, table.parts[1]);
      values[4 * g + 2] = _mm512_permutexvar_epi8(line, table.parts[2]);
      values[4 * g + 3] = _mm512_permutexvar_epi8(shift<-2>(line), table.parts[2]);
    }
  } else if constexpr (kBits == 3) {
    __m512i fields[4];
    load_sixes(unit, fields);
    TQC_UNROLL for (int f = 0; f < 4; ++f) {
      values[2 * f] = _mm512_permutexvar_epi8(fields[f], table.parts[0]);
      values[2 * f + 1] = _mm512_permutexvar_epi8(fields[f], table.parts[1]);
    }
  } else if constexpr (kBits == kPlain) {
    load_codes<8>(unit, values);
  } else {
    load_codes<kBits>(unit, values);
    TQC_UNROLL for (std::size_t k = 0; k < kUnit; ++k) values[k] = look_up<kBits>(table, values[k]);
  }
}

// Widths of codes that are worth a kernel for every number of rows.
constexpr bool is_common(int bits) {
  return bits == 2 || bits == 3 || bits == 4 || bits == 8 || bits == kPlain;
}

// Chains of additions a row: one would wait for its own latency.
constexpr std::size_t chains(std::size_t rows) { return rows == 1 ? 4 : rows == 2 ? 2 : 1; }

template <int kBits, std::size_t kRows>
TQC_AVX512 void add_unit(const std::uint8_t* unit, const ByteTable<kBits>& table,
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

// A cut unit, made whole with zeros.
struct WholeUnit {
  alignas(64) std::uint8_t lines[kUnitLines * kLineBytes];
};

TQC_AVX512 void complete(const std::uint8_t* lines, std::size_t n, WholeUnit& unit) {
  for (std::size_t l = 0; l < kUnitLines; ++l) {
    const __m512i line = l < n ? load(lines + l * kLineBytes) : _mm512_setzero_si512();
    _mm512_store_si512(unit.lines + l * kLineBytes, line);
  }
}

// Puts one group's sums into the columns of one output row, or adds them.
TQC_AVX512 void put_columns(const LinePass& pass, std::size_t group, std::size_t row, bool add,
                            __m512 sums) {
  const std::size_t first = group * kLanes;
  const __mmask16 lanes = first_lanes(pass.n_columns - first);
  if (pass.lane_scales != nullptr) {
    const __m256i scales = _mm256_maskz_loadu_epi16(lanes, pass.lane_scales + first);
    sums = _mm512_mul_ps(sums, _mm512_cvtph_ps(scales));
  }
  float* const out = pass.out.values + row * pass.out.stride + first;
  if (add) sums = _mm512_add_ps(_mm512_maskz_loadu_ps(lanes, out), sums);
  _mm512_mask_storeu_ps(out, lanes, sums);
}

// Rows first_row and on of the factors, kRows of them. `adds`: to what is there already.
template <int kBits, std::size_t kRows>
TQC_AVX512_FUNCTION void byte_pass(const LinePass& pass, const std::uint8_t* table_bytes,
                                   float step, const ByteRows& rows, std::size_t first_row,
                                   bool adds) {
  constexpr std::size_t kChains = chains(kRows);
  constexpr std::size_t kUnitBytes = unit_lines(kBits) * kLineBytes;
  const ByteTable<kBits> table = load_table<kBits>(table_bytes);
  for (std::size_t g = 0; g < pass.n_groups; ++g) {
    const std::uint8_t* unit = pass.lines + g * pass.group_bytes;
    const std::int8_t* factors = rows.values + first_row * rows.stride;
    __m512i sums[kRows][kChains];
    TQC_UNROLL for (std::size_t r = 0; r < kRows; ++r) {
      const std::size_t row = first_row + r;
      TQC_UNROLL for (std::size_t c = 0; c < kChains; ++c) sums[r][c] = _mm512_setzero_si512();
      sums[r][0] = _mm512_set1_epi32(-128 * rows.sums[row]);
    }
    for (std::size_t u = 0; u < pass.whole_units; ++u) {
      add_unit<kBits, kRows>(unit, table, factors, rows.stride, sums);
      unit += kUnitBytes;
      factors += kUnitLaneCodes;
    }
    if (pass.tail_lines > 0) {
      WholeUnit whole;
      complete(unit, pass.tail_lines, whole);
      add_unit<kBits, kRows>(whole.lines, table, factors, rows.stride, sums);
    }
    TQC_UNROLL for (std::size_t r = 0; r < kRows; ++r) {
      const std::size_t row = first_row + r;
      __m512i sum = sums[r][0];
      TQC_UNROLL for (std::size_t c = 1; c < kChains; ++c) sum = _mm512_add_epi32(sum, sums[r][c]);
      const __m512 factor = _mm512_set1_ps(step * rows.multipliers[row]);
      const bool first = !adds && (rows.n_levels == 1 || row % 2 == 0);
      put_columns(pass, g, rows.n_levels == 1 ? row : row / 2, !first,
                  _mm512_mul_ps(_mm512_cvtepi32_ps(sum), factor));
    }
  }
}

// All rows by one table.
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

template <int kBits>
struct FloatTable {
  __m512 low, high;     // up to 5 bits
  const float* values;  // above
};

template <int kBits>
TQC_AVX512 __m512 look_up(const FloatTable<kBits>& table, __m512i codes) {
  if constexpr (kBits <= 4) return _mm512_permutexvar_ps(codes, table.low);
  if constexpr (kBits == 5) return _mm512_permutex2var_ps(table.low, codes, table.high);
  const __m512i index = _mm512_and_si512(codes, _mm512_set1_epi32(0xff));
  return _mm512_i32gather_ps(index, table.values, 4);
}

template <int kBits, std::size_t kRows>
TQC_AVX512 void add_unit(const std::uint8_t* unit, const FloatTable<kBits>& table,
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
TQC_AVX512_FUNCTION void float_pass(const LinePass& pass, const float* table_values,
                                    const FloatRows& rows, std::size_t first_row) {
  constexpr std::size_t kChains = chains(kRows);
  constexpr std::size_t kUnitBytes = kBits * kLineBytes;
  const FloatTable<kBits> table = {_mm512_loadu_ps(table_values),
                                   _mm512_loadu_ps(table_values + 16), table_values};
  for (std::size_t g = 0; g < pass.n_groups; ++g) {
    const std::uint8_t* unit = pass.lines + g * pass.group_bytes;
    const float* factors = rows.values + first_row * rows.stride;
    __m512 sums[kRows][kChains];
    TQC_UNROLL for (std::size_t r = 0; r < kRows; ++r) {
      TQC_UNROLL for (std::size_t c = 0; c < kChains; ++c) sums[r][c] = _mm512_setzero_ps();
    }
    for (std::size_t u = 0; u < pass.whole_units; ++u) {
      add_unit<kBits, kRows>(unit, table, factors, rows.stride, sums);
      unit += kUnitBytes;
      factors += kUnitLaneCodes;
    }
    if (pass.tail_lines > 0) {
      WholeUnit whole;
      complete(unit, pass.tail_lines, whole);
      add_unit<kBits, kRows>(whole.lines, table, factors, rows.stride, sums);
    }
    TQC_UNROLL for (std::size_t r = 0; r < kRows; ++r) {
      __m512 sum = sums[r][0];
      TQC_UNROLL for (std::size_t c = 1; c < kChains; ++c) sum = _mm512_add_ps(sum, sums[r][c]);
      put_columns(pass, g, first_row + r, pass.adds, sum);
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

void run(const LinePass& pass, const CodeTables& tables, const FloatRows& rows,
         std::size_t n_rows) {
  using Run = void (*)(const LinePass&, const CodeTables&, const FloatRows&, std::size_t);
  constexpr Run kRuns[] = {float_passes<1>, float_passes<2>, float_passes<3>, float_passes<4>,
                           float_passes<5>, float_passes<6>, float_passes<7>, float_passes<8>};
  kRuns[tables.bits - 1](pass, tables, rows, n_rows);
}

void run(const LinePass& pass, const CodeTables& tables, const ByteRows& rows, std::size_t n_rows) {
  using Run = void (*)(const LinePass&, const CodeTables&, const ByteRows&, std::size_t);
  constexpr Run kRuns[] = {byte_passes<1>, byte_passes<2>, byte_passes<3>, byte_passes<4>,
                           byte_passes<5>, byte_passes<6>, byte_passes<7>, byte_passes<8>};
  kRuns[tables.bits - 1](pass, tables, rows, n_rows);
}

// weights * scales, zero beyond the tokens. Returns the largest magnitude, or NaN if one is NaN.
TQC_AVX512_FUNCTION float scale_weights(const PackedBlock& block, const float* weights,
                                        float* scaled) {
  __m512 largest = _mm512_setzero_ps();
  __mmask16 unordered = 0;
  for (std::size_t t = 0; t < kBlockTokens; t += kLanes) {
    const __mmask16 lanes = t < block.n_tokens ? first_lanes(block.n_tokens - t) : __mmask16{0};
    const __m512 scales = _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(lanes, block.scales + t));
    const __m512 product = _mm512_mul_ps(_mm512_maskz_loadu_ps(lanes, weights + t), scales);
    _mm512_store_ps(scaled + t, product);
    largest = _mm512_max_ps(largest, _mm512_abs_ps(product));
    unordered =
        static_cast<__mmask16>(unordered | _mm512_cmp_ps_mask(product, product, _CMP_UNORD_Q));
  }
  return unordered != 0 ? __builtin_nanf("") : _mm512_reduce_max_ps(largest);
}

// values = step * (kByteRadix * bytes[0] + bytes[1]), rounded.
TQC_AVX512_FUNCTION void round_to_bytes(const float* values, float step, std::int8_t* high,
                                        std::int8_t* low, std::int32_t* sums) {
  const __m512 inverse = _mm512_set1_ps(1.0f / step);
  const __m512 radix = _mm512_set1_ps(static_cast<float>(kByteRadix));
  const __m512 inverse_radix = _mm512_set1_ps(1.0f / static_cast<float>(kByteRadix));
  __m512i high_sum = _mm512_setzero_si512(), low_sum = high_sum;
  for (std::size_t t = 0; t < kBlockTokens; t += kLanes) {
    const __m512 steps = _mm512_mul_ps(_mm512_load_ps(values + t), inverse);
    const __m512i h = _mm512_cvtps_epi32(_mm512_mul_ps(steps, inverse_radix));
    const __m512i l = _mm512_cvtps_epi32(_mm512_fnmadd_ps(_mm512_cvtepi32_ps(h), radix, steps));
    _mm_store_si128(reinterpret_cast<__m128i*>(high + t), _mm512_cvtepi32_epi8(h));
    _mm_store_si128(reinterpret_cast<__m128i*>(low + t), _mm512_cvtepi32_epi8(l));
    high_sum = _mm512_add_epi32(high_sum, h);
    low_sum = _mm512_add_epi32(low_sum, l);
  }
  sums[0] = _mm512_reduce_add_epi32(high_sum);
  sums[1] = _mm512_reduce_add_epi32(low_sum);
}

void accumulate(const PackedBlock& block, const CodeTables& tables, const WeightRows& weights,
                OutputRows out, bool fast) {
  PreparedWeights prepared;
  constexpr std::size_t kMost = PreparedWeights::kMaxQueries;
  for (std::size_t first = 0; first < weights.n_queries; first += kMost) {
    const std::size_t left = weights.n_queries - first;
    const std::size_t n = left < kMost ? left : kMost;
    const LinePass pass =
        value_pass(block, {.values = out.values + first * out.stride, .stride = out.stride});
    if (prepare_weights(block, weights, first, n, fast, scale_weights, round_to_bytes, prepared)) {
      run(pass, tables, prepared.byte_rows(), 2 * n);
    } else {
      run(pass, tables, prepared.float_rows(), n);
    }
  }
}

}  // namespace

void avx512::score_exact(const PackedBlock& block, const CodeTables& tables,
                         const QueryRows& queries, OutputRows scores) {
  run(key_pass(block, scores), tables, FloatRows{queries.values, queries.stride},
      queries.n_queries);
}

void avx512::score_fast(const PackedBlock& block, const CodeTables& tables,
                        const QueryRows& queries, OutputRows scores) {
  run(key_pass(block, scores), tables, byte_rows(queries), queries.n_queries * queries.n_levels);
}

void avx512::accumulate_exact(const PackedBlock& block, const CodeTables& tables,
                              const WeightRows& weights, OutputRows out) {
  accumulate(block, tables, weights, out, /*fast=*/false);
}

void avx512::accumulate_fast(const PackedBlock& block, const CodeTables& tables,
                             const WeightRows& weights, OutputRows out) {
  accumulate(block, tables, weights, out, /*fast=*/true);
}

}  // namespace tqcache::codec

#endif  // TQCACHE_X86
