#include "tqcache/predict/symbol_path.h"

#if defined(__x86_64__) && !defined(TQCACHE_SCALAR)
#define TQC_PREDICT_AVX2
#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 warns of registers that its own header leaves undefined on purpose (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#endif

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <limits>

namespace tqcache::predict {
namespace {

constexpr std::uint32_t kMostActivity = 15;  // of one symbol

// The number of zeros before the highest bit of magnitude - 15, in the escape code.
constexpr int kMostEscapeBits = 10;

double bits_of(const BitModel& model, bool bit) {
  const double zero = double{1.0 * model.zero} / (1u << kProbabilityBits);
  return -std::log2(bit ? 1 - zero : zero);
}

[[gnu::always_inline]] inline void encode_escape(RangeEncoder& out, std::uint32_t rest) {
  const auto n_bits = static_cast<int>(std::bit_width(rest + 1)) - 1;
  for (int i = 0; i < n_bits; ++i) out.encode_even(false);
  for (int i = n_bits; i >= 0; --i) out.encode_even(((rest + 1) >> i & 1) != 0);
}

// A number above the limit stands for all that are too large.
[[gnu::always_inline]] inline std::uint32_t decode_escape(RangeDecoder& in) {
  int n_bits = 0;
  while (!in.decode_even()) {
    if (++n_bits > kMostEscapeBits) return 1u << 20;
  }
  std::uint32_t value = 1;
  for (int i = 0; i < n_bits; ++i) value = value << 1 | (in.decode_even() ? 1u : 0u);
  return value - 1;
}

// --- The trellis
//
// Two states lead to each one: kLower and, 4 above it, an upper one of the same parity. The
// symbol's parity differs between the two.

constexpr float kFar = std::numeric_limits<float>::max();
constexpr float kMostLevel = 2 * (kMaxSymbol - 2);
constexpr std::array<std::size_t, kPathStates> kLower = {0, 2, 0, 2, 3, 1, 3, 1};
constexpr std::array<std::size_t, kPathStates> kLowerChoice = {0, 0, 1, 1, 2, 2, 3, 3};
constexpr std::array<float, kPathStates> kNoPath = {0, kFar, kFar, kFar, kFar, kFar, kFar, kFar};

constexpr bool leads_on() {
  for (std::size_t to = 0; to < kPathStates; ++to) {
    const auto parity = static_cast<std::int32_t>(kLowerChoice[to] & 1);
    if (next_state(kLower[to], parity) != to || next_state(kLower[to] ^ 4, parity ^ 1) != to ||
        (kLower[to] & 1) != kLowerChoice[to] / 2) {
      return false;
    }
  }
  return true;
}
static_assert(leads_on());

#ifdef TQC_PREDICT_AVX2

// As PathSearch::choose() for eight components. `prices` are those of class 0 from even states.
// Returns false, and does nothing, if a magnitude may have no price of its own.
__attribute__((target("avx2"))) bool choose_avx2(const float* y, const std::uint8_t* classes,
                                                 const float* prices, PathSearch::Choice* out) {
  constexpr auto kRow = static_cast<int>(PathSearch::kPriced);
  const __m256 size = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), _mm256_loadu_ps(y));
  const __m256 most = _mm256_set1_ps(2 * (PathSearch::kPriced - 2));
  if (_mm256_movemask_ps(_mm256_cmp_ps(size, most, _CMP_LT_OQ)) != 0xff) return false;
  const __m256i c =
      _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(classes)));
  const __m256i one = _mm256_set1_epi32(1), zero = _mm256_setzero_si256();
  __m256 cost[4];
  __m256i symbol[4];
  for (int odd = 0; odd < 2; ++odd) {
    const __m256i row = _mm256_mullo_epi32(
        _mm256_add_epi32(_mm256_add_epi32(c, c), _mm256_set1_epi32(odd)), _mm256_set1_epi32(kRow));
    const auto cost_of = [&](__m256i k) __attribute__((target("avx2"))) {
      const __m256i level =
          _mm256_max_epi32(_mm256_sub_epi32(_mm256_add_epi32(k, k), _mm256_set1_epi32(odd)), zero);
      const __m256 error = _mm256_sub_ps(size, _mm256_cvtepi32_ps(level));
      const __m256 price = _mm256_i32gather_ps(prices, _mm256_add_epi32(row, k), 4);
      return _mm256_add_ps(_mm256_mul_ps(error, error), price);
    };
    const __m256i nearest = _mm256_cvttps_epi32(_mm256_mul_ps(
        _mm256_add_ps(size, _mm256_set1_ps(static_cast<float>(odd))), _mm256_set1_ps(0.5f)));
    // The nearest symbol and the one 2 below it, the next larger one and the one 2 below it.
    __m256 best[2];
    __m256i chosen[2];
    for (int next = 0; next < 2; ++next) {
      const __m256i k = next == 0 ? nearest : _mm256_add_epi32(nearest, one);
      const __m256i below = _mm256_sub_epi32(k, _mm256_set1_epi32(2));
      const __m256 of_k = cost_of(k), of_below = cost_of(_mm256_max_epi32(below, zero));
      const __m256 is_less = _mm256_andnot_ps(_mm256_castsi256_ps(_mm256_cmpgt_epi32(zero, below)),
                                              _mm256_cmp_ps(of_below, of_k, _CMP_LT_OQ));
      best[next] = _mm256_blendv_ps(of_k, of_below, is_less);
      chosen[next] = _mm256_castps_si256(
          _mm256_blendv_ps(_mm256_castsi256_ps(k), _mm256_castsi256_ps(below), is_less));
    }
    // By parity: the nearest one is even or odd.
    const __m256 is_odd =
        _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(nearest, one), one));
    for (int parity = 0; parity < 2; ++parity) {
      cost[2 * odd + parity] = _mm256_blendv_ps(best[parity], best[parity ^ 1], is_odd);
      symbol[2 * odd + parity] = _mm256_castps_si256(_mm256_blendv_ps(
          _mm256_castsi256_ps(chosen[parity]), _mm256_castsi256_ps(chosen[parity ^ 1]), is_odd));
    }
  }
  // Four registers of eight components become eight rows of four.
  const auto put = [&](__m256 a, __m256 b, __m256 d, __m256 e, std::size_t place)
      __attribute__((target("avx2"))) {
    const __m256 ab_low = _mm256_unpacklo_ps(a, b), ab_high = _mm256_unpackhi_ps(a, b);
    const __m256 de_low = _mm256_unpacklo_ps(d, e), de_high = _mm256_unpackhi_ps(d, e);
    const __m256 rows[4] = {
        _mm256_shuffle_ps(ab_low, de_low, 0x44), _mm256_shuffle_ps(ab_low, de_low, 0xee),
        _mm256_shuffle_ps(ab_high, de_high, 0x44), _mm256_shuffle_ps(ab_high, de_high, 0xee)};
    for (std::size_t i = 0; i < 4; ++i) {
      float* const low = reinterpret_cast<float*>(out + i) + place;
      float* const high = reinterpret_cast<float*>(out + i + 4) + place;
      _mm_storeu_ps(low, _mm256_castps256_ps128(rows[i]));
      _mm_storeu_ps(high, _mm256_extractf128_ps(rows[i], 1));
    }
  };
  static_assert(sizeof(PathSearch::Choice) == 32);
  put(cost[0], cost[1], cost[2], cost[3], 0);
  put(_mm256_castsi256_ps(symbol[0]), _mm256_castsi256_ps(symbol[1]),
      _mm256_castsi256_ps(symbol[2]), _mm256_castsi256_ps(symbol[3]), 4);
  return true;
}

