// Packed codes with AVX2: bytes by VPSHUFB and VPMADDUBSW, floats by VPERMPS and FMA.
//
// A register holds eight lanes, half a line: every group is walked twice, once for each half.
// VPSHUFB looks at four bits, if the rest is clear, and VPERMPS at three.

#include "tqcache/codec/kernels_avx2.h"

#ifdef TQCACHE_X86

#include "tqcache/codec/codes_avx2.h"
#include "tqcache/codec/line_pass.h"

namespace tqcache::codec {
namespace {

using namespace avx2;

constexpr std::size_t kHalfLine = kLineBytes / 2;

// A table of bytes in registers. Of 1 and 2 bits: entry i of part s is that of the code at bit
// s * kBits of i, so that one nibble serves for every code in it.
template <int kBits>
struct ByteTable {
  static constexpr std::size_t kParts = kBits < 3 ? 4 / kBits : 1;
  __m256i parts[kParts];
};

template <int kBits>
TQC_AVX2 ByteTable<kBits> load_table(const std::uint8_t* bytes) {
  const __m256i all =
      _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
  const __m256i index = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
  ByteTable<kBits> table;
  table.parts[0] = all;
  if constexpr (kBits == 1) {
    table.parts[1] = _mm256_shuffle_epi8(all, shift_and<-1>(index, 0x07));
    table.parts[3] = _mm256_shuffle_epi8(all, shift_and<-3>(index, 0x01));
  }
  if constexpr (kBits <= 2) {
    table.parts[kBits == 1 ? 2 : 1] = _mm256_shuffle_epi8(all, shift_and<-2>(index, 0x03));
  }
  return table;
}

// The codes of one line: 8 / kBits lines of values.
template <int kBits>
TQC_AVX2 void look_up_line(__m256i line, const ByteTable<kBits>& table, __m256i* values) {
  constexpr std::size_t kParts = ByteTable<kBits>::kParts;
  const __m256i low = shift_and<0>(line, 0x0f), high = shift_and<-4>(line, 0x0f);
  TQC_UNROLL for (std::size_t s = 0; s < kParts; ++s) {
    values[s] = _mm256_shuffle_epi8(table.parts[s], low);
    values[kParts + s] = _mm256_shuffle_epi8(table.parts[s], high);
  }
}

template <int kBits>
TQC_AVX2 void look_up_unit(const std::uint8_t* unit, const ByteTable<kBits>& table,
                           __m256i (&values)[kUnit]) {
  if constexpr (kBits == 3) {
    __m256i fields[4];
    load_sixes(unit, fields);
    TQC_UNROLL for (std::size_t f = 0; f < 4; ++f) {
      values[2 * f] = _mm256_shuffle_epi8(table.parts[0], shift_and<0>(fields[f], 0x0f));
      values[2 * f + 1] = _mm256_shuffle_epi8(table.parts[0], shift_and<-3>(fields[f], 0x07));
    }
  } else {
    TQC_UNROLL for (std::size_t l = 0; l < kBits; ++l) {
      look_up_line<kBits>(load(unit + 64 * l), table, values + 8 / kBits * l);
    }
  }
}

// Chains of additions a row: one would wait for its own latency.
constexpr std::size_t byte_chains(std::size_t rows) { return rows == 1 ? 2 : 1; }
constexpr std::size_t float_chains(std::size_t rows) { return rows == 1 ? 4 : rows == 2 ? 2 : 1; }

template <int kBits, std::size_t kRows>
TQC_AVX2 void add_unit(const std::uint8_t* unit, const ByteTable<kBits>& table,
                       const std::int8_t* factors, std::size_t stride,
                       __m256i (&sums)[kRows][byte_chains(kRows)]) {
  const __m256i ones = _mm256_set1_epi16(1);
  __m256i values[kUnit];
  look_up_unit<kBits>(unit, table, values);
  TQC_UNROLL for (std::size_t k = 0; k < kUnit; ++k) {
    TQC_UNROLL for (std::size_t r = 0; r < kRows; ++r) {
      int four;
      __builtin_memcpy(&four, factors + r * stride + 4 * k, 4);
      // Two products fit 16 bits: CodeTables::kPairLimit.
      const __m256i pairs = _mm256_maddubs_epi16(values[k], _mm256_set1_epi32(four));
      __m256i& sum = sums[r][k % byte_chains(kRows)];
      sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, ones));
    }
  }
}

// A cut unit, made whole with zeros.
struct WholeUnit {
  alignas(64) std::uint8_t lines[kUnitLines * kLineBytes];
};

