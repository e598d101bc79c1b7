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

// sums + the products of pairs of codes.
TQC_AVX512_INLINE __m512i multiply_codes(__m512i sums, __m512i codes, const std::int16_t* of_x) {
  return _mm512_dpwssd_epi32(sums, codes, _mm512_loadu_si512(of_x));
}

// sums + the products of x with the codes of one half of the groups: the even values, then the odd
// ones.
TQC_AVX512_INLINE __m512i multiply_half(__m512i sums, __m512i codes, const std::int16_t* of_x) {
  sums = multiply_codes(sums, _mm512_and_si512(codes, _mm512_set1_epi16(255)), of_x);
  return multiply_codes(sums, _mm512_srli_epi16(codes, 8), of_x + kPartCodes);
}

// As multiply_half(), for 4-bit codes that are still packed two per byte.
TQC_AVX512_INLINE __m512i multiply_nibbles(__m512i sums, __m512i bytes, const std::int16_t* of_x) {
  const __m512i mask = _mm512_set1_epi16(15);
  sums = multiply_codes(sums, _mm512_and_si512(bytes, mask), of_x);
  sums =
      multiply_codes(sums, _mm512_and_si512(_mm512_srli_epi16(bytes, 8), mask), of_x + kPartCodes);
  sums = multiply_codes(sums, _mm512_and_si512(_mm512_srli_epi16(bytes, 4), mask),
                        of_x + 2 * kPartCodes);
  return multiply_codes(sums, _mm512_srli_epi16(bytes, 12), of_x + 3 * kPartCodes);
}

// The correction of the lanes for the offset of the codes.
template <class Form>
TQC_AVX512_INLINE __m512i offset_sums(const std::int32_t* minus_sums) {
  if constexpr (Form::kOffset == 0) {
    return _mm512_setzero_si512();
  } else {
    constexpr unsigned kShift = std::countr_zero(static_cast<unsigned>(Form::kOffset));
    return _mm512_slli_epi32(_mm512_loadu_si512(minus_sums), kShift);
  }
}

TQC_AVX512_INLINE __m512 multiply_add(__m512 lanes, __m512i sums, __m512 factors) {
  return _mm512_add_ps(lanes, _mm512_mul_ps(_mm512_cvtepi32_ps(sums), factors));
}

// Copies each of four factors to the four lanes of its group.
TQC_AVX512_INLINE __m512 spread(__m128 factors) {
  const __m512i lanes = _mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0);
  return _mm512_permutexvar_ps(lanes, _mm512_castps128_ps512(factors));
}

// The lanes of four GGML blocks of 32, before scaling.
template <class Form>
TQC_AVX512_INLINE __m512i multiply_blocks(const std::byte* blocks, const QuantizedView& x) {
  const __m512i sums = offset_sums<Form>(x.minus_sums + 2 * kStepLanes);
  if constexpr (kInNibbles<Form>) {
    return multiply_nibbles(sums, load_quarters(blocks + Form::kCodesAt, Form::kBytes), x.codes);
  }
  const Codes codes = codes_of_blocks<Form>(blocks);
  return multiply_half(multiply_half(sums, codes.first, x.codes), codes.second,
                       x.codes + 2 * kPartCodes);
}

// Adds four GGML blocks of 32.
template <class Form>
TQC_AVX512_INLINE __m512 add_blocks(__m512 lanes, const std::byte* blocks, const QuantizedView& x) {
  const __m128 of_x = _mm_loadu_ps(x.scales);
  const __m128 scales = _mm_mul_ps(scales_of_blocks<Form>(blocks), of_x);
  lanes = multiply_add(lanes, multiply_blocks<Form>(blocks, x), spread(scales));
  if constexpr (Form::kHasMinimum) {  // the file stores it with the other sign
    const __m128 minima = _mm_xor_ps(load_halves_of<Form, 2>(blocks), _mm_set1_ps(-0.0f));
    lanes = multiply_add(lanes, _mm512_loadu_si512(x.minus_sums + 2 * kStepLanes),
                         spread(_mm_mul_ps(minima, of_x)));
  }
  return lanes;
}

// Factors of every run of a GGML block of 256, multiplied by x's scales.
struct Factors {
  __m512 scale;
  __m512 minimum;  // only if Form has one
};

