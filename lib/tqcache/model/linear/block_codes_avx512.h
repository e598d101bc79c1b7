// model/linear/block_codes_avx512.h: the codes of four groups, one byte each, in AVX-512. Only for
// model/linear/block_kernels_avx512.cpp.

#include <algorithm>
#include <cstdint>

#include "tqcache/model/linear/lanes_avx512.h"
#include "tqcache/tensors/block_layouts.h"

namespace tqcache::model {
namespace {

namespace layouts = tensors::layouts;
using tensors::TensorType;

// The first halves of four groups, 16 codes per vector quarter, and the second halves.
struct Codes {
  __m512i first;
  __m512i second;
};

// Codes that are plain 4-bit numbers and can be multiplied without unpacking.
template <class Layout>
inline constexpr bool kInNibbles =
    Layout::kType == TensorType::kQ4_0 || Layout::kType == TensorType::kQ4_1;

TQC_AVX512_INLINE __m128i load_16(const std::byte* bytes) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes));
}

TQC_AVX512_INLINE __m512i bytes_of(int value) { return _mm512_set1_epi8(static_cast<char>(value)); }

// Loads 16 bytes from each of four addresses.
TQC_AVX512_INLINE __m512i load_quarters(const std::byte* bytes, std::size_t stride) {
  __m512i quarters = _mm512_castsi128_si512(load_16(bytes));
  quarters = _mm512_mask_broadcast_i32x4(quarters, 0x00f0, load_16(bytes + stride));
  quarters = _mm512_mask_broadcast_i32x4(quarters, 0x0f00, load_16(bytes + 2 * stride));
  return _mm512_mask_broadcast_i32x4(quarters, 0xf000, load_16(bytes + 3 * stride));
}

TQC_AVX512_INLINE __m512i load_everywhere(const std::byte* bytes) {
  return _mm512_broadcast_i32x4(load_16(bytes));
}

// One byte value per vector quarter.
TQC_AVX512_INLINE __m512i quarters(unsigned a, unsigned b, unsigned c, unsigned d) {
  const auto eight = [](unsigned byte) {
    return static_cast<long long>(std::uint64_t{byte} * 0x0101010101010101);
  };
  const long long e[] = {eight(a), eight(b), eight(c), eight(d)};
  return _mm512_set_epi64(e[3], e[3], e[2], e[2], e[1], e[1], e[0], e[0]);
}

// Shifts the bytes of the four vector quarters by different counts. The shifts cross byte
// boundaries; `mask` clears the bits that came in.
TQC_AVX512_INLINE __m512i shift_quarters(__m512i bytes, long long a, long long b, long long c,
                                         long long d, int mask) {
  const __m512i shifts = _mm512_set_epi64(d, d, c, c, b, b, a, a);
  return _mm512_and_si512(_mm512_srlv_epi64(bytes, shifts), bytes_of(mask));
}

TQC_AVX512_INLINE __m512i lower_nibbles(__m512i bytes) {
  return _mm512_and_si512(bytes, bytes_of(15));
}
TQC_AVX512_INLINE __m512i upper_nibbles(__m512i bytes) {
  return lower_nibbles(_mm512_srli_epi16(bytes, 4));
}

// Adds `value` to the codes whose bit is set.
TQC_AVX512_INLINE __m512i add_where(__m512i codes, __mmask64 bits, int value) {
  return _mm512_mask_add_epi8(codes, bits, codes, bytes_of(value));
}

// Loads two bytes from each of four addresses, as mask bits of the quarters.
TQC_AVX512_INLINE __mmask64 load_bits(const std::byte* bytes, std::size_t stride) {
  std::uint64_t bits = 0;
  for (std::size_t i = 0; i < 4; ++i) {
    bits |= std::uint64_t{layouts::load<std::uint16_t>(bytes + i * stride)} << (16 * i);
  }
  return bits;
}

// The codes of four GGML blocks of 32.
template <class Layout>
TQC_AVX512_INLINE Codes codes_of_blocks(const std::byte* blocks) {
  const std::byte* const at = blocks + Layout::kCodesAt;
  if constexpr (Layout::kType == TensorType::kQ8_0) {
    return {_mm512_xor_si512(load_quarters(at, Layout::kBytes), bytes_of(128)),
            _mm512_xor_si512(load_quarters(at + 16, Layout::kBytes), bytes_of(128))};
  }
  const __m512i both = load_quarters(at, Layout::kBytes);
  const Codes codes = {lower_nibbles(both), upper_nibbles(both)};
  if constexpr (layouts::WithTable<Layout>) {
    const __m512i signed_table =
        load_everywhere(reinterpret_cast<const std::byte*>(Layout::kTable.data()));
    const __m512i table = _mm512_add_epi8(signed_table, bytes_of(Layout::kOffset));
    return {_mm512_shuffle_epi8(table, codes.first), _mm512_shuffle_epi8(table, codes.second)};
  }
  if constexpr (Layout::kType == TensorType::kQ5_0 || Layout::kType == TensorType::kQ5_1) {
    const std::byte* const bits = blocks + Layout::kBitsAt;
    return {add_where(codes.first, load_bits(bits, Layout::kBytes), 16),
            add_where(codes.second, load_bits(bits + 2, Layout::kBytes), 16)};
  }
  return codes;
}

