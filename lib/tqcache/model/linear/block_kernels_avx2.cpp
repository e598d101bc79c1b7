// Products with quantized weights in AVX2. Two groups fill one vector of eight lanes, so four
// vectors hold the lanes of a round.

#include "tqcache/model/linear/block_kernels.h"

#if defined(__x86_64__) && !defined(TQCACHE_SCALAR)

#include <algorithm>
#include <bit>
#include <cstring>

#include "tqcache/codec/kernels/lanes.h"
#include "tqcache/model/linear/block_codes_avx2.h"
#include "tqcache/model/linear/block_loops.h"
#include "tqcache/model/linear/lanes_avx2.h"

namespace tqcache::model {
namespace {

constexpr std::size_t kPairs = kRoundGroups / 2;

TQC_AVX2_INLINE __m256i load_32(const void* numbers) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(numbers));
}

// The codes of x in a part for the two groups of a pair, and one kind of their lane sums.
template <class Code>
TQC_AVX2_INLINE __m256i codes_of_x(const QuantizedView<Code>& x, int pair, std::size_t part) {
  return load_32(x.codes + loops::code_place<Code>(static_cast<std::size_t>(2 * pair), part));
}
template <class Code>
TQC_AVX2_INLINE __m256i sums_of_x(const QuantizedView<Code>& x, int pair, std::size_t kind) {
  return load_32(x.minus_sums + loops::sum_place(static_cast<std::size_t>(2 * pair), kind));
}

// Codes of eight bits, whose products with bytes of x do not fit 16 bits in pairs. Less their
// offset they fit, as signed bytes.
template <class Layout>
inline constexpr bool kInBytes = Layout::kOffset == 128;

// The products of x with the codes of one half of both groups.
template <class Layout>
TQC_AVX2_INLINE __m256i multiply_half(__m256i codes, const QuantizedView<std::int16_t>& x, int pair,
                                      std::size_t half) {
  const __m256i even = _mm256_and_si256(codes, _mm256_set1_epi16(255));
  const __m256i odd = _mm256_srli_epi16(codes, 8);
  return _mm256_add_epi32(_mm256_madd_epi16(even, codes_of_x(x, pair, 2 * half)),
                          _mm256_madd_epi16(odd, codes_of_x(x, pair, 2 * half + 1)));
}

// In bytes, codes of eight bits are multiplied less their offset.
template <class Layout>
TQC_AVX2_INLINE __m256i multiply_half(__m256i codes, const QuantizedView<std::int8_t>& x, int pair,
                                      std::size_t half) {
  __m256i of_x = codes_of_x(x, pair, half);
  if constexpr (kInBytes<Layout>) {  // the sign goes to x
    codes = _mm256_xor_si256(codes, bytes_of(128));
    of_x = _mm256_sign_epi8(of_x, codes);
    codes = _mm256_abs_epi8(codes);
  }
  return _mm256_madd_epi16(_mm256_maddubs_epi16(codes, of_x), _mm256_set1_epi16(1));
}

// Subtracts the offset of the codes from the lanes.
template <class Layout, class Code>
TQC_AVX2_INLINE __m256i add_offset(__m256i sums, __m256i minus_sums) {
  if constexpr (Layout::kOffset == 0 || (kInBytes<Layout> && sizeof(Code) == 1)) {
    return sums;
  } else {
    constexpr int kShift = std::countr_zero(static_cast<unsigned>(Layout::kOffset));
    return _mm256_add_epi32(sums, _mm256_slli_epi32(minus_sums, kShift));
  }
}

// Scales and minima of the runs of a round, multiplied by x's scales: of 8 runs, or of 16.
template <class Layout>
struct Factors {
  static constexpr std::size_t kVectors = 32 / Layout::kRun;
  __m256 scale[kVectors];
  __m256 minimum[kVectors];  // only if Layout has one
};

// Factors of runs a and b of a vector, four lanes each.
TQC_AVX2_INLINE __m256 two_runs(__m256 factors, int a, int b) {
  return _mm256_permutevar8x32_ps(factors, _mm256_setr_epi32(a, a, a, a, b, b, b, b));
}

TQC_AVX2_INLINE __m256 multiply_add(__m256 lanes, __m256i sums, __m256 factors) {
  return _mm256_add_ps(lanes, _mm256_mul_ps(_mm256_cvtepi32_ps(sums), factors));
}