template <class Form>
TQC_AVX512_INLINE __m512 factors_of_runs(const std::uint64_t* steps, const std::byte* half,
                                         __m512 of_x) {
  const auto first = static_cast<long long>(steps[0]);
  const auto last = static_cast<long long>(steps[Form::kRuns / 8 - 1]);
  const __m512i wide = _mm512_cvtepi8_epi32(_mm_set_epi64x(last, first));
  const __m512 factor = _mm512_set1_ps(_cvtsh_ss(forms::load<std::uint16_t>(half)));
  return _mm512_mul_ps(_mm512_mul_ps(factor, _mm512_cvtepi32_ps(wide)), of_x);
}

template <class Form>
TQC_AVX512_INLINE Factors factors_of_block(const std::byte* block, const float* scales_of_x) {
  __m512 of_x = _mm512_castps256_ps512(_mm256_loadu_ps(scales_of_x));
  if constexpr (Form::kRun == 16) {  // one group has two runs
    const __m512i twice = _mm512_set_epi32(7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0);
    of_x = _mm512_permutexvar_ps(twice, of_x);
  }
  const auto steps = Form::steps(block);
  Factors factors{};
  factors.scale = factors_of_runs<Form>(steps.scale, block + Form::kScaleAt, of_x);
  if constexpr (Form::kHasMinimum) {
    factors.minimum = factors_of_runs<Form>(steps.minimum, block + Form::kMinimumAt, of_x);
  }
  return factors;
}

// Adds the products `sums` of a step's lanes that share a factor, and the minima of the same
// values, which multiply the `kind`-th sums of x. `runs`: the run whose factor each lane uses.
template <class Form>
TQC_AVX512_INLINE __m512 add_runs(__m512 lanes, __m512i sums, const Factors& factors, __m512i runs,
                                  const QuantizedView& x, std::size_t kind) {
  lanes = multiply_add(lanes, sums, _mm512_permutexvar_ps(runs, factors.scale));
  if constexpr (Form::kHasMinimum) {
    lanes = multiply_add(lanes, _mm512_loadu_si512(x.minus_sums + kind * kStepLanes),
                         _mm512_permutexvar_ps(runs, factors.minimum));
  }
  return lanes;
}

// Adds groups 4 step to 4 step + 3 of a GGML block of 256.
template <class Form>
TQC_AVX512_INLINE __m512 add_step(__m512 lanes, const std::byte* block, int step,
                                  const Factors& factors, const QuantizedView& x) {
  const __m512i quarter = _mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0);
  const __m512i first = half_of_step<Form>(block, step, 0);
  const __m512i second = half_of_step<Form>(block, step, 16);
  if constexpr (Form::kRun == 32) {
    const __m512i offset = offset_sums<Form>(x.minus_sums + 2 * kStepLanes);
    const __m512i sums =
        multiply_half(multiply_half(offset, first, x.codes), second, x.codes + 2 * kPartCodes);
    const __m512i runs = _mm512_add_epi32(quarter, _mm512_set1_epi32(4 * step));
    return add_runs<Form>(lanes, sums, factors, runs, x, 2);
  } else {
    const __m512i runs =
        _mm512_add_epi32(_mm512_slli_epi32(quarter, 1), _mm512_set1_epi32(8 * step));
    const __m512i sums = multiply_half(offset_sums<Form>(x.minus_sums), first, x.codes);
    lanes = add_runs<Form>(lanes, sums, factors, runs, x, 0);
    const __m512i sums2 = multiply_half(offset_sums<Form>(x.minus_sums + kStepLanes), second,
                                        x.codes + 2 * kPartCodes);
    return add_runs<Form>(lanes, sums2, factors, _mm512_add_epi32(runs, _mm512_set1_epi32(1)), x,
                          1);
  }
}

TQC_AVX512_INLINE QuantizedView second_step(const QuantizedView& x) {
  return {x.codes + kStepParts * kPartCodes, x.minus_sums + kStepSums * kStepLanes,
          x.scales + kStepGroups};
}

// Adds 256 values: the first step to the lower lanes, the second to the upper ones.
template <class Form>
TQC_AVX512_INLINE void add_round(const std::byte* blocks, const QuantizedView& x, __m512& lower,
                                 __m512& upper) {
  if constexpr (Form::kValues == kGroup) {
    lower = add_blocks<Form>(lower, blocks, x);
    upper = add_blocks<Form>(upper, blocks + kStepGroups * Form::kBytes, second_step(x));
  } else {
    const Factors factors = factors_of_block<Form>(blocks, x.scales);
    lower = add_step<Form>(lower, blocks, 0, factors, x);
    upper = add_step<Form>(upper, blocks, 1, factors, second_step(x));
  }
}