// As PathSearch::walk_scalar(), with the eight states in one register.
__attribute__((target("avx2"))) std::size_t walk_avx2(std::span<const PathSearch::Choice> choices,
                                                      std::span<std::uint8_t> is_upper) {
  const __m256i lower_state = _mm256_setr_epi32(0, 2, 0, 2, 3, 1, 3, 1);
  const __m256i upper_state = _mm256_setr_epi32(4, 6, 4, 6, 7, 5, 7, 5);
  const __m256i lower_choice = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
  const __m256i upper_choice = _mm256_setr_epi32(1, 1, 0, 0, 3, 3, 2, 2);
  __m256 costs = _mm256_loadu_ps(kNoPath.data());
  for (std::size_t i = 0; i < choices.size(); ++i) {
    const __m256 cost =
        _mm256_broadcast_ps(reinterpret_cast<const __m128*>(choices[i].cost.data()));
    const __m256 lower = _mm256_add_ps(_mm256_permutevar8x32_ps(costs, lower_state),
                                       _mm256_permutevar_ps(cost, lower_choice));
    const __m256 upper = _mm256_add_ps(_mm256_permutevar8x32_ps(costs, upper_state),
                                       _mm256_permutevar_ps(cost, upper_choice));
    const __m256 is_less = _mm256_cmp_ps(upper, lower, _CMP_LT_OQ);
    is_upper[i] = static_cast<std::uint8_t>(_mm256_movemask_ps(is_less));
    costs = _mm256_min_ps(upper, lower);
  }
  std::array<float, kPathStates> last;
  _mm256_storeu_ps(last.data(), costs);
  return static_cast<std::size_t>(std::min_element(last.begin(), last.end()) - last.begin());
}

#endif

}  // namespace