TQC_AVX2 void complete(const std::uint8_t* lines, std::size_t n, WholeUnit& unit) {
  for (std::size_t l = 0; l < kUnitLines; ++l) {
    const __m256i half = l < n ? load(lines + l * kLineBytes) : _mm256_setzero_si256();
    _mm256_store_si256(reinterpret_cast<__m256i*>(unit.lines + l * kLineBytes), half);
  }
}

TQC_AVX2 __m256 load_scales(const std::uint16_t* scales) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(scales)));
}

// Puts the sums of eight columns into one output row, or adds them. Stores with a mask are slow on
// some CPUs, so they are for the last columns only.
TQC_AVX2 void put_columns(const LinePass& pass, std::size_t first, std::size_t row, bool add,
                          __m256 sums) {
  if (pass.lane_scales != nullptr) {
    sums = _mm256_mul_ps(sums, load_scales(pass.lane_scales + first));
  }
  float* const out = pass.out.values + row * pass.out.stride + first;
  const std::size_t left = pass.n_columns - first;
  if (left >= kWidth) {
    if (add) sums = _mm256_add_ps(_mm256_loadu_ps(out), sums);
    _mm256_storeu_ps(out, sums);
  } else {
    const __m256i lanes = first_lanes(left);
    if (add) sums = _mm256_add_ps(_mm256_maskload_ps(out, lanes), sums);
    _mm256_maskstore_ps(out, lanes, sums);
  }
}

