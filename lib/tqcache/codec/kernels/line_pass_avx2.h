#pragma once
// codec/kernels/line_pass_avx2.h: what passes over lines are made of: look-ups, products, cut units,
// columns.
//
// A register holds eight lanes, half a line: every group is walked twice, once for each half.
// VPSHUFB looks at four bits, if the rest is clear, and VPERMPS at three.

#include "tqcache/codec/kernels/kernels_avx2.h"

#ifdef TQCACHE_X86

#include "tqcache/codec/kernels/codes_avx2.h"
#include "tqcache/codec/kernels/line_pass.h"

namespace tqcache::codec::avx2 {

// All rows of factors: in f32; and rounded to words, for codes of 5 to 8 bits whose tables have
// pieces (kernels_avx2_words.cpp).
void run_floats(const LinePass&, const CodeTables&, const FloatRows&, std::size_t n_rows);
void run_words(const LinePass&, const CodeTables&, const FloatRows&, std::size_t n_rows);

inline constexpr std::size_t kHalfLine = kLineBytes / 2;

inline const std::uint8_t* lines_of_half(const LinePass& pass, std::size_t half) {
  return pass.lines + half / 2 * pass.group_bytes + half % 2 * kHalfLine;
}

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

// Chains of additions a row: one would wait for its own latency.
constexpr std::size_t byte_chains(std::size_t rows) { return rows == 1 ? 2 : 1; }
constexpr std::size_t float_chains(std::size_t rows) { return rows == 1 ? 4 : rows == 2 ? 2 : 1; }

// Which of the two is unsigned: centroids, for queries, or weights, for values.
enum class Unsigned { kCentroids, kFactors };

// Adds the products of half a line of centroids with four factors of each row.
template <Unsigned kUnsigned, std::size_t kRows, class Byte>
TQC_AVX2 void add_line(__m256i centroids, std::size_t k, const Byte* factors, std::size_t stride,
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
    // Left alone, GCC adds all products of a unit up first, and has no registers to keep them in.
    asm("" : "+x"(sum));
  }
}

// The same of all lines of a unit, up to 4 bits a code.
template <Unsigned kUnsigned, int kBits, std::size_t kRows, class Byte>
TQC_AVX2 void add_unit(const std::uint8_t* unit, const ByteTable<kBits>& table, const Byte* factors,
                       std::size_t stride, __m256i (&sums)[kRows][byte_chains(kRows)]) {
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

// What the sums of eight columns are still to be multiplied with.
TQC_AVX2 __m256 column_scales(const LinePass& pass, std::size_t first) {
  return pass.lane_scales != nullptr ? load_scales(pass.lane_scales + first) : _mm256_set1_ps(1.0f);
}

// Puts the sums of eight columns into one output row, or adds them. Stores with a mask are slow on
// some CPUs, so they are for the last columns only.
TQC_AVX2 void put_columns(const LinePass& pass, std::size_t first, std::size_t row, bool add,
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

template <int kBits>
TQC_AVX2 FloatTable<kBits> load_table(const float* values) {
  return {_mm256_loadu_ps(values), _mm256_loadu_ps(values + 8), values};
}

}  // namespace tqcache::codec::avx2

#endif  // TQCACHE_X86
