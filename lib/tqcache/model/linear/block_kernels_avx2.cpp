// Products with quantized weights in AVX2. Two groups fill one vector of eight lanes, so four
// vectors hold the lanes of a round.

#include "tqcache/model/linear/block_kernels.h"

#if defined(__x86_64__) && !defined(TQCACHE_SCALAR)

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
template <class Form>
inline constexpr bool kInBytes = Form::kOffset == 128;

// The products of x with the codes of one half of both groups.
template <class Form>
TQC_AVX2_INLINE __m256i multiply_half(__m256i codes, const QuantizedView<std::int16_t>& x, int pair,
                                      std::size_t half) {
  const __m256i even = _mm256_and_si256(codes, _mm256_set1_epi16(255));
  const __m256i odd = _mm256_srli_epi16(codes, 8);
  return _mm256_add_epi32(_mm256_madd_epi16(even, codes_of_x(x, pair, 2 * half)),
                          _mm256_madd_epi16(odd, codes_of_x(x, pair, 2 * half + 1)));
}

// In bytes, codes of eight bits are multiplied less their offset.
template <class Form>
TQC_AVX2_INLINE __m256i multiply_half(__m256i codes, const QuantizedView<std::int8_t>& x, int pair,
                                      std::size_t half) {
  __m256i of_x = codes_of_x(x, pair, half);
  if constexpr (kInBytes<Form>) {  // the sign goes to x
    codes = _mm256_xor_si256(codes, bytes_of(128));
    of_x = _mm256_sign_epi8(of_x, codes);
    codes = _mm256_abs_epi8(codes);
  }
  return _mm256_madd_epi16(_mm256_maddubs_epi16(codes, of_x), _mm256_set1_epi16(1));
}

// Subtracts the offset of the codes from the lanes.
template <class Form, class Code>
TQC_AVX2_INLINE __m256i add_offset(__m256i sums, __m256i minus_sums) {
  if constexpr (Form::kOffset == 0 || (kInBytes<Form> && sizeof(Code) == 1)) {
    return sums;
  } else {
    constexpr int kShift = std::countr_zero(static_cast<unsigned>(Form::kOffset));
    return _mm256_add_epi32(sums, _mm256_slli_epi32(minus_sums, kShift));
  }
}

// Scales and minima of the runs of a round, multiplied by x's scales.
struct Factors {
  float scale[16];
  float minimum[16];
};

// Adds the products of a pair that share a factor, and the minima of the same values, which
// multiply the negated sums of x. The factors of the two groups are those of runs a and b.
template <class Form, class Code>
TQC_AVX2_INLINE __m256 add_runs(__m256 lanes, __m256i products, const Factors& factors,
                                std::size_t a, std::size_t b, __m256i minus_sums) {
  const __m256 scales =
      _mm256_set_m128(_mm_set1_ps(factors.scale[b]), _mm_set1_ps(factors.scale[a]));
  const __m256i sums = add_offset<Form, Code>(products, minus_sums);
  lanes = _mm256_add_ps(lanes, _mm256_mul_ps(_mm256_cvtepi32_ps(sums), scales));
  if constexpr (Form::kHasMinimum) {
    const __m256 minima =
        _mm256_set_m128(_mm_set1_ps(factors.minimum[b]), _mm_set1_ps(factors.minimum[a]));
    lanes = _mm256_add_ps(lanes, _mm256_mul_ps(_mm256_cvtepi32_ps(minus_sums), minima));
  }
  return lanes;
}

// Adds the groups of a pair, given their codes.
template <class Form, class Code>
TQC_AVX2_INLINE __m256 add_pair(__m256 lanes, const Codes& codes, const Factors& factors,
                                const QuantizedView<Code>& x, int pair) {
  const auto group = static_cast<std::size_t>(2 * pair);
  const __m256i first = multiply_half<Form>(codes.first, x, pair, 0);
  const __m256i second = multiply_half<Form>(codes.second, x, pair, 1);
  if constexpr (Form::kRun == 32) {
    const __m256i both = _mm256_add_epi32(first, second);
    return add_runs<Form, Code>(lanes, both, factors, group, group + 1, sums_of_x(x, pair, 2));
  }
  const std::size_t run = 2 * group;
  lanes = add_runs<Form, Code>(lanes, first, factors, run, run + 2, sums_of_x(x, pair, 0));
  return add_runs<Form, Code>(lanes, second, factors, run + 1, run + 3, sums_of_x(x, pair, 1));
}

TQC_AVX2_INLINE float load_half(const std::byte* bytes) {
  return _cvtsh_ss(forms::load<std::uint16_t>(bytes));
}

// The scale of a GGML block of 32.
template <class Form>
TQC_AVX2_INLINE float scale_of_block(const std::byte* block) {
  if constexpr (Form::kType == TensorType::kMXFP4) {
    return Form::scale(block);
  } else {
    return load_half(block);
  }
}

// Scales and minima of n <= 8 GGML blocks of 32; those of the next one are zero. The file stores
// the minimum with the other sign.
template <class Form>
TQC_AVX2_INLINE Factors factors_of_blocks(const std::byte* blocks, const float* of_x,
                                          std::size_t n) {
  Factors factors;
  factors.scale[n] = factors.minimum[n] = 0;
  for (std::size_t i = 0; i < n; ++i, blocks += Form::kBytes) {
    factors.scale[i] = scale_of_block<Form>(blocks) * of_x[i];
    if constexpr (Form::kHasMinimum) factors.minimum[i] = -load_half(blocks + 2) * of_x[i];
  }
  return factors;
}