std::uint8_t class_of(float deviation) {
  const auto quarters = static_cast<std::int32_t>(std::bit_cast<std::uint32_t>(deviation) >> 21);
  constexpr std::int32_t kFirst = (127 - 5) * 4;  // of 1/32
  return static_cast<std::uint8_t>(
      std::clamp(quarters - kFirst, 0, static_cast<std::int32_t>(kClasses) - 1));
}

void encode_symbols(RangeEncoder& to, SymbolModels& models, std::span<const std::uint8_t> classes,
                    std::size_t activity, std::span<const std::int16_t> symbols) {
  RangeEncoder out = to;
  std::size_t state = 0;
  for (std::size_t i = 0; i < symbols.size(); ++i) {
    const std::int32_t k = symbols[i];
    const std::int32_t magnitude = std::abs(k);
    const std::size_t c = classes[i], odd = state & 1;
    state = next_state(state, k);
    out.encode(models.above_0[c][odd][activity], magnitude > 0);
    if (magnitude == 0) continue;
    out.encode_even(k < 0);
    out.encode(models.above_1[c][odd][activity], magnitude > 1);
    if (magnitude == 1) continue;
    for (std::int32_t m = 2; m < kUnarySymbols; ++m) {
      out.encode(models.above[c][static_cast<std::size_t>(m - 2)], magnitude > m);
      if (magnitude == m) break;
    }
    if (magnitude >= kUnarySymbols) {
      encode_escape(out, static_cast<std::uint32_t>(magnitude - kUnarySymbols));
    }
  }
  to = out;
}

Result<std::uint32_t> decode_levels(RangeDecoder& from, SymbolModels& models,
                                    std::span<const std::uint8_t> classes, std::size_t activity,
                                    std::span<std::int16_t> levels) {
  RangeDecoder in = from;
  std::size_t state = 0;
  std::uint32_t sum = 0;
  for (std::size_t i = 0; i < levels.size(); ++i) {
    const std::size_t c = classes[i], odd = state & 1;
    std::int32_t k = 0;
    if (in.decode(models.above_0[c][odd][activity])) {
      const bool is_negative = in.decode_even();
      std::int32_t magnitude = 1;
      if (in.decode(models.above_1[c][odd][activity])) {
        magnitude = 2;
        while (magnitude < kUnarySymbols &&
               in.decode(models.above[c][static_cast<std::size_t>(magnitude - 2)])) {
          ++magnitude;
        }
        if (magnitude == kUnarySymbols) magnitude += static_cast<std::int32_t>(decode_escape(in));
        if (magnitude > kMaxSymbol) return corrupt("a symbol beyond 1000");
      }
      sum += std::min(static_cast<std::uint32_t>(magnitude), kMostActivity);
      k = is_negative ? -magnitude : magnitude;
    }
    levels[i] = static_cast<std::int16_t>(level_of(state, k));
    state = next_state(state, k);
  }
  from = in;
  return sum;
}

std::uint32_t activity_of(std::span<const std::int16_t> symbols) {
  std::uint32_t sum = 0;
  for (const std::int16_t k : symbols) {
    sum += std::min(static_cast<std::uint32_t>(std::abs(k)), kMostActivity);
  }
  return sum;
}

void classify_activities(std::span<const std::uint32_t> sums, std::span<std::uint8_t> out) {
  std::uint64_t total = 0;
  for (const std::uint32_t sum : sums) total += sum;
  for (std::size_t t = 0; t < sums.size(); ++t) {
    const std::uint64_t scaled = std::uint64_t{sums[t]} * sums.size();
    out[t] = static_cast<std::uint8_t>((4 * scaled >= 3 * total) + (scaled >= total) +
                                       (3 * scaled >= 4 * total));
  }
}

void PathSearch::set_prices(const SymbolModels& models) {
  std::array<std::array<std::array<double, 2>, kUnarySymbols - 2>, kClasses> above;
  for (std::size_t c = 0; c < kClasses; ++c) {
    for (std::size_t m = 0; m < above[c].size(); ++m) {
      above[c][m] = {bits_of(models.above[c][m], false), bits_of(models.above[c][m], true)};
    }
  }
  for (std::size_t a = 0; a < kActivities; ++a) {
    for (std::size_t c = 0; c < kClasses; ++c) {
      for (std::size_t odd = 0; odd < 2; ++odd) {
        Prices& prices = prices_[a][c][odd];
        const BitModel& above_0 = models.above_0[c][odd][a];
        const BitModel& above_1 = models.above_1[c][odd][a];
        double bits = bits_of(above_0, true) + 1;
        prices[0] = lambda_ * static_cast<float>(bits_of(above_0, false));
        prices[1] = lambda_ * static_cast<float>(bits + bits_of(above_1, false));
        bits += bits_of(above_1, true);
        for (std::size_t m = 2; m < 16; ++m) {
          prices[m] = lambda_ * static_cast<float>(bits + above[c][m - 2][0]);
          bits += above[c][m - 2][1];
        }
        prices[16] = lambda_ * static_cast<float>(bits + 1);
        prices[17] = lambda_ * static_cast<float>(bits + 3);
      }
    }
  }
}