// One half of groups 4 step to 4 step + 3 of a GGML block of 256: `half` is 0 or 16.
template <class Layout>
TQC_AVX512_INLINE __m512i half_of_step(const std::byte* block, int step, std::size_t half) {
  const std::byte* const at = block + Layout::kCodesAt + half;
  const unsigned bit = step == 0 ? 1 : 16;  // of the first of the four groups
  const __m512i bits = quarters(bit, bit << 1, bit << 2, bit << 3);
  if constexpr (Layout::kType == TensorType::kQ6_K) {
    const __m512i first = load_everywhere(at + step * 64);
    const __m512i low = _mm512_mask_broadcast_i32x4(first, 0xf0f0, load_16(at + step * 64 + 32));
    const __m512i high = load_everywhere(block + Layout::kBitsAt + half + step * 32);
    return _mm512_or_si512(shift_quarters(low, 0, 0, 4, 4, 15),
                           _mm512_slli_epi16(shift_quarters(high, 0, 2, 4, 6, 3), 4));
  } else if constexpr (Layout::kRun == 32) {  // Q4_K, Q5_K
    const __m512i first = load_everywhere(at + step * 64);
    const __m512i both = _mm512_mask_broadcast_i32x4(first, 0xff00, load_16(at + step * 64 + 32));
    const __m512i codes = shift_quarters(both, 0, 4, 0, 4, 15);
    if constexpr (Layout::kType == TensorType::kQ4_K) return codes;
    const __m512i fifth = load_everywhere(block + layouts::Q5_K::kBitsAt + half);
    return add_where(codes, _mm512_test_epi8_mask(fifth, bits), 16);
  } else {  // Q2_K, Q3_K
    const __m512i codes = shift_quarters(load_everywhere(at + step * 32), 0, 2, 4, 6, 3);
    if constexpr (Layout::kType == TensorType::kQ2_K) return codes;
    const __m512i third = load_everywhere(block + layouts::Q3_K::kBitsAt + half);
    return add_where(codes, _mm512_test_epi8_mask(third, bits), 4);
  }
}

// One f16 of each of four GGML blocks of 32, `kAt` bytes into it, copied to the four lanes of its
// group; extracted from one or two vectors of their bytes.
template <class Layout, std::size_t kAt>
TQC_AVX512_INLINE __m512 load_halves_of(const std::byte* blocks) {
  constexpr std::size_t kSecond = std::min<std::size_t>(64, 4 * Layout::kBytes - 64);
  constexpr auto kPlaces = [](std::size_t block) {
    const std::size_t place = block * Layout::kBytes + kAt;
    const std::uint64_t word = place + 2 <= 64 ? place / 2 : 32 + (place - kSecond) / 2;
    return static_cast<long long>(word * 0x0001000100010001);
  };
  const __m512i places =
      _mm512_set_epi64(0, 0, 0, 0, kPlaces(3), kPlaces(2), kPlaces(1), kPlaces(0));
  __m512i found = _mm512_loadu_si512(blocks);
  if constexpr (3 * Layout::kBytes + kAt + 2 <= 64) {
    found = _mm512_permutexvar_epi16(places, found);
  } else {
    found = _mm512_permutex2var_epi16(found, places, _mm512_loadu_si512(blocks + kSecond));
  }
  return _mm512_cvtph_ps(_mm512_castsi512_si256(found));
}

// Copies each of four factors to the four lanes of its group.
TQC_AVX512_INLINE __m512 spread(__m128 factors) {
  const __m512i lanes = _mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0);
  return _mm512_permutexvar_ps(lanes, _mm512_castps128_ps512(factors));
}

// The scales of four GGML blocks of 32, each in the four lanes of its group.
template <class Layout>
TQC_AVX512_INLINE __m512 scales_of_blocks(const std::byte* blocks) {
  if constexpr (Layout::kType == TensorType::kMXFP4) {
    return spread(_mm_setr_ps(Layout::scale(blocks), Layout::scale(blocks + Layout::kBytes),
                              Layout::scale(blocks + 2 * Layout::kBytes),
                              Layout::scale(blocks + 3 * Layout::kBytes)));
  } else {
    return load_halves_of<Layout, 0>(blocks);
  }
}

}  // namespace
}  // namespace tqcache::model