// Multiplies eight quantized scales by their f16 and by x's scales.
TQC_AVX2_INLINE __m256 multiply_steps(std::uint64_t steps, __m256 half, __m256 of_x) {
  const __m128i eight = _mm_cvtsi64_si128(static_cast<long long>(steps));
  return _mm256_mul_ps(_mm256_mul_ps(half, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(eight))), of_x);
}

template <std::size_t kRun>
TQC_AVX2_INLINE void store_factors(const std::uint64_t* steps, const std::byte* half,
                                   const float* scales_of_x, float* factors) {
  const __m256 factor = _mm256_set1_ps(load_half(half)), of_x = _mm256_loadu_ps(scales_of_x);
  if constexpr (kRun == 32) {
    _mm256_storeu_ps(factors, multiply_steps(steps[0], factor, of_x));
    return;
  }
  const __m256i twice = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);  // one group has two runs
  const __m256i upper = _mm256_add_epi32(twice, _mm256_set1_epi32(4));
  const __m256 low_x = _mm256_permutevar8x32_ps(of_x, twice);
  const __m256 high_x = _mm256_permutevar8x32_ps(of_x, upper);
  _mm256_storeu_ps(factors, multiply_steps(steps[0], factor, low_x));
  _mm256_storeu_ps(factors + 8, multiply_steps(steps[1], factor, high_x));
}

// Scales and minima of a GGML block of 256.
template <class Form>
TQC_AVX2_INLINE Factors factors_of_runs(const std::byte* block, const float* of_x) {
  const auto steps = Form::steps(block);
  Factors factors;
  store_factors<Form::kRun>(steps.scale, block + Form::kScaleAt, of_x, factors.scale);
  if constexpr (Form::kHasMinimum) {
    store_factors<Form::kRun>(steps.minimum, block + Form::kMinimumAt, of_x, factors.minimum);
  }
  return factors;
}

// Adds 256 values.
template <class Form, class Code>
TQC_AVX2_INLINE void add_round(const std::byte* blocks, const QuantizedView<Code>& x,
                               __m256 (&lanes)[kPairs]) {
  if constexpr (Form::kValues == kGroup) {
    const Factors factors = factors_of_blocks<Form>(blocks, x.scales, kRoundGroups);
    TQC_UNROLL for (int pair = 0; pair < int{kPairs}; ++pair, blocks += 2 * Form::kBytes) {
      lanes[pair] = add_pair<Form>(lanes[pair], codes_of_blocks<Form>(blocks), factors, x, pair);
    }
  } else {
    const Factors factors = factors_of_runs<Form>(blocks, x.scales);
    TQC_UNROLL for (int pair = 0; pair < int{kPairs}; ++pair) {
      const Codes codes = {half_of_pair<Form>(blocks, pair, 0),
                           half_of_pair<Form>(blocks, pair, 16)};
      lanes[pair] = add_pair<Form>(lanes[pair], codes, factors, x, pair);
    }
  }
}

// Adds the last n_groups < 8 groups of a row, of GGML blocks of 32. Reads whole pairs: behind the
// row, whatever follows it.
template <class Form, class Code>
TQC_AVX2_INLINE void add_rest(const std::byte* blocks, const QuantizedView<Code>& x,
                              std::size_t n_groups, __m256 (&lanes)[kPairs]) {
  const Factors factors = factors_of_blocks<Form>(blocks, x.scales, n_groups);
  TQC_UNROLL for (int pair = 0; pair < int{kPairs}; ++pair, blocks += 2 * Form::kBytes) {
    if (static_cast<std::size_t>(2 * pair) >= n_groups) break;
    lanes[pair] = add_pair<Form>(lanes[pair], codes_of_blocks<Form>(blocks), factors, x, pair);
  }
}

// `is_last`: nothing follows the row.
template <class Form, class Code>
TQC_AVX2_INLINE float multiply_row(const std::byte* row, bool is_last, const QuantizedView<Code>& x,
                                   std::size_t n_groups) {
  const __m256 zero = _mm256_setzero_ps();
  __m256 lanes[kPairs] = {zero, zero, zero, zero};
  const std::size_t n_rounds = n_groups / kRoundGroups;
  for (std::size_t i = 0; i < n_rounds; ++i, row += bytes_of_groups<Form>(kRoundGroups)) {
    add_round<Form>(row, loops::round_of(x, i), lanes);
  }
  if constexpr (Form::kValues == kGroup) {
    const std::size_t n_left = n_groups % kRoundGroups;
    std::byte copy[bytes_of_groups<Form>(kRoundGroups)] = {};
    if (is_last && n_left % 2 != 0) {
      std::memcpy(copy, row, n_left * Form::kBytes);
      row = copy;
    }
    if (n_left > 0) add_rest<Form>(row, loops::round_of(x, n_rounds), n_left, lanes);
  }
  return fold(lanes[0], lanes[1], lanes[2], lanes[3]);
}

template <class Form, class Code>
TQC_AVX2 void multiply_rows(const std::byte* rows, std::size_t n_rows, const QuantizedView<Code>& x,
                            std::size_t n_groups, float* y) {
  const std::size_t row_bytes = bytes_of_groups<Form>(n_groups);
  for (std::size_t i = 0; i < n_rows; ++i, rows += row_bytes) {
    y[i] = multiply_row<Form>(rows, i + 1 == n_rows, x, n_groups);
  }
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
  template <class Form, class Code>
  static constexpr auto multiply() {
    return multiply_rows<Form, Code>;
  }
};

}  // namespace

constexpr AllBlockKernels kAvx2Blocks = make_all_kernels<Avx2>();

}  // namespace tqcache::model

#endif
