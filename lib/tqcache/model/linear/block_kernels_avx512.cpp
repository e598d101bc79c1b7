// Products with quantized weights in AVX-512 with VNNI. A step of four groups fills one vector of
// sixteen lanes; each quarter of a vector of codes holds the first or the second half of one group,
// sixteen bytes.

#include "tqcache/model/linear/block_kernels.h"

#if defined(__x86_64__) && !defined(TQCACHE_SCALAR)

#include <bit>
#include <cstring>

#define TQC_AVX512_TARGET gnu::target("avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")

#include "tqcache/model/linear/block_codes_avx512.h"
#include "tqcache/model/linear/block_loops.h"
#include "tqcache/model/linear/lanes_avx512.h"

namespace tqcache::model {
namespace {

// sums + the products of the codes of a part of x: pairs of words, or fours of bytes.
TQC_AVX512_INLINE __m512i multiply_codes(__m512i sums, __m512i codes, const std::int16_t* of_x) {
  return _mm512_dpwssd_epi32(sums, codes, _mm512_loadu_si512(of_x));
}
TQC_AVX512_INLINE __m512i multiply_codes(__m512i sums, __m512i codes, const std::int8_t* of_x) {
  return _mm512_dpbusd_epi32(sums, codes, _mm512_loadu_si512(of_x));
}

// sums + the products of x with the codes of one half of the groups. Words: the even values, then
// the odd ones.
template <class Code>
TQC_AVX512_INLINE __m512i multiply_half(__m512i sums, __m512i codes, const QuantizedView<Code>& x,
                                        std::size_t half) {
  const Code* const of_x = x.codes + half * kStepParts<Code> / 2 * kPartCodes<Code>;
  if constexpr (sizeof(Code) == 1) {
    return multiply_codes(sums, codes, of_x);
  } else {
    sums = multiply_codes(sums, _mm512_and_si512(codes, _mm512_set1_epi16(255)), of_x);
    return multiply_codes(sums, _mm512_srli_epi16(codes, 8), of_x + kPartCodes<Code>);
  }
}

// sums + the products of x with the codes of both halves.
template <class Code>
TQC_AVX512_INLINE __m512i multiply_both(__m512i sums, const Codes& codes,
                                        const QuantizedView<Code>& x) {
  return multiply_half(multiply_half(sums, codes.first, x, 0), codes.second, x, 1);
}

// The same for 4-bit codes that are still packed two per byte.
TQC_AVX512_INLINE __m512i multiply_nibbles(__m512i sums, __m512i bytes,
                                           const QuantizedView<std::int8_t>& x) {
  return multiply_both(sums, {lower_nibbles(bytes), upper_nibbles(bytes)}, x);
}
TQC_AVX512_INLINE __m512i multiply_nibbles(__m512i sums, __m512i bytes,
                                           const QuantizedView<std::int16_t>& x) {
  constexpr std::size_t kPart = kPartCodes<std::int16_t>;
  const __m512i mask = _mm512_set1_epi16(15);
  sums = multiply_codes(sums, _mm512_and_si512(bytes, mask), x.codes);
  sums = multiply_codes(sums, _mm512_and_si512(_mm512_srli_epi16(bytes, 8), mask), x.codes + kPart);
  sums = multiply_codes(sums, _mm512_and_si512(_mm512_srli_epi16(bytes, 4), mask),
                        x.codes + 2 * kPart);
  return multiply_codes(sums, _mm512_srli_epi16(bytes, 12), x.codes + 3 * kPart);
}

// The correction of the lanes for the offset of the codes.
template <class Layout>
TQC_AVX512_INLINE __m512i offset_sums(const std::int32_t* minus_sums) {
  if constexpr (Layout::kOffset == 0) {
    return _mm512_setzero_si512();
  } else {
    constexpr unsigned kShift = std::countr_zero(static_cast<unsigned>(Layout::kOffset));
    return _mm512_slli_epi32(_mm512_loadu_si512(minus_sums), kShift);
  }
}

TQC_AVX512_INLINE __m512 multiply_add(__m512 lanes, __m512i sums, __m512 factors) {
  return _mm512_add_ps(lanes, _mm512_mul_ps(_mm512_cvtepi32_ps(sums), factors));
}

// The lanes of four GGML blocks of 32, before scaling.
template <class Layout, class Code>
TQC_AVX512_INLINE __m512i multiply_blocks(const std::byte* blocks, const QuantizedView<Code>& x) {
  const __m512i sums = offset_sums<Layout>(x.minus_sums + 2 * kStepLanes);
  if constexpr (kInNibbles<Layout>) {
    return multiply_nibbles(sums, load_quarters(blocks + Layout::kCodesAt, Layout::kBytes), x);
  } else {
    return multiply_both(sums, codes_of_blocks<Layout>(blocks), x);
  }
}

// Adds four GGML blocks of 32. `wanted`: the lanes of those that the row has.
template <class Layout, class Code>
TQC_AVX512_INLINE __m512 add_blocks(__m512 lanes, const std::byte* blocks,
                                    const QuantizedView<Code>& x, __mmask16 wanted = 0xffff) {
  const __m512 of_x = spread(_mm_loadu_ps(x.scales));
  const __m512 scales = _mm512_maskz_mul_ps(wanted, scales_of_blocks<Layout>(blocks), of_x);
  lanes = multiply_add(lanes, multiply_blocks<Layout>(blocks, x), scales);
  if constexpr (Layout::kHasMinimum) {  // the file stores it with the other sign
    const __m512 minus_x = _mm512_xor_ps(of_x, _mm512_set1_ps(-0.0f));
    const __m512 minima = _mm512_maskz_mul_ps(wanted, load_halves_of<Layout, 2>(blocks), minus_x);
    lanes = multiply_add(lanes, _mm512_loadu_si512(x.minus_sums + 2 * kStepLanes), minima);
  }
  return lanes;
}

// Factors of every run of a GGML block of 256, multiplied by x's scales.
struct Factors {
  __m512 scale;
  __m512 minimum;  // only if Layout has one
};

template <class Layout>
TQC_AVX512_INLINE __m512 factors_of_runs(const std::uint64_t* steps, const std::byte* half,
                                         __m512 of_x) {
  const auto first = static_cast<long long>(steps[0]);
  const auto last = static_cast<long long>(steps[Layout::kRuns / 8 - 1]);
  const __m512i wide = _mm512_cvtepi8_epi32(_mm_set_epi64x(last, first));
  const __m512 factor = _mm512_set1_ps(_cvtsh_ss(layouts::load<std::uint16_t>(half)));
  return _mm512_mul_ps(_mm512_mul_ps(factor, _mm512_cvtepi32_ps(wide)), of_x);
}

template <class Layout>
TQC_AVX512_INLINE Factors factors_of_block(const std::byte* block, const float* scales_of_x) {
  __m512 of_x = _mm512_castps256_ps512(_mm256_loadu_ps(scales_of_x));
  if constexpr (Layout::kRun == 16) {  // one group has two runs
    const __m512i twice = _mm512_set_epi32(7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0);
    of_x = _mm512_permutexvar_ps(twice, of_x);
  }
  const auto steps = Layout::steps(block);
  Factors factors{};
  factors.scale = factors_of_runs<Layout>(steps.scale, block + Layout::kScaleAt, of_x);
  if constexpr (Layout::kHasMinimum) {
    factors.minimum = factors_of_runs<Layout>(steps.minimum, block + Layout::kMinimumAt, of_x);
  }
  return factors;
}

// Adds the products `sums` of a step's lanes that share a factor, and the minima of the same
// values, which multiply the `kind`-th sums of x. `runs`: the run whose factor each lane uses.
template <class Layout, class Code>
TQC_AVX512_INLINE __m512 add_runs(__m512 lanes, __m512i sums, const Factors& factors, __m512i runs,
                                  const QuantizedView<Code>& x, std::size_t kind) {
  lanes = multiply_add(lanes, sums, _mm512_permutexvar_ps(runs, factors.scale));
  if constexpr (Layout::kHasMinimum) {
    lanes = multiply_add(lanes, _mm512_loadu_si512(x.minus_sums + kind * kStepLanes),
                         _mm512_permutexvar_ps(runs, factors.minimum));
  }
  return lanes;
}

// Adds groups 4 step to 4 step + 3 of a GGML block of 256.
template <class Layout, class Code>
TQC_AVX512_INLINE __m512 add_step(__m512 lanes, const std::byte* block, int step,
                                  const Factors& factors, const QuantizedView<Code>& x) {
  const __m512i quarter = _mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0);
  const Codes codes = {half_of_step<Layout>(block, step, 0), half_of_step<Layout>(block, step, 16)};
  if constexpr (Layout::kRun == 32) {
    const __m512i offset = offset_sums<Layout>(x.minus_sums + 2 * kStepLanes);
    const __m512i runs = _mm512_add_epi32(quarter, _mm512_set1_epi32(4 * step));
    return add_runs<Layout>(lanes, multiply_both(offset, codes, x), factors, runs, x, 2);
  } else {
    const __m512i runs =
        _mm512_add_epi32(_mm512_slli_epi32(quarter, 1), _mm512_set1_epi32(8 * step));
    const __m512i first = multiply_half(offset_sums<Layout>(x.minus_sums), codes.first, x, 0);
    lanes = add_runs<Layout>(lanes, first, factors, runs, x, 0);
    const __m512i second =
        multiply_half(offset_sums<Layout>(x.minus_sums + kStepLanes), codes.second, x, 1);
    return add_runs<Layout>(lanes, second, factors, _mm512_add_epi32(runs, _mm512_set1_epi32(1)), x,
                            1);
  }
}

template <class Code>
TQC_AVX512_INLINE QuantizedView<Code> second_step(const QuantizedView<Code>& x) {
  return {x.codes + kStepParts<Code> * kPartCodes<Code>, x.minus_sums + kStepSums * kStepLanes,
          x.scales + kStepGroups};
}

// Adds 256 values: the first step to the lower lanes, the second to the upper ones.
template <class Layout, class Code>
TQC_AVX512_INLINE void add_round(const std::byte* blocks, const QuantizedView<Code>& x,
                                 __m512& lower, __m512& upper) {
  if constexpr (Layout::kValues == kGroup) {
    lower = add_blocks<Layout>(lower, blocks, x);
    upper = add_blocks<Layout>(upper, blocks + kStepGroups * Layout::kBytes, second_step(x));
  } else {
    const Factors factors = factors_of_block<Layout>(blocks, x.scales);
    lower = add_step<Layout>(lower, blocks, 0, factors, x);
    upper = add_step<Layout>(upper, blocks, 1, factors, second_step(x));
  }
}

// Adds the last n_groups < 8 groups of a row, of GGML blocks of 32. Reads whole steps: behind the
// row, whatever follows it.
template <class Layout, class Code>
TQC_AVX512_INLINE void add_rest(const std::byte* blocks, const QuantizedView<Code>& x,
                                std::size_t n_groups, __m512& lower, __m512& upper) {
  const auto wanted = static_cast<__mmask16>((1u << n_groups % kStepGroups * kGroupLanes) - 1);
  if (n_groups < kStepGroups) {
    lower = add_blocks<Layout>(lower, blocks, x, wanted);
    return;
  }
  lower = add_blocks<Layout>(lower, blocks, x);
  if (n_groups == kStepGroups) return;
  upper = add_blocks<Layout>(upper, blocks + kStepGroups * Layout::kBytes, second_step(x), wanted);
}

// Sets the lanes of a row. `is_last`: less than loops::bytes_behind() follows it.
template <class Layout, class Code>
TQC_AVX512_INLINE void multiply_row(const std::byte* row, bool is_last,
                                    const QuantizedView<Code>& x, std::size_t n_groups,
                                    __m512& lower, __m512& upper) {
  constexpr std::size_t kRoundBytes = bytes_of_groups<Layout>(kRoundGroups);
  __m512 low = _mm512_setzero_ps(), high = low;
  const std::size_t n_rounds = n_groups / kRoundGroups;
  for (std::size_t i = 0; i < n_rounds; ++i, row += kRoundBytes) {
    loops::fetch_ahead(row, kRoundBytes);
    add_round<Layout>(row, loops::round_of(x, i), low, high);
  }
  if constexpr (Layout::kValues == kGroup) {
    const std::size_t n_left = n_groups % kRoundGroups;
    std::byte copy[kRoundBytes];
    if (is_last) {
      std::memset(copy, 0, kRoundBytes);
      std::memcpy(copy, row, n_left * Layout::kBytes);
      row = copy;
    }
    if (n_left > 0) add_rest<Layout>(row, loops::round_of(x, n_rounds), n_left, low, high);
  }
  lower = low;
  upper = high;
}

template <class Layout, class Code>
TQC_AVX512 void multiply_rows(const std::byte* rows, std::size_t n_rows,
                              const QuantizedView<Code>& x, std::size_t n_groups, float* y) {
  const std::size_t row_bytes = bytes_of_groups<Layout>(n_groups);
  const std::size_t behind = loops::bytes_behind<Layout, kStepGroups>(n_groups);
  __m512 lower[4] = {}, upper[4] = {};  // of four rows, which are folded together
  for (std::size_t i = 0; i < n_rows; ++i, rows += row_bytes) {
    const bool is_last = (n_rows - i - 1) * row_bytes < behind;
    multiply_row<Layout>(rows, is_last, x, n_groups, lower[i % 4], upper[i % 4]);
    if (i % 4 == 3) _mm_storeu_ps(y + i - 3, fold_four(lower, upper));
  }
  for (std::size_t i = n_rows / 4 * 4; i < n_rows; ++i) y[i] = fold(lower[i % 4], upper[i % 4]);
}

TQC_AVX512_INLINE __m512 magnitude(__m512 x) {
  return _mm512_and_ps(x, _mm512_castsi512_ps(_mm512_set1_epi32(0x7fffffff)));
}

// The largest magnitude of 32 values, as bits: NaN is larger than all others.
TQC_AVX512_INLINE std::uint32_t largest_magnitude(__m512 a, __m512 b) {
  return _mm512_reduce_max_epu32(
      _mm512_max_epu32(_mm512_castps_si512(magnitude(a)), _mm512_castps_si512(magnitude(b))));
}

TQC_AVX512_INLINE void store_16(__m128i values, void* to) {
  _mm_storeu_si128(static_cast<__m128i*>(to), values);
}

// 32 numbers that fit 16 bits.
TQC_AVX512_INLINE __m512i join_words(__m512i low, __m512i high) {
  return _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi32_epi16(low)),
                            _mm512_cvtepi32_epi16(high), 1);
}

