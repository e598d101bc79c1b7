#pragma once
// codec/kernels/packed_avx2.h: packed codes in AVX2 registers: codes of a unit, look-ups,
// incomplete units, columns.
//
// Bits above a code remain in its byte: the look-ups ignore them.

#include "tqcache/codec/kernels/line_pass.h"
#include "tqcache/codec/kernels/registers_avx2.h"

#ifdef TQCACHE_X86

namespace tqcache::codec::avx2 {

// Process all rows of factors: in f32; or rounded to int16, for codes of 5 to 8 bits whose tables
// have pieces (scores_avx2.cpp).
void run_floats(const LinePass&, const CodeTables&, const FloatRows&, std::size_t n_rows);
void run_int16(const LinePass&, const CodeTables&, const FloatRows&, std::size_t n_rows);

}  // namespace tqcache::codec::avx2

namespace tqcache::codec {
namespace {

constexpr std::size_t kUnit = kUnitLines;

TQC_LANES __m256i load(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }

TQC_LANES __m256i bytes_of(int value) { return _mm256_set1_epi8(static_cast<char>(value)); }

// Shifts towards higher bits if kShift is positive. Bits move into the next byte.
template <int kShift>
TQC_LANES __m256i shift(__m256i v) {
  if constexpr (kShift > 0) return _mm256_slli_epi16(v, kShift);
  if constexpr (kShift < 0) return _mm256_srli_epi16(v, -kShift);
  return v;
}

template <int kShift>
TQC_LANES __m256i shift_and(__m256i v, int mask) {
  return _mm256_and_si256(shift<kShift>(v), bytes_of(mask));
}

TQC_LANES void load_sixes(const std::uint8_t* lines, __m256i* fields) {
  for (int l = 0; l < 3; ++l) fields[l] = load(lines + 64 * l);
  const __m256i low = shift_and<-6>(fields[0], 0x03);
  const __m256i middle = shift_and<-4>(fields[1], 0x0c);
  const __m256i high = shift_and<-2>(fields[2], 0x30);
  fields[3] = _mm256_or_si256(_mm256_or_si256(low, middle), high);
}

// Puts bit k of `plane` above the low kAt bits of codes[k].
template <int kAt>
TQC_LANES void put_above(__m256i plane, __m256i (&codes)[kUnit]) {
  const __m256i low = bytes_of((1 << kAt) - 1);
  const __m256i moved[kUnit] = {shift<kAt>(plane),     shift<kAt - 1>(plane), shift<kAt - 2>(plane),
                                shift<kAt - 3>(plane), shift<kAt - 4>(plane), shift<kAt - 5>(plane),
                                shift<kAt - 6>(plane), shift<kAt - 7>(plane)};
  TQC_UNROLL for (std::size_t k = 0; k < kUnit; ++k) {
    codes[k] = _mm256_or_si256(_mm256_and_si256(low, codes[k]), _mm256_andnot_si256(low, moved[k]));
  }
}

TQC_LANES void load_nibbles(const std::uint8_t* lines, __m256i (&codes)[kUnit]) {
  TQC_UNROLL for (std::size_t g = 0; g < 4; ++g) {
    codes[2 * g] = load(lines + 64 * g);
    codes[2 * g + 1] = shift<-4>(codes[2 * g]);
  }
}

// Half of the eight lines of bytes of a unit, with unrelated bits above the codes.
template <int kBits>
TQC_LANES void load_codes(const std::uint8_t* unit, __m256i (&codes)[kUnit]) {
  if constexpr (kBits == 1) {
    codes[0] = load(unit);
    TQC_UNROLL for (std::size_t k = 1; k < kUnit; ++k) codes[k] = shift<-1>(codes[k - 1]);
  } else if constexpr (kBits == 2) {
    TQC_UNROLL for (std::size_t g = 0; g < 2; ++g) {
      codes[4 * g] = load(unit + 64 * g);
      codes[4 * g + 1] = shift<-2>(codes[4 * g]);
      codes[4 * g + 2] = shift<-4>(codes[4 * g]);
      codes[4 * g + 3] = shift<-6>(codes[4 * g]);
    }
  } else if constexpr (kBits == 3) {
    __m256i fields[4];
    load_sixes(unit, fields);
    TQC_UNROLL for (std::size_t f = 0; f < 4; ++f) {
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
  for (std::size_t l = 0; l < kBits; ++l) {
    _mm_prefetch(reinterpret_cast<const char*>(unit) + l * kLineBytes + kPrefetchAhead,
                 _MM_HINT_T0);
  }
}

// One of the eight lines, with the same extra bits.
template <int kBits>
TQC_LANES __m256i load_line(const std::uint8_t* unit, std::size_t line) {
  if constexpr (8 % kBits == 0) {
    constexpr std::size_t kTogether = 8 / kBits;
    const auto at = static_cast<int>(line % kTogether) * kBits;
    return _mm256_srl_epi16(load(unit + line / kTogether * kLineBytes), _mm_cvtsi32_si128(at));
  } else {
    __m256i codes[kUnit];
    load_codes<kBits>(unit, codes);
    alignas(32) std::uint8_t lines[kUnit * sizeof(__m256i)];
    TQC_UNROLL for (std::size_t k = 0; k < kUnit; ++k) {
      _mm256_store_si256(reinterpret_cast<__m256i*>(lines) + k, codes[k]);
    }
    return load(lines + line * sizeof(__m256i));
  }
}

constexpr std::size_t kHalfLine = kLineBytes / 2;

inline const std::uint8_t* lines_of_half(const LinePass& pass, std::size_t half) {
  return pass.lines + half / 2 * pass.group_bytes + half % 2 * kHalfLine;
}

// A table of bytes in registers. For 1 and 2 bits: entry i of part s belongs to the code at bit s *
// kBits of i, so that one nibble serves every code in it.
template <int kBits>
struct ByteTable {
  static constexpr std::size_t kParts = kBits < 3 ? 4 / kBits : 1;
  __m256i parts[kParts];
};

template <int kBits>
TQC_LANES ByteTable<kBits> load_table(const std::uint8_t* bytes) {
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

// Chains of additions per row: the additions of a single chain wait for each other.
constexpr std::size_t byte_chains(std::size_t rows) { return rows == 1 ? 2 : 1; }
constexpr std::size_t float_chains(std::size_t rows) { return rows == 1 ? 4 : rows == 2 ? 2 : 1; }

// The unsigned operand: centroids, for queries, or weights, for values.
enum class Unsigned { kCentroids, kFactors };

// Adds the products of half a line of centroids with four factors of each row.
template <Unsigned kUnsigned, std::size_t kRows, class Byte>
TQC_LANES void add_line(__m256i centroids, std::size_t k, const Byte* factors, std::size_t stride,
                        __m256i (&sums)[kRows][byte_chains(kRows)]) {
  const __m256i ones = _mm256_set1_epi16(1);
  TQC_UNROLL for (std::size_t r = 0; r < kRows; ++r) {
    int four;
    __builtin_memcpy(&four, factors + r * stride + 4 * k, 4);
    const __m256i factor = _mm256_set1_epi32(four);
    // Two products fit 16 bits: CodeTables::kPairLimit.
    const __m256i pairs = kUnsigned == Unsigned::kCentroids
                              ? _mm256_maddubs_epi16(centroids, factor)
                              : _mm256_maddubs_epi16(factor, centroids);
    __m256i& sum = sums[r][k % byte_chains(kRows)];
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, ones));
    // Without this, GCC adds all products of a unit first, and has no registers to keep them in.
    asm("" : "+x"(sum));
  }
}

// The same for all lines of a unit, up to 4 bits per code.
template <Unsigned kUnsigned, int kBits, std::size_t kRows, class Byte>
TQC_LANES void add_unit(const std::uint8_t* unit, const ByteTable<kBits>& table,
                        const Byte* factors, std::size_t stride,
                        __m256i (&sums)[kRows][byte_chains(kRows)]) {
  if constexpr (kBits == 3) {
    __m256i fields[4];
    load_sixes(unit, fields);
    TQC_UNROLL for (std::size_t f = 0; f < 4; ++f) {
      const __m256i low = _mm256_shuffle_epi8(table.parts[0], shift_and<0>(fields[f], 0x0f));
      add_line<kUnsigned, kRows>(low, 2 * f, factors, stride, sums);
      const __m256i high = _mm256_shuffle_epi8(table.parts[0], shift_and<-3>(fields[f], 0x07));
      add_line<kUnsigned, kRows>(high, 2 * f + 1, factors, stride, sums);
    }
  } else {
    constexpr std::size_t kParts = ByteTable<kBits>::kParts;
    TQC_UNROLL for (std::size_t l = 0; l < kBits; ++l) {
      const __m256i line = load(unit + kLineBytes * l);
      const __m256i nibbles[2] = {shift_and<0>(line, 0x0f), shift_and<-4>(line, 0x0f)};
      TQC_UNROLL for (std::size_t i = 0; i < 2 * kParts; ++i) {
        const __m256i centroids = _mm256_shuffle_epi8(table.parts[i % kParts], nibbles[i / kParts]);
        add_line<kUnsigned, kRows>(centroids, 2 * kParts * l + i, factors, stride, sums);
      }
    }
  }
}

// An incomplete unit, padded with zeros.
struct WholeUnit {
  alignas(64) std::uint8_t lines[kUnitLines * kLineBytes];
};

TQC_LANES void complete(const std::uint8_t* lines, std::size_t n, WholeUnit& unit) {
  for (std::size_t l = 0; l < kUnitLines; ++l) {
    const __m256i half = l < n ? load(lines + l * kLineBytes) : _mm256_setzero_si256();
    _mm256_store_si256(reinterpret_cast<__m256i*>(unit.lines + l * kLineBytes), half);
  }
}

TQC_LANES __m256 load_scales(const std::uint16_t* scales) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(scales)));
}

