#include "tqcache/predict/symbol_path.h"

#include <algorithm>
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

void encode_escape(RangeEncoder& out, std::uint32_t rest) {
  const auto n_bits = static_cast<int>(std::bit_width(rest + 1)) - 1;
  for (int i = 0; i < n_bits; ++i) out.encode_even(false);
  for (int i = n_bits; i >= 0; --i) out.encode_even(((rest + 1) >> i & 1) != 0);
}

// A number above the limit stands for all that are too large.
std::uint32_t decode_escape(RangeDecoder& in) {
  int n_bits = 0;
  while (!in.decode_even()) {
    if (++n_bits > kMostEscapeBits) return 1u << 20;
  }
  std::uint32_t value = 1;
  for (int i = 0; i < n_bits; ++i) value = value << 1 | (in.decode_even() ? 1u : 0u);
  return value - 1;
}

}  // namespace

std::uint8_t class_of(float deviation) {
  const auto quarters = static_cast<std::int32_t>(std::bit_cast<std::uint32_t>(deviation) >> 21);
  constexpr std::int32_t kFirst = (127 - 5) * 4;  // of 1/32
  return static_cast<std::uint8_t>(
      std::clamp(quarters - kFirst, 0, static_cast<std::int32_t>(kClasses) - 1));
}

void encode_symbols(RangeEncoder& out, SymbolModels& models, std::span<const std::uint8_t> classes,
                    std::size_t activity, std::span<const std::int16_t> symbols) {
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
}

Result<std::uint32_t> decode_levels(RangeDecoder& in, SymbolModels& models,
                                    std::span<const std::uint8_t> classes, std::size_t activity,
                                    std::span<std::int16_t> levels) {
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
          const BitModel& above = models.above[c][m - 2];
          prices[m] = lambda_ * static_cast<float>(bits + bits_of(above, false));
          bits += bits_of(above, true);
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

void PathSearch::find(std::span<const float> y, std::span<const std::uint8_t> classes,
                      std::size_t activity, std::span<std::int16_t> symbols,
                      std::span<std::int16_t> levels) {
  constexpr float kFar = std::numeric_limits<float>::max();
  constexpr float kMostLevel = 2 * (kMaxSymbol - 2);
  const std::size_t d = y.size();
  steps_.resize(d);
  std::array<float, kPathStates> costs;
  costs.fill(kFar);
  costs[0] = 0;
  for (std::size_t i = 0; i < d; ++i) {
    const float size = std::min(std::abs(y[i]), kMostLevel);
    // The cheapest symbol of each parity, for even and odd states.
    float least[2][2];
    std::int32_t chosen[2][2];
    for (std::int32_t odd = 0; odd < 2; ++odd) {
      const Prices& prices = prices_[activity][classes[i]][static_cast<std::size_t>(odd)];
      const auto nearest = static_cast<std::int32_t>((size + static_cast<float>(odd)) * 0.5f);
      const auto cost_of = [&](std::int32_t k) {
        const float error = size - static_cast<float>(level_of(static_cast<std::size_t>(odd), k));
        return error * error + price(prices, k);
      };
      for (const std::int32_t k : {nearest, nearest + 1}) {
        least[odd][k & 1] = cost_of(k);
        chosen[odd][k & 1] = k;
      }
      for (std::int32_t k = nearest - 1; k >= std::max(0, nearest - 2); --k) {
        const float cost = cost_of(k);
        if (cost >= least[odd][k & 1]) continue;
        least[odd][k & 1] = cost;
        chosen[odd][k & 1] = k;
      }
    }
    std::array<float, kPathStates> sums;
    sums.fill(kFar);
    Step& step = steps_[i];
    for (std::size_t state = 0; state < kPathStates; ++state) {
      if (costs[state] == kFar) continue;
      const std::size_t odd = state & 1;
      for (std::int32_t parity = 0; parity < 2; ++parity) {
        const std::size_t to = next_state(state, parity);
        const float sum = costs[state] + least[odd][parity];
        if (sum >= sums[to]) continue;
        sums[to] = sum;
        step.symbol[to] = static_cast<std::int16_t>(chosen[odd][parity]);
        step.from[to] = static_cast<std::uint8_t>(state);
      }
    }
    costs = sums;
  }
  std::size_t state =
      static_cast<std::size_t>(std::min_element(costs.begin(), costs.end()) - costs.begin());
  for (std::size_t i = d; i-- > 0;) {
    const Step& step = steps_[i];
    const std::int32_t magnitude = step.symbol[state];
    const std::size_t from = step.from[state];
    const std::int32_t k = y[i] < 0 ? -magnitude : magnitude;
    symbols[i] = static_cast<std::int16_t>(k);
    levels[i] = static_cast<std::int16_t>(level_of(from, k));
    state = from;
  }
}

}  // namespace tqcache::predict