// Adds the products of a pair that share a factor, and the minima of the same values, which
// multiply the negated sums of x. The factors of the two groups are those of runs a and b.
template <class Layout, class Code>
TQC_AVX2_INLINE __m256 add_runs(__m256 lanes, __m256i products, const Factors<Layout>& factors,
                                std::size_t vector, int a, int b, __m256i minus_sums) {
  const __m256i sums = add_offset<Layout, Code>(products, minus_sums);
  lanes = multiply_add(lanes, sums, two_runs(factors.scale[vector], a, b));
  if constexpr (Layout::kHasMinimum) {
    lanes = multiply_add(lanes, minus_sums, two_runs(factors.minimum[vector], a, b));
  }
  return lanes;
}

// Adds the groups of a pair, given their codes.
template <class Layout, class Code>
TQC_AVX2_INLINE __m256 add_pair(__m256 lanes, const Codes& codes, const Factors<Layout>& factors,
                                const QuantizedView<Code>& x, int pair) {
  const __m256i first = multiply_half<Layout>(codes.first, x, pair, 0);
  const __m256i second = multiply_half<Layout>(codes.second, x, pair, 1);
  if constexpr (Layout::kRun == 32) {
    const __m256i both = _mm256_add_epi32(first, second);
    return add_runs<Layout, Code>(lanes, both, factors, 0, 2 * pair, 2 * pair + 1,
                                  sums_of_x(x, pair, 2));
  }
  const auto vector = static_cast<std::size_t>(pair) / 2;
  const int run = pair % 2 * 4;
  lanes =
      add_runs<Layout, Code>(lanes, first, factors, vector, run, run + 2, sums_of_x(x, pair, 0));
  return add_runs<Layout, Code>(lanes, second, factors, vector, run + 1, run + 3,
                                sums_of_x(x, pair, 1));
}

TQC_AVX2_INLINE float load_half(const std::byte* bytes) {
  return _cvtsh_ss(layouts::load<std::uint16_t>(bytes));
}

// Numbers of f16, one of each of eight GGML blocks.
template <class Layout>
TQC_AVX2_INLINE __m256 load_halves(const std::byte* at) {
  __m128i halves = _mm_setzero_si128();
  const auto half = [&](int i) {
    return layouts::load<std::uint16_t>(at + i * int{Layout::kBytes});
  };
  halves = _mm_insert_epi16(halves, half(0), 0);
  halves = _mm_insert_epi16(halves, half(1), 1);
  halves = _mm_insert_epi16(halves, half(2), 2);
  halves = _mm_insert_epi16(halves, half(3), 3);
  halves = _mm_insert_epi16(halves, half(4), 4);
  halves = _mm_insert_epi16(halves, half(5), 5);
  halves = _mm_insert_epi16(halves, half(6), 6);
  halves = _mm_insert_epi16(halves, half(7), 7);
  return _mm256_cvtph_ps(halves);
}

// The two numbers of f16 with which each of eight GGML blocks begins.
struct HalfPairs {
  __m256 first;
  __m256 second;
};
template <class Layout>
TQC_AVX2_INLINE HalfPairs load_half_pairs(const std::byte* at) {
  const auto pair = [&](int i) {
    return layouts::load<std::int32_t>(at + i * int{Layout::kBytes});
  };
  const __m128i low = _mm_setr_epi32(pair(0), pair(1), pair(4), pair(5));
  const __m128i high = _mm_setr_epi32(pair(2), pair(3), pair(6), pair(7));
  const __m256 a = _mm256_cvtph_ps(low), b = _mm256_cvtph_ps(high);
  return {_mm256_shuffle_ps(a, b, 0x88), _mm256_shuffle_ps(a, b, 0xdd)};
}