// Rows first_row and on of the factors, kRows of them. `adds`: to what is there already.
template <int kBits, std::size_t kRows>
TQC_AVX2_FUNCTION void byte_pass(const LinePass& pass, const std::uint8_t* table_bytes, float step,
                                 const ByteRows& rows, std::size_t first_row, bool adds) {
  constexpr std::size_t kChains = byte_chains(kRows);
  const ByteTable<kBits> table = load_table<kBits>(table_bytes);
  for (std::size_t half = 0; half * kWidth < pass.n_columns; ++half) {
    const std::uint8_t* unit = pass.lines + half / 2 * pass.group_bytes + half % 2 * kHalfLine;
    const std::int8_t* factors = rows.values + first_row * rows.stride;
    __m256i sums[kRows][kChains];
    TQC_UNROLL for (std::size_t r = 0; r < kRows; ++r) {
      TQC_UNROLL for (std::size_t c = 0; c < kChains; ++c) sums[r][c] = _mm256_setzero_si256();
      sums[r][0] = _mm256_set1_epi32(-CodeTables::kNarrowOffset * rows.sums[first_row + r]);
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
    TQC_UNROLL for (std::size_t r = 0; r < kRows; ++r) {
      const std::size_t row = first_row + r;
      __m256i sum = sums[r][0];
      TQC_UNROLL for (std::size_t c = 1; c < kChains; ++c) sum = _mm256_add_epi32(sum, sums[r][c]);
      const __m256 factor = _mm256_set1_ps(step * rows.multipliers[row]);
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

template <int kBits>
struct FloatTable {
  __m256 low, high;     // up to 4 bits
  const float* values;  // above
};

template <int kBits>
TQC_AVX2 __m256 look_up(const FloatTable<kBits>& table, __m256i codes) {
  if constexpr (kBits <= 3) return _mm256_permutevar8x32_ps(table.low, codes);
  if constexpr (kBits == 4) {
    const __m256 low = _mm256_permutevar8x32_ps(table.low, codes);
    const __m256 high = _mm256_permutevar8x32_ps(table.high, codes);
    return _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(codes, 28)));
  }
  const __m256i index = _mm256_and_si256(codes, _mm256_set1_epi32(0xff));
  return _mm256_i32gather_ps(table.values, index, 4);
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
  const FloatTable<kBits> table = {_mm256_loadu_ps(table_values), _mm256_loadu_ps(table_values + 8),
                                   table_values};
  for (std::size_t half = 0; half * kWidth < pass.n_columns; ++half) {
    const std::uint8_t* unit = pass.lines + half / 2 * pass.group_bytes + half % 2 * kHalfLine;
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
    TQC_UNROLL for (std::size_t r = 0; r < kRows; ++r) {
      __m256 sum = sums[r][0];
      TQC_UNROLL for (std::size_t c = 1; c < kChains; ++c) sum = _mm256_add_ps(sum, sums[r][c]);
      put_columns(pass, half * kWidth, first_row + r, pass.adds, sum);
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

// Requires: up to CodeTables::kMaxNarrowBits.
void run(const LinePass& pass, const CodeTables& tables, const ByteRows& rows, std::size_t n_rows) {
  using Run = void (*)(const LinePass&, const CodeTables&, const ByteRows&, std::size_t);
  constexpr Run kRuns[] = {byte_passes<1>, byte_passes<2>, byte_passes<3>, byte_passes<4>};
  kRuns[tables.bits - 1](pass, tables, rows, n_rows);
}

// weights * scales, zero beyond the tokens. Returns the largest magnitude, or NaN if one is NaN.
TQC_AVX2_FUNCTION float scale_weights(const PackedBlock& block, const float* weights,
                                      float* scaled) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  __m256 largest = _mm256_setzero_ps(), unordered = largest;
  for (std::size_t t = 0; t < kBlockTokens; t += kWidth) {
    const __m256i lanes = first_lanes(t < block.n_tokens ? block.n_tokens - t : 0);
    const __m256 scales = _mm256_and_ps(load_scales(block.scales + t), _mm256_castsi256_ps(lanes));
    __m256 product = _mm256_setzero_ps();
    if (t < block.n_tokens) product = _mm256_mul_ps(_mm256_maskload_ps(weights + t, lanes), scales);
    _mm256_store_ps(scaled + t, product);
    largest = _mm256_max_ps(largest, _mm256_andnot_ps(sign, product));
    unordered = _mm256_or_ps(unordered, _mm256_cmp_ps(product, product, _CMP_UNORD_Q));
  }
  if (_mm256_movemask_ps(unordered) != 0) return __builtin_nanf("");
  alignas(32) float lanes[kWidth];
  _mm256_store_ps(lanes, largest);
  float most = lanes[0];
  for (std::size_t l = 1; l < kWidth; ++l) most = lanes[l] > most ? lanes[l] : most;
  return most;
}

TQC_AVX2 std::int32_t add_lanes(__m256i v) {
  alignas(32) std::int32_t lanes[kWidth];
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), v);
  std::int32_t sum = 0;
  for (std::size_t l = 0; l < kWidth; ++l) sum += lanes[l];
  return sum;
}

// Eight whole numbers of a byte each.
TQC_AVX2 void store_bytes(std::int8_t* p, __m256i v) {
  const __m256i first =
      _mm256_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 0, 4, 8, 12, -1,
                       -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
  const __m256i packed = _mm256_shuffle_epi8(v, first);
  const __m128i both =
      _mm_unpacklo_epi32(_mm256_castsi256_si128(packed), _mm256_extracti128_si256(packed, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), both);
}

// values = step * (kByteRadix * bytes[0] + bytes[1]), rounded.
TQC_AVX2_FUNCTION void round_to_bytes(const float* values, float step, std::int8_t* high,
                                      std::int8_t* low, std::int32_t* sums) {
  const __m256 inverse = _mm256_set1_ps(1.0f / step);
  const __m256 radix = _mm256_set1_ps(static_cast<float>(kByteRadix));
  const __m256 inverse_radix = _mm256_set1_ps(1.0f / static_cast<float>(kByteRadix));
  __m256i high_sum = _mm256_setzero_si256(), low_sum = high_sum;
  for (std::size_t t = 0; t < kBlockTokens; t += kWidth) {
    const __m256 steps = _mm256_mul_ps(_mm256_load_ps(values + t), inverse);
    const __m256i h = _mm256_cvtps_epi32(_mm256_mul_ps(steps, inverse_radix));
    const __m256i l = _mm256_cvtps_epi32(_mm256_fnmadd_ps(_mm256_cvtepi32_ps(h), radix, steps));
    store_bytes(high + t, h);
    store_bytes(low + t, l);
    high_sum = _mm256_add_epi32(high_sum, h);
    low_sum = _mm256_add_epi32(low_sum, l);
  }
  sums[0] = add_lanes(high_sum);
  sums[1] = add_lanes(low_sum);
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

void avx2::score_exact(const PackedBlock& block, const CodeTables& tables, const QueryRows& queries,
                       OutputRows scores) {
  run(key_pass(block, scores), tables, FloatRows{queries.values, queries.stride},
      queries.n_queries);
}

void avx2::score_fast(const PackedBlock& block, const CodeTables& tables, const QueryRows& queries,
                      OutputRows scores) {
  if (tables.bits > CodeTables::kMaxNarrowBits) {
    return avx2::score_exact(block, tables, queries, scores);
  }
  run(key_pass(block, scores), tables, byte_rows(queries), queries.n_queries * queries.n_levels);
}

void avx2::accumulate_exact(const PackedBlock& block, const CodeTables& tables,
                            const WeightRows& weights, OutputRows out) {
  accumulate(block, tables, weights, out, /*fast=*/false);
}

void avx2::accumulate_fast(const PackedBlock& block, const CodeTables& tables,
                           const WeightRows& weights, OutputRows out) {
  accumulate(block, tables, weights, out, tables.bits <= CodeTables::kMaxNarrowBits);
}

}  // namespace tqcache::codec

#endif  // TQCACHE_X86
