#pragma once
// codec/kernels/packed_avx512.h: packed codes in AVX-512 registers: codes of a unit, look-ups,
// incomplete units, columns.
//
// Bits above a code remain in its byte: the look-ups ignore them.
//
// VPERMB uses six bits of an index and VPERMPS four, so bits above a code need not be cleared; and
// a table with entry i = c[i >> s] also saves the shift by s.

#include "tqcache/codec/kernels/line_pass.h"
#include "tqcache/codec/kernels/registers_avx512.h"

#ifdef TQCACHE_X86

namespace tqcache::codec::avx512 {

// Processes all rows of factors, in f32.
void run_floats(const LinePass&, const CodeTables&, const FloatRows&, std::size_t n_rows);

}  // namespace tqcache::codec::avx512

namespace tqcache::codec {
namespace {

// 0 to 63.
constexpr std::uint8_t kIota[64] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,
                                    16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31,
                                    32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47,
                                    48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63};

constexpr std::size_t kUnit = kUnitLines;

TQC_LANES __m512i load(const void* p) { return _mm512_loadu_si512(p); }

TQC_LANES __m512i bytes_of(int value) { return _mm512_set1_epi8(static_cast<char>(value)); }

// mask ? yes : no, bit by bit.
TQC_LANES __m512i select(__m512i mask, __m512i yes, __m512i no) {
  return _mm512_ternarylogic_epi32(mask, yes, no, 0xca);
}

// Shifts towards higher bits if kShift is positive. Bits move into the next byte.
template <int kShift>
TQC_LANES __m512i shift(__m512i v) {
  if constexpr (kShift > 0) return _mm512_slli_epi16(v, kShift);
  if constexpr (kShift < 0) return _mm512_srli_epi16(v, -kShift);
  return v;
}

// Loads four 6-bit fields from three lines.
TQC_LANES void load_sixes(const std::uint8_t* lines, __m512i* fields) {
  for (int l = 0; l < 3; ++l) fields[l] = load(lines + 64 * l);
  const __m512i low = select(bytes_of(0x03), shift<-6>(fields[0]), shift<-4>(fields[1]));
  fields[3] = select(bytes_of(0x0f), low, shift<-2>(fields[2]));
}

// Puts bit k of `plane` above the low kAt bits of codes[k].
template <int kAt>
TQC_LANES void put_above(__m512i plane, __m512i (&codes)[kUnit]) {
  const __m512i low = bytes_of((1 << kAt) - 1);
  codes[0] = select(low, codes[0], shift<kAt>(plane));
  codes[1] = select(low, codes[1], shift<kAt - 1>(plane));
  codes[2] = select(low, codes[2], shift<kAt - 2>(plane));
  codes[3] = select(low, codes[3], shift<kAt - 3>(plane));
  codes[4] = select(low, codes[4], shift<kAt - 4>(plane));
  codes[5] = select(low, codes[5], shift<kAt - 5>(plane));
  codes[6] = select(low, codes[6], shift<kAt - 6>(plane));
  codes[7] = select(low, codes[7], shift<kAt - 7>(plane));
}

TQC_LANES void load_nibbles(const std::uint8_t* lines, __m512i (&codes)[kUnit]) {
  TQC_UNROLL for (int g = 0; g < 4; ++g) {
    codes[2 * g] = load(lines + 64 * g);
    codes[2 * g + 1] = shift<-4>(codes[2 * g]);
  }
}

// Used instead of 8 for codes of 8 bits that are multiplied directly, without a look-up.
constexpr int kPlain = 0;

constexpr std::size_t unit_lines(int bits) {
  return bits == kPlain ? 8 : static_cast<std::size_t>(bits);
}

// The eight lines of bytes of a unit, with unrelated bits above the codes.
template <int kBits>
TQC_LANES void load_codes(const std::uint8_t* unit, __m512i (&codes)[kUnit]) {
  if constexpr (kBits == 1) {
    codes[0] = load(unit);
    TQC_UNROLL for (std::size_t k = 1; k < kUnit; ++k) codes[k] = shift<-1>(codes[k - 1]);
  } else if constexpr (kBits == 2) {
    TQC_UNROLL for (int g = 0; g < 2; ++g) {
      codes[4 * g] = load(unit + 64 * g);
      codes[4 * g + 1] = shift<-2>(codes[4 * g]);
      codes[4 * g + 2] = shift<-4>(codes[4 * g]);
      codes[4 * g + 3] = shift<-6>(codes[4 * g]);
    }
  } else if constexpr (kBits == 3) {
    __m512i fields[4];
    load_sixes(unit, fields);
    TQC_UNROLL for (int f = 0; f < 4; ++f) {
      codes[2 * f] = fields[f];
      codes[2 * f + 1] = shift<-3>(fields[f]);
    }
  } else if constexpr (kBits == 4) {
    load_nibbles(unit, codes);
  } else if constexpr (kBits == 5) {
    load_nibbles(unit + 64, codes);
    put_above<4>(load(unit), codes);
  } else if constexpr (kBits == 6) {
    load_sixes(unit, codes);
    load_sixes(unit + 3 * 64, codes + 4);
  } else if constexpr (kBits == 7) {
    load_sixes(unit + 64, codes);
    load_sixes(unit + 4 * 64, codes + 4);
    put_above<6>(load(unit), codes);
  } else {
    TQC_UNROLL for (std::size_t k = 0; k < kUnit; ++k) codes[k] = load(unit + 64 * k);
  }
}

// Prefetches the unit that is kPrefetchAhead bytes further on.
template <int kBits>
TQC_LANES void prefetch_unit(const std::uint8_t* unit) {
  for (std::size_t l = 0; l < unit_lines(kBits); ++l) {
    _mm_prefetch(reinterpret_cast<const char*>(unit) + l * kLineBytes + kPrefetchAhead,
                 _MM_HINT_T0);
  }
}

// One of the eight lines, with the same extra bits.
template <int kBits>
TQC_LANES __m512i load_line(const std::uint8_t* unit, std::size_t line) {
  if constexpr (8 % kBits == 0) {
    constexpr std::size_t kTogether = 8 / kBits;
    const auto at = static_cast<int>(line % kTogether) * kBits;
    return _mm512_srl_epi16(load(unit + line / kTogether * kLineBytes), _mm_cvtsi32_si128(at));
  } else {
    __m512i codes[kUnit];
    load_codes<kBits>(unit, codes);
    alignas(64) std::uint8_t lines[kUnit * kLineBytes];
    TQC_UNROLL for (std::size_t k = 0; k < kUnit; ++k) {
      _mm512_store_si512(lines + k * kLineBytes, codes[k]);
    }
    return load(lines + line * kLineBytes);
  }
}

// A table of bytes in registers. For 2 and 3 bits: for a code at bit 0, and at the bits above it
// that VPERMB still uses.
template <int kBits>
struct ByteTable {
  static constexpr int kParts = kBits == 2 ? 3 : kBits == 3 || kBits == 7 ? 2 : kBits == 8 ? 4 : 1;
  __m512i parts[kParts];
};

template <>
struct ByteTable<kPlain> {};

template <int kBits>
TQC_LANES ByteTable<kBits> load_table(const std::uint8_t* bytes) {
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
TQC_LANES __m512i look_up(const ByteTable<kBits>& table, __m512i codes) {
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
TQC_LANES void look_up_unit(const std::uint8_t* unit, const ByteTable<kBits>& table,
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

// Widths of codes that get a kernel for every number of rows.
constexpr bool is_common(int bits) {
  return bits == 2 || bits == 3 || bits == 4 || bits == 8 || bits == kPlain;
}

// Chains of additions per row: the additions of a single chain wait for each other.
constexpr std::size_t chains(std::size_t rows) { return rows == 1 ? 4 : rows == 2 ? 2 : 1; }

// An incomplete unit, padded with zeros.
struct WholeUnit {
  alignas(64) std::uint8_t lines[kUnitLines * kLineBytes];
};

TQC_LANES void complete(const std::uint8_t* lines, std::size_t n, WholeUnit& unit) {
  for (std::size_t l = 0; l < kUnitLines; ++l) {
    const __m512i line = l < n ? load(lines + l * kLineBytes) : _mm512_setzero_si512();
    _mm512_store_si512(unit.lines + l * kLineBytes, line);
  }
}

// The remaining factors for the sums of a group's columns.
TQC_LANES __m512 column_scales(const LinePass& pass, std::size_t group) {
  if (pass.lane_scales == nullptr) return _mm512_set1_ps(1.0f);
  const std::size_t first = group * kLanes;
  const __mmask16 lanes = part_of(pass.n_columns - first);
  return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(lanes, pass.lane_scales + first));
}

// Stores one group's sums in the columns of one output row, or adds them.
TQC_LANES void put_columns(const LinePass& pass, std::size_t group, std::size_t row, bool add,
                           __m512 sums) {
  const std::size_t first = group * kLanes;
  const __mmask16 lanes = part_of(pass.n_columns - first);
  float* const out = pass.out.values + row * pass.out.stride + first;
  if (add) sums = _mm512_add_ps(_mm512_maskz_loadu_ps(lanes, out), sums);
  _mm512_mask_storeu_ps(out, lanes, sums);
}

template <int kBits>
struct FloatTable {
  __m512 low, high;     // up to 5 bits
  const float* values;  // above 5 bits
};

template <int kBits>
TQC_LANES __m512 look_up(const FloatTable<kBits>& table, __m512i codes) {
  if constexpr (kBits <= 4) return _mm512_permutexvar_ps(codes, table.low);
  if constexpr (kBits == 5) return _mm512_permutex2var_ps(table.low, codes, table.high);
  const __m512i index = _mm512_and_si512(codes, _mm512_set1_epi32(0xff));
  return _mm512_i32gather_ps(index, table.values, 4);
}

template <int kBits>
TQC_LANES FloatTable<kBits> load_table(const float* values) {
  return {_mm512_loadu_ps(values), _mm512_loadu_ps(values + 16), values};
}

}  // namespace
}  // namespace tqcache::codec

#endif  // TQCACHE_X86