// Scales and minima of eight GGML blocks of 32, of which the first n count; the factors of the
// others are zero. The file stores the minimum with the other sign.
template <class Layout>
TQC_AVX2_INLINE Factors<Layout> factors_of_blocks(const std::byte* blocks, const float* of_x,
                                                  int n) {
  const __m256i places = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256 wanted = _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(n), places));
  const __m256 scales_of_x = _mm256_loadu_ps(of_x);
  Factors<Layout> factors;
  if constexpr (Layout::kHasMinimum) {
    const HalfPairs halves = load_half_pairs<Layout>(blocks);
    const __m256 minus_x = _mm256_xor_ps(scales_of_x, _mm256_set1_ps(-0.0f));
    factors.scale[0] = _mm256_and_ps(_mm256_mul_ps(halves.first, scales_of_x), wanted);
    factors.minimum[0] = _mm256_and_ps(_mm256_mul_ps(halves.second, minus_x), wanted);
  } else if constexpr (Layout::kType == TensorType::kMXFP4) {
    float scale[kRoundGroups];
    for (std::size_t i = 0; i < kRoundGroups; ++i) {
      scale[i] = Layout::scale(blocks + i * Layout::kBytes);
    }
    factors.scale[0] = _mm256_and_ps(_mm256_mul_ps(_mm256_loadu_ps(scale), scales_of_x), wanted);
  } else {
    const __m256 scales = load_halves<Layout>(blocks);
    factors.scale[0] = _mm256_and_ps(_mm256_mul_ps(scales, scales_of_x), wanted);
  }
  return factors;
}

// Multiplies eight quantized scales by their f16 and by x's scales.
TQC_AVX2_INLINE __m256 multiply_steps(std::uint64_t steps, __m256 half, __m256 of_x) {
  const __m128i eight = _mm_cvtsi64_si128(static_cast<long long>(steps));
  return _mm256_mul_ps(_mm256_mul_ps(half, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(eight))), of_x);
}

template <std::size_t kRun>
TQC_AVX2_INLINE void set_factors(const std::uint64_t* steps, const std::byte* half,
                                 const float* scales_of_x, __m256* factors) {
  const __m256 factor = _mm256_set1_ps(load_half(half)), of_x = _mm256_loadu_ps(scales_of_x);
  if constexpr (kRun == 32) {
    factors[0] = multiply_steps(steps[0], factor, of_x);
  } else {
    const __m256i twice = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);  // one group has two runs
    const __m256i upper = _mm256_add_epi32(twice, _mm256_set1_epi32(4));
    factors[0] = multiply_steps(steps[0], factor, _mm256_permutevar8x32_ps(of_x, twice));
    factors[1] = multiply_steps(steps[1], factor, _mm256_permutevar8x32_ps(of_x, upper));
  }
}

// Scales and minima of a GGML block of 256.
template <class Layout>
TQC_AVX2_INLINE Factors<Layout> factors_of_runs(const std::byte* block, const float* of_x) {
  const auto steps = Layout::steps(block);
  Factors<Layout> factors;
  set_factors<Layout::kRun>(steps.scale, block + Layout::kScaleAt, of_x, factors.scale);
  if constexpr (Layout::kHasMinimum) {
    set_factors<Layout::kRun>(steps.minimum, block + Layout::kMinimumAt, of_x, factors.minimum);
  }
  return factors;
}

// Adds 256 values.
template <class Layout, class Code>
TQC_AVX2_INLINE void add_round(const std::byte* blocks, const QuantizedView<Code>& x,
                               __m256 (&lanes)[kPairs]) {
  if constexpr (Layout::kValues == kGroup) {
    const Factors<Layout> factors = factors_of_blocks<Layout>(blocks, x.scales, kRoundGroups);
    TQC_UNROLL for (int pair = 0; pair < int{kPairs}; ++pair, blocks += 2 * Layout::kBytes) {
      lanes[pair] =
          add_pair<Layout>(lanes[pair], codes_of_blocks<Layout>(blocks), factors, x, pair);
    }
  } else {
    const Factors<Layout> factors = factors_of_runs<Layout>(blocks, x.scales);
    TQC_UNROLL for (int pair = 0; pair < int{kPairs}; ++pair) {
      const Codes codes = {half_of_pair<Layout>(blocks, pair, 0),
                           half_of_pair<Layout>(blocks, pair, 16)};
      lanes[pair] = add_pair<Layout>(lanes[pair], codes, factors, x, pair);
    }
  }
}

// Adds the last n_groups < 8 groups of a row, of GGML blocks of 32. Reads a whole round: behind the
// row, whatever follows it.
template <class Layout, class Code>
TQC_AVX2_INLINE void add_rest(const std::byte* blocks, const QuantizedView<Code>& x,
                              std::size_t n_groups, __m256 (&lanes)[kPairs]) {
  const Factors<Layout> factors =
      factors_of_blocks<Layout>(blocks, x.scales, static_cast<int>(n_groups));
  TQC_UNROLL for (int pair = 0; pair < int{kPairs}; ++pair, blocks += 2 * Layout::kBytes) {
    if (static_cast<std::size_t>(2 * pair) >= n_groups) break;
    lanes[pair] = add_pair<Layout>(lanes[pair], codes_of_blocks<Layout>(blocks), factors, x, pair);
  }
}

