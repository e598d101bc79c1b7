#pragma once
// codec/kernels/codes_avx512.h: the codes of a unit in registers of AVX-512, a line in each.
//
// What stands above a code in its byte is left there: the look-ups do not see it.

#include "tqcache/codec/kernels/kernels_avx512.h"
#include "tqcache/codec/kernels/line_pass.h"

#ifdef TQCACHE_X86

namespace tqcache::codec::avx512 {

inline constexpr std::size_t kUnit = kUnitLines;

TQC_AVX512 __m512i load(const void* p) { return _mm512_loadu_si512(p); }

TQC_AVX512 __m512i bytes_of(int value) { return _mm512_set1_epi8(static_cast<char>(value)); }

// mask ? yes : no, bit by bit.
TQC_AVX512 __m512i select(__m512i mask, __m512i yes, __m512i no) {
  return _mm512_ternarylogic_epi32(mask, yes, no, 0xca);
}

// Towards higher bits if kShift is positive. Bits move on into the next byte.
template <int kShift>
TQC_AVX512 __m512i shift(__m512i v) {
  if constexpr (kShift > 0) return _mm512_slli_epi16(v, kShift);
  if constexpr (kShift < 0) return _mm512_srli_epi16(v, -kShift);
  return v;
}

// Four fields of six bits out of three lines.
TQC_AVX512 void load_sixes(const std::uint8_t* lines, __m512i* fields) {
  for (int l = 0; l < 3; ++l) fields[l] = load(lines + 64 * l);
  const __m512i low = select(bytes_of(0x03), shift<-6>(fields[0]), shift<-4>(fields[1]));
  fields[3] = select(bytes_of(0x0f), low, shift<-2>(fields[2]));
}

// Puts bit k of `plane` above the low kAt bits of codes[k].
template <int kAt>
TQC_AVX512 void put_above(__m512i plane, __m512i (&codes)[kUnit]) {
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

TQC_AVX512 void load_nibbles(const std::uint8_t* lines, __m512i (&codes)[kUnit]) {
  TQC_UNROLL for (int g = 0; g < 4; ++g) {
    codes[2 * g] = load(lines + 64 * g);
    codes[2 * g + 1] = shift<-4>(codes[2 * g]);
  }
}

// Stands for codes of 8 bits that are multiplied as they are, and not looked up.
constexpr int kPlain = 0;

constexpr std::size_t unit_lines(int bits) {
  return bits == kPlain ? 8 : static_cast<std::size_t>(bits);
}

// The eight lines of bytes of a unit, with strays above the codes.
template <int kBits>
TQC_AVX512 void load_codes(const std::uint8_t* unit, __m512i (&codes)[kUnit]) {
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

// Asks for the memory of a unit that is kPrefetchAhead further on.
template <int kBits>
TQC_AVX512 void prefetch_unit(const std::uint8_t* unit) {
  for (std::size_t l = 0; l < unit_lines(kBits); ++l) {
    _mm_prefetch(reinterpret_cast<const char*>(unit) + l * kLineBytes + kPrefetchAhead,
                 _MM_HINT_T0);
  }
}

// One of the eight, likewise.
template <int kBits>
TQC_AVX512 __m512i load_line(const std::uint8_t* unit, std::size_t line) {
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

}  // namespace tqcache::codec::avx512

#endif  // TQCACHE_X86
