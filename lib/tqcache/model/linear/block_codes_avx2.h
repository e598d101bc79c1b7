// model/linear/block_codes_avx2.h: the codes of two groups, one byte each, in AVX2. Only for
// model/linear/block_kernels_avx2.cpp.

#include <cstdint>

#include "tqcache/model/linear/lanes_avx2.h"
#include "tqcache/tensors/block_layouts.h"

namespace tqcache::model {
namespace {

namespace layouts = tensors::layouts;
using tensors::TensorType;

// The first halves of two groups, 16 codes per vector half, and the second halves.
struct Codes {
  __m256i first;
  __m256i second;
};

TQC_AVX2_INLINE __m128i load_16(const std::byte* bytes) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes));
}

TQC_AVX2_INLINE __m256i bytes_of(int value) { return _mm256_set1_epi8(static_cast<char>(value)); }

TQC_AVX2_INLINE __m256i load_twice(const std::byte* bytes) {
  return _mm256_broadcastsi128_si256(load_16(bytes));
}

// Loads 16 bytes from each of two addresses.
TQC_AVX2_INLINE __m256i load_pair(const std::byte* a, const std::byte* b) {
  return _mm256_inserti128_si256(_mm256_castsi128_si256(load_16(a)), load_16(b), 1);
}

// Shifts the bytes of the two vector halves by different counts. The shifts cross byte boundaries;
// `mask` clears the bits that came in.
TQC_AVX2_INLINE __m256i shift_halves(__m256i bytes, int a, int b, int mask) {
  const __m256i shifts = _mm256_set_epi64x(b, b, a, a);
  return _mm256_and_si256(_mm256_srlv_epi64(bytes, shifts), bytes_of(mask));
}

TQC_AVX2_INLINE __m256i lower_nibbles(__m256i bytes) {
  return _mm256_and_si256(bytes, bytes_of(15));
}
TQC_AVX2_INLINE __m256i upper_nibbles(__m256i bytes) {
  return lower_nibbles(_mm256_srli_epi16(bytes, 4));
}

// Adds `value` to the codes whose byte in `bytes` has the bit set in `bit`.
TQC_AVX2_INLINE __m256i add_where(__m256i codes, __m256i bytes, __m256i bit, int value) {
  const __m256i found = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit), bit);
  return _mm256_add_epi8(codes, _mm256_and_si256(found, bytes_of(value)));
}

// Adds the fifth bits of 16 codes in each of two GGML blocks, stored in two bytes per block.
TQC_AVX2_INLINE __m256i add_fifth_bits(__m256i codes, const std::byte* a, const std::byte* b) {
  const int of_a = layouts::load<std::uint16_t>(a), of_b = layouts::load<std::uint16_t>(b);
  const __m256i words = _mm256_set_m128i(_mm_set1_epi16(static_cast<short>(of_b)),
                                         _mm_set1_epi16(static_cast<short>(of_a)));
  const __m256i eight_each =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1));
  const __m256i bit = _mm256_set1_epi64x(static_cast<long long>(0x8040201008040201));
  return add_where(codes, _mm256_shuffle_epi8(words, eight_each), bit, 16);
}

// The codes of two GGML blocks of 32.
template <class Layout>
TQC_AVX2_INLINE Codes codes_of_blocks(const std::byte* blocks) {
  const std::byte* const a = blocks + Layout::kCodesAt;
  const std::byte* const b = a + Layout::kBytes;
  if constexpr (Layout::kType == TensorType::kQ8_0) {
    return {_mm256_xor_si256(load_pair(a, b), bytes_of(128)),
            _mm256_xor_si256(load_pair(a + 16, b + 16), bytes_of(128))};
  }
  const __m256i both = load_pair(a, b);
  const Codes codes = {lower_nibbles(both), upper_nibbles(both)};
  if constexpr (layouts::WithTable<Layout>) {
    const __m256i signed_table =
        load_twice(reinterpret_cast<const std::byte*>(Layout::kTable.data()));
    const __m256i table = _mm256_add_epi8(signed_table, bytes_of(Layout::kOffset));
    return {_mm256_shuffle_epi8(table, codes.first), _mm256_shuffle_epi8(table, codes.second)};
  }
  if constexpr (Layout::kType == TensorType::kQ5_0 || Layout::kType == TensorType::kQ5_1) {
    const std::byte* const bits = blocks + Layout::kBitsAt;
    return {add_fifth_bits(codes.first, bits, bits + Layout::kBytes),
            add_fifth_bits(codes.second, bits + 2, bits + Layout::kBytes + 2)};
  }
  return codes;
}

// One half of groups 2 pair and 2 pair + 1 of a GGML block of 256: `half` is 0 or 16.
template <class Layout>
TQC_AVX2_INLINE __m256i half_of_pair(const std::byte* block, int pair, std::size_t half) {
  const std::byte* const at = block + Layout::kCodesAt + half;
  const __m256i bits = _mm256_set_m128i(_mm_set1_epi8(static_cast<char>(2 << 2 * pair)),
                                        _mm_set1_epi8(static_cast<char>(1 << 2 * pair)));
  const int odd = pair % 2 * 4;
  if constexpr (Layout::kType == TensorType::kQ6_K) {
    const std::byte* const low = at + pair / 2 * 64;
    const __m256i high = load_twice(block + Layout::kBitsAt + half + pair / 2 * 32);
    return _mm256_or_si256(shift_halves(load_pair(low, low + 32), odd, odd, 15),
                           _mm256_slli_epi16(shift_halves(high, odd, odd + 2, 3), 4));
  } else if constexpr (Layout::kRun == 32) {  // Q4_K, Q5_K
    const __m256i codes = shift_halves(load_twice(at + pair * 32), 0, 4, 15);
    if constexpr (Layout::kType == TensorType::kQ4_K) return codes;
    return add_where(codes, load_twice(block + layouts::Q5_K::kBitsAt + half), bits, 16);
  } else {  // Q2_K, Q3_K
    const __m256i codes = shift_halves(load_twice(at + pair / 2 * 32), odd, odd + 2, 3);
    if constexpr (Layout::kType == TensorType::kQ2_K) return codes;
    return add_where(codes, load_twice(block + layouts::Q3_K::kBitsAt + half), bits, 4);
  }
}

}  // namespace
}  // namespace tqcache::model