TQC_AVX512_INLINE void store_codes(__m512i low, __m512i high, std::size_t group,
                                   std::int8_t* codes) {
  store_16(_mm512_cvtepi32_epi8(low), codes + loops::code_place<std::int8_t>(group, 0));
  store_16(_mm512_cvtepi32_epi8(high), codes + loops::code_place<std::int8_t>(group, 1));
}

TQC_AVX512_INLINE void store_codes(__m512i low, __m512i high, std::size_t group,
                                   std::int16_t* codes) {
  const __m512i both = join_words(low, high);
  const __m256i even = _mm512_cvtepi32_epi16(both);
  const __m256i odd = _mm512_cvtepi32_epi16(_mm512_srli_epi32(both, 16));
  std::int16_t* const to = codes + loops::code_place<std::int16_t>(group, 0);
  store_16(_mm256_castsi256_si128(even), to);
  store_16(_mm256_castsi256_si128(odd), to + kPartCodes<std::int16_t>);
  store_16(_mm256_extracti128_si256(even, 1), to + 2 * kPartCodes<std::int16_t>);
  store_16(_mm256_extracti128_si256(odd, 1), to + 3 * kPartCodes<std::int16_t>);
}

// As loops::quantize_group.
template <class Code>
TQC_AVX512_INLINE void quantize_group(const float* x, std::size_t group, Code* codes,
                                      std::int32_t* minus_sums, float* scales) {
  const __m512 a = _mm512_loadu_ps(x), b = _mm512_loadu_ps(x + 16);
  const loops::GroupScale scale = loops::group_scale<Code>(largest_magnitude(a, b));
  scales[group] = scale.scale;
  // A non-finite group has an inverse of zero, and infinity times zero has no code.
  const auto finite = static_cast<__mmask16>(scale.inverse != 0 ? 0xffff : 0);
  const __m512 inverse = _mm512_set1_ps(scale.inverse);
  const __m512i low = _mm512_maskz_cvtps_epi32(finite, _mm512_mul_ps(a, inverse));
  const __m512i high = _mm512_maskz_cvtps_epi32(finite, _mm512_mul_ps(b, inverse));
  store_codes(low, high, group, codes);
  const __m512i pairs = _mm512_madd_epi16(join_words(low, high), _mm512_set1_epi16(-1));
  const __m256i fours =
      _mm512_cvtepi64_epi32(_mm512_add_epi32(pairs, _mm512_srli_epi64(pairs, 32)));
  const __m128i first = _mm256_castsi256_si128(fours), second = _mm256_extracti128_si256(fours, 1);
  store_16(first, minus_sums + loops::sum_place(group, 0));
  store_16(second, minus_sums + loops::sum_place(group, 1));
  store_16(_mm_add_epi32(first, second), minus_sums + loops::sum_place(group, 2));
}

template <class Code>
TQC_AVX512 void quantize_groups(const float* x, std::size_t n_groups, Code* codes,
                                std::int32_t* minus_sums, float* scales) {
  const std::size_t end = (n_groups + kRoundGroups - 1) / kRoundGroups * kRoundGroups;
  constexpr float kZeros[kGroup] = {};
  for (std::size_t group = 0; group < end; ++group) {
    const float* const values = group < n_groups ? x + group * kGroup : kZeros;
    quantize_group(values, group, codes, minus_sums, scales);
  }
}

struct Avx512 {
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

constexpr AllBlockKernels kAvx512Blocks = make_all_kernels<Avx512>();

}  // namespace tqcache::model

#endif