float PathSearch::price(const Prices& prices, std::int32_t magnitude) const {
  if (magnitude < static_cast<std::int32_t>(kPriced))
    return prices[static_cast<std::size_t>(magnitude)];
  const auto rest = static_cast<std::uint32_t>(magnitude - kUnarySymbols + 1);
  return prices[16] + lambda_ * static_cast<float>(2 * (std::bit_width(rest) - 1));
}

PathSearch::Choice PathSearch::choose(float size, std::size_t activity, std::size_t c) const {
  Choice choice;
  for (std::int32_t odd = 0; odd < 2; ++odd) {
    const Prices& prices = prices_[activity][c][static_cast<std::size_t>(odd)];
    const auto nearest = static_cast<std::int32_t>((size + static_cast<float>(odd)) * 0.5f);
    const auto cost_of = [&](std::int32_t k) {
      const float error = size - static_cast<float>(level_of(static_cast<std::size_t>(odd), k));
      return error * error + price(prices, k);
    };
    for (const std::int32_t k : {nearest, nearest + 1}) {
      const auto place = static_cast<std::size_t>(2 * odd + (k & 1));
      choice.cost[place] = cost_of(k);
      choice.symbol[place] = k;
    }
    for (std::int32_t k = nearest - 1; k >= std::max(0, nearest - 2); --k) {
      const auto place = static_cast<std::size_t>(2 * odd + (k & 1));
      const float cost = cost_of(k);
      if (cost >= choice.cost[place]) continue;
      choice.cost[place] = cost;
      choice.symbol[place] = k;
    }
  }
  return choice;
}

std::size_t PathSearch::walk_scalar() {
  std::array<float, kPathStates> costs = kNoPath;
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    const std::array<float, 4>& cost = choices_[i].cost;
    std::array<float, kPathStates> sums;
    unsigned is_upper = 0;
    for (std::size_t to = 0; to < kPathStates; ++to) {
      const float lower = costs[kLower[to]] + cost[kLowerChoice[to]];
      const float upper = costs[kLower[to] ^ 4] + cost[kLowerChoice[to] ^ 1];
      sums[to] = upper < lower ? upper : lower;
      is_upper |= (upper < lower ? 1u : 0u) << to;
    }
    is_upper_[i] = static_cast<std::uint8_t>(is_upper);
    costs = sums;
  }
  return static_cast<std::size_t>(std::min_element(costs.begin(), costs.end()) - costs.begin());
}

void PathSearch::find(std::span<const float> y, std::span<const std::uint8_t> classes,
                      std::size_t activity, std::span<std::int16_t> symbols,
                      std::span<std::int16_t> levels) {
  const std::size_t d = y.size();
  choices_.resize(d);
  is_upper_.resize(d);
  [[maybe_unused]] const bool is_wide = isa_ == codec::Isa::kAvx2 || isa_ == codec::Isa::kAvx512;
  std::size_t state = 0, first = 0;
#ifdef TQC_PREDICT_AVX2
  if (is_wide) {
    for (; first + 8 <= d; first += 8) {
      if (choose_avx2(y.data() + first, classes.data() + first, prices_[activity][0][0].data(),
                      choices_.data() + first)) {
        continue;
      }
      for (std::size_t i = first; i < first + 8; ++i) {
        choices_[i] = choose(std::min(std::abs(y[i]), kMostLevel), activity, classes[i]);
      }
    }
  }
#endif
  for (std::size_t i = first; i < d; ++i) {
    choices_[i] = choose(std::min(std::abs(y[i]), kMostLevel), activity, classes[i]);
  }
#ifdef TQC_PREDICT_AVX2
  state = is_wide ? walk_avx2(choices_, is_upper_) : walk_scalar();
#else
  state = walk_scalar();
#endif
  for (std::size_t i = d; i-- > 0;) {
    const std::size_t is_upper = is_upper_[i] >> state & 1u;
    const std::size_t from = kLower[state] ^ (4 * is_upper);
    const std::int32_t magnitude = choices_[i].symbol[kLowerChoice[state] ^ is_upper];
    const std::int32_t odd = static_cast<std::int32_t>(from & 1) & (magnitude > 0 ? 1 : 0);
    const std::int32_t sign = y[i] < 0 ? -1 : 0;  // (x ^ sign) - sign is x or -x
    symbols[i] = static_cast<std::int16_t>((magnitude ^ sign) - sign);
    levels[i] = static_cast<std::int16_t>(((2 * magnitude - odd) ^ sign) - sign);
    state = from;
  }
}

}  // namespace tqcache::predict