// The sum of a row's lanes but for the last three foldings. `is_last`: less than
// loops::bytes_behind() follows the row.
template <class Layout, class Code>
TQC_AVX2_INLINE __m256 multiply_row(const std::byte* row, bool is_last,
                                    const QuantizedView<Code>& x, std::size_t n_groups) {
  constexpr std::size_t kRoundBytes = bytes_of_groups<Layout>(kRoundGroups);
  const __m256 zero = _mm256_setzero_ps();
  __m256 lanes[kPairs] = {zero, zero, zero, zero};
  const std::size_t n_rounds = n_groups / kRoundGroups;
  for (std::size_t i = 0; i < n_rounds; ++i, row += kRoundBytes) {
    loops::fetch_ahead(row, kRoundBytes);
    add_round<Layout>(row, loops::round_of(x, i), lanes);
  }
  if constexpr (Layout::kValues == kGroup) {
    const std::size_t n_left = n_groups % kRoundGroups;
    std::byte copy[kRoundBytes];
    if (is_last) {
      std::memset(copy, 0, kRoundBytes);
      std::memcpy(copy, row, n_left * Layout::kBytes);
      row = copy;
    }
    if (n_left > 0) add_rest<Layout>(row, loops::round_of(x, n_rounds), n_left, lanes);
  }
  return _mm256_add_ps(_mm256_add_ps(lanes[0], lanes[2]), _mm256_add_ps(lanes[1], lanes[3]));
}

// loops::fold of the eight lanes that are left of four rows.
TQC_AVX2_INLINE void fold_four(const __m256* rows, float* y) {
  const __m256 a = _mm256_add_ps(_mm256_permute2f128_ps(rows[0], rows[2], 0x20),
                                 _mm256_permute2f128_ps(rows[0], rows[2], 0x31));
  const __m256 b = _mm256_add_ps(_mm256_permute2f128_ps(rows[1], rows[3], 0x20),
                                 _mm256_permute2f128_ps(rows[1], rows[3], 0x31));
  // Two lanes of each row: those of rows 0 and 1, then those of rows 2 and 3.
  const __m256 two = _mm256_add_ps(_mm256_shuffle_ps(a, b, 0x44), _mm256_shuffle_ps(a, b, 0xee));
  const __m256 one = _mm256_add_ps(two, _mm256_movehdup_ps(two));
  const __m256 in_front = _mm256_permutevar8x32_ps(one, _mm256_setr_epi32(0, 2, 4, 6, 0, 0, 0, 0));
  _mm_storeu_ps(y, _mm256_castps256_ps128(in_front));
}

template <class Layout, class Code>
TQC_AVX2 void multiply_rows(const std::byte* rows, std::size_t n_rows, const QuantizedView<Code>& x,
                            std::size_t n_groups, float* y) {
  const std::size_t row_bytes = bytes_of_groups<Layout>(n_groups);
  const std::size_t behind = loops::bytes_behind<Layout, kRoundGroups>(n_groups);
  __m256 lanes[4] = {};  // of four rows, which are folded together
  for (std::size_t i = 0; i < n_rows; ++i, rows += row_bytes) {
    const bool is_last = (n_rows - i - 1) * row_bytes < behind;
    lanes[i % 4] = multiply_row<Layout>(rows, is_last, x, n_groups);
    if (i % 4 == 3) fold_four(lanes, y + i - 3);
  }
  if (n_rows % 4 == 0) return;
  float last[4];
  fold_four(lanes, last);
  std::copy_n(last, n_rows % 4, y + n_rows / 4 * 4);
}

template <class Code>
TQC_AVX2 void quantize_groups(const float* x, std::size_t n_groups, Code* codes,
                              std::int32_t* minus_sums, float* scales) {
  loops::quantize(x, n_groups, codes, minus_sums, scales);
}

struct Avx2 {
  template <class Code>
  static constexpr auto quantize() {
    return quantize_groups<Code>;
  }
  template <class Layout, class Code>
  static constexpr auto multiply() {
    return multiply_rows<Layout, Code>;
  }
};

}  // namespace

constexpr AllBlockKernels kAvx2Blocks = make_all_kernels<Avx2>();

}  // namespace tqcache::model

#endif
