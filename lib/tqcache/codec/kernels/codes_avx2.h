#pragma once
// codec/kernels/codes_avx2.h: the codes of a unit in registers of AVX2, half a line in each.
//
// What stands above a code in its byte is left there: the look-ups do not see it.

#include "tqcache/codec/kernels/kernels_avx2.h"
#include "tqcache/codec/kernels/line_pass.h"

#ifdef TQCACHE_X86

namespace tqcache::codec::avx2 {

inline constexpr std::size_t kUnit = kUnitLines;

TQC_AVX2 __m256i load(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }

TQC_AVX2 __m256i bytes_of(int value) { return _mm256_set1_epi8(static_cast<char>(value)); }

// Towards higher bits if kShift is positive. Bits move on into the next byte.
template <int kShift>
TQC_AVX2 __m256i shift(__m256i v) {
  if constexpr (kShift > 0) return _mm256_slli_epi16(v, kShift);
  if constexpr (kShift < 0) return _mm256_srli_epi16(v, -kShift);
  return v;
}

template <int kShift>
TQC_AVX2 __m256i shift_and(__m256i v, int mask) {
  return _mm256_and_si256(shift<kShift>(v), bytes_of(mask));
}

TQC_AVX2 void load_sixes(const std::uint8_t* lines, __m256i* fields) {
  for (int l = 0; l < 3; ++l) fields[l] = load(lines + 64 * l);
  const __m256i low = shift_and<-6>(fields[0], 0x03);
  const __m256i middle = shift_and<-4>(fields[1], 0x0c);
  const __m256i high = shift_and<-2>(fields[2], 0x30);
  fields[3] = _mm256_or_si256(_mm256_or_si256(low, middle), high);
}

// Puts bit k of `plane` above the low kAt bits of codes[k].
template <int kAt>
TQC_AVX2 void put_above(__m256i plane, __m256i (&codes)[kUnit]) {
  const __m256i low = bytes_of((1 << kAt) - 1);
  const __m256i moved[kUnit] = {shift<kAt>(plane),     shift<kAt - 1>(plane), shift<kAt - 2>(plane),
                                shift<kAt - 3>(plane), shift<kAt - 4>(plane), shift<kAt - 5>(plane),
                                shift<kAt - 6>(plane), shift<kAt - 7>(plane)};
  TQC_UNROLL for (std::size_t k = 0; k < kUnit; ++k) {
    codes[k] = _mm256_or_si256(_mm256_and_si256(low, codes[k]), _mm256_andnot_si256(low, moved[k]));
  }
}

TQC_AVX2 void load_nibbles(const std::uint8_t* lines, __m256i (&codes)[kUnit]) {
  TQC_UNROLL for (std::size_t g = 0; g < 4; ++g) {
    codes[2 * g] = load(lines + 64 * g);
    codes[2 * g + 1] = shift<-4>(codes[2 * g]);
  }
}

// Half the eight lines of bytes of a unit, with strays above the codes.
template <int kBits>
TQC_AVX2 void load_codes(const std::uint8_t* unit, __m256i (&codes)[kUnit]) {
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

// Asks for the memory of a unit that is kPrefetchAhead further on.
template <int kBits>
TQC_AVX2 void prefetch_unit(const std::uint8_t* unit) {
  for (std::size_t l = 0; l < kBits; ++l) {
    _mm_prefetch(reinterpret_cast<const char*>(unit) + l * kLineBytes + kPrefetchAhead,
                 _MM_HINT_T0);
  }
}

// One of the eight, likewise.
template <int kBits>
TQC_AVX2 __m256i load_line(const std::uint8_t* unit, std::size_t line) {
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

}  // namespace tqcache::codec::avx2

#endif  // TQCACHE_X86