template <class Form>
TQC_AVX512 float dot_blocks(const std::byte* row, const QuantizedView& x, std::size_t n_groups) {
  constexpr std::size_t kRoundBytes = kRoundGroups * kGroup / Form::kValues * Form::kBytes;
  __m512 lower = _mm512_setzero_ps(), upper = lower;
  const std::size_t n_rounds = n_groups / kRoundGroups;
  for (std::size_t i = 0; i < n_rounds; ++i, row += kRoundBytes) {
    add_round<Form>(row, loops::round_of(x, i), lower, upper);
  }
  if (n_groups % kRoundGroups != 0) {  // GGML blocks of zeros complete the round
    std::byte rest[kRoundBytes] = {};
    std::memcpy(rest, row, n_groups % kRoundGroups * Form::kBytes);
    add_round<Form>(rest, loops::round_of(x, n_rounds), lower, upper);
  }
  return fold(lower, upper);
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

// As loops::quantize_group.
TQC_AVX512_INLINE void quantize_group(const float* x, std::size_t group, std::int16_t* codes,
                                      std::int32_t* minus_sums, float* scales) {
  const __m512 a = _mm512_loadu_ps(x), b = _mm512_loadu_ps(x + 16);
  const loops::GroupScale scale = loops::group_scale(largest_magnitude(a, b));
  scales[group] = scale.scale;
  // A non-finite group has an inverse of zero, and infinity times zero has no code.
  const auto finite = static_cast<__mmask16>(scale.inverse != 0 ? 0xffff : 0);
  const __m512 inverse = _mm512_set1_ps(scale.inverse);
  const __m512i low = _mm512_maskz_cvtps_epi32(finite, _mm512_mul_ps(a, inverse));
  const __m512i high = _mm512_maskz_cvtps_epi32(finite, _mm512_mul_ps(b, inverse));
  const __m512i both = _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi32_epi16(low)),
                                          _mm512_cvtepi32_epi16(high), 1);
  const __m256i even = _mm512_cvtepi32_epi16(both);
  const __m256i odd = _mm512_cvtepi32_epi16(_mm512_srli_epi32(both, 16));
  store_16(_mm256_castsi256_si128(even), codes + loops::code_place(group, 0));
  store_16(_mm256_castsi256_si128(odd), codes + loops::code_place(group, 1));
  store_16(_mm256_extracti128_si256(even, 1), codes + loops::code_place(group, 2));
  store_16(_mm256_extracti128_si256(odd, 1), codes + loops::code_place(group, 3));
  const __m512i pairs = _mm512_madd_epi16(both, _mm512_set1_epi16(-1));
  const __m256i fours =
      _mm512_cvtepi64_epi32(_mm512_add_epi32(pairs, _mm512_srli_epi64(pairs, 32)));
  const __m128i first = _mm256_castsi256_si128(fours), second = _mm256_extracti128_si256(fours, 1);
  store_16(first, minus_sums + loops::sum_place(group, 0));
  store_16(second, minus_sums + loops::sum_place(group, 1));
  store_16(_mm_add_epi32(first, second), minus_sums + loops::sum_place(group, 2));
}

TQC_AVX512 void quantize(const float* x, std::size_t n_groups, std::int16_t* codes,
                         std::int32_t* minus_sums, float* scales) {
  const std::size_t end = (n_groups + kRoundGroups - 1) / kRoundGroups * kRoundGroups;
  constexpr float kZeros[kGroup] = {};
  for (std::size_t group = 0; group < end; ++group) {
    const float* const values = group < n_groups ? x + group * kGroup : kZeros;
    quantize_group(values, group, codes, minus_sums, scales);
  }
}

struct Avx512 {
  template <class Form>
  static constexpr BlockKernels::Dot* dot() {
    return dot_blocks<Form>;
  }
};

}  // namespace

constexpr BlockKernels kAvx512Blocks = {quantize, make_dots<Avx512>(tensors::forms::All{})};

}  // namespace tqcache::model

#endif