// The remaining factors for the sums of eight columns.
TQC_LANES __m256 column_scales(const LinePass& pass, std::size_t first) {
  return pass.lane_scales != nullptr ? load_scales(pass.lane_scales + first) : _mm256_set1_ps(1.0f);
}

// Stores the sums of eight columns in one output row, or adds them. Masked stores are slow on some
// CPUs, so only the last columns use them.
TQC_LANES void put_columns(const LinePass& pass, std::size_t first, std::size_t row, bool add,
                           __m256 sums) {
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

template <int kBits>
struct FloatTable {
  __m256 low, high;     // up to 4 bits
  const float* values;  // above 4 bits
};

template <int kBits>
TQC_LANES __m256 look_up(const FloatTable<kBits>& table, __m256i codes) {
  if constexpr (kBits <= 3) return _mm256_permutevar8x32_ps(table.low, codes);
  if constexpr (kBits == 4) {
    const __m256 low = _mm256_permutevar8x32_ps(table.low, codes);
    const __m256 high = _mm256_permutevar8x32_ps(table.high, codes);
    return _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(codes, 28)));
  }
  const __m256i index = _mm256_and_si256(codes, _mm256_set1_epi32(0xff));
  return _mm256_i32gather_ps(table.values, index, 4);
}

template <int kBits>
TQC_LANES FloatTable<kBits> load_table(const float* values) {
  return {_mm256_loadu_ps(values), _mm256_loadu_ps(values + 8), values};
}

}  // namespace
}  // namespace tqcache::codec

#endif  // TQCACHE_X86
