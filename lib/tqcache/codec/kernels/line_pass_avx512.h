#pragma once
// codec/kernels/line_pass_avx512.h: what passes over lines are made of: look-ups, cut units, columns.
//
// VPERMB looks at six bits of an index and VPERMPS at four, so what stands above a code need not
// be cleared; and a table whose entry i is c[i >> s] saves the shift by s as well.

#include "tqcache/codec/kernels/kernels_avx512.h"

#ifdef TQCACHE_X86

#include "tqcache/codec/kernels/codes_avx512.h"
#include "tqcache/codec/kernels/line_pass.h"

namespace tqcache::codec::avx512 {

// All rows of factors, in f32.
void run_floats(const LinePass&, const CodeTables&, const FloatRows&, std::size_t n_rows);

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
    const __m512i index = load(kIota);
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

// What the sums of a group's columns are still to be multiplied with.
TQC_AVX512 __m512 column_scales(const LinePass& pass, std::size_t group) {
  if (pass.lane_scales == nullptr) return _mm512_set1_ps(1.0f);
  const std::size_t first = group * kLanes;
  const __mmask16 lanes = first_lanes(pass.n_columns - first);
  return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(lanes, pass.lane_scales + first));
}

// Puts one group's sums into the columns of one output row, or adds them.
TQC_AVX512 void put_columns(const LinePass& pass, std::size_t group, std::size_t row, bool add,
                            __m512 sums) {
  const std::size_t first = group * kLanes;
  const __mmask16 lanes = first_lanes(pass.n_columns - first);
  float* const out = pass.out.values + row * pass.out.stride + first;
  if (add) sums = _mm512_add_ps(_mm512_maskz_loadu_ps(lanes, out), sums);
  _mm512_mask_storeu_ps(out, lanes, sums);
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

template <int kBits>
TQC_AVX512 FloatTable<kBits> load_table(const float* values) {
  return {_mm512_loadu_ps(values), _mm512_loadu_ps(values + 16), values};
}

}  // namespace tqcache::codec::avx512

#endif  // TQCACHE_X86
