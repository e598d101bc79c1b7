#pragma once
// predict/symbol_path.h: the trellis of residuals: its symbols, their arithmetic code, and the
// search for the path of least cost.
//
// Spec: docs/reference/codec.md §11.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tqcache/codec/kernels/kernels.h"
#include "tqcache/error.h"
#include "tqcache/predict/range_coder.h"

namespace tqcache::predict {

inline constexpr std::size_t kPathStates = 8;
inline constexpr std::size_t kClasses = 32;        // of components, by their standard deviation
inline constexpr std::size_t kActivities = 4;      // of tokens, by their symbols before
inline constexpr std::int32_t kMaxSymbol = 1000;   // magnitude
inline constexpr std::int32_t kUnarySymbols = 16;  // larger magnitudes have an escape code

// The state behind symbol `k` in `state`.
constexpr std::size_t next_state(std::size_t state, std::int32_t k) {
  return (state >> 1) ^ ((state & 1) != 0 ? 5u : 0u) ^ ((k & 1) != 0 ? 2u : 0u);
}

// The level of symbol `k`: even ones in even states, 0 and odd ones in odd states.
constexpr std::int32_t level_of(std::size_t state, std::int32_t k) {
  const std::int32_t odd = static_cast<std::int32_t>(state & 1);
  return 2 * k - odd * (k > 0 ? 1 : k < 0 ? -1 : 0);
}

// The class of a component whose standard deviation is `deviation` steps: four an octave.
std::uint8_t class_of(float deviation);

// The adaptive probabilities of a token block.
struct SymbolModels {
  std::array<std::array<std::array<BitModel, kActivities>, 2>, kClasses> above_0{};
  std::array<std::array<std::array<BitModel, kActivities>, 2>, kClasses> above_1{};
  std::array<std::array<BitModel, kUnarySymbols - 2>, kClasses> above{};  // 2, 3, ... 15
};

// Codes the symbols of one vector. Shapes: classes, symbols [d].
void encode_symbols(RangeEncoder& to, SymbolModels& models, std::span<const std::uint8_t> classes,
                    std::size_t activity, std::span<const std::int16_t> symbols);

// The inverse, to levels. Returns the vector's activity: the sum of magnitudes of its symbols, each
// at most 15.
// Errors: kCorrupt for a symbol beyond kMaxSymbol.
Result<std::uint32_t> decode_levels(RangeDecoder& from, SymbolModels& models,
                                    std::span<const std::uint8_t> classes, std::size_t activity,
                                    std::span<std::int16_t> levels);

// The activity that decode_levels() would return.
std::uint32_t activity_of(std::span<const std::int16_t> symbols);

// The activity class of each token in the next tensor of a block, from the activities of this one.
// Shapes: sums, out [n].
void classify_activities(std::span<const std::uint32_t> sums, std::span<std::uint8_t> out);

// Finds paths: the symbols with the least squared error plus `lambda` times their bits, by the
// probabilities of the time when prices() was called last.
//
// Bytes: every instruction set finds the same path.
class PathSearch {
 public:
  explicit PathSearch(float lambda, codec::Isa isa = codec::best_kernels().isa)
      : lambda_(lambda), isa_(isa) {}

  void set_prices(const SymbolModels& models);

  // Shapes: y, classes, symbols, levels [d]; y in steps.
  void find(std::span<const float> y, std::span<const std::uint8_t> classes, std::size_t activity,
            std::span<std::int16_t> symbols, std::span<std::int16_t> levels);

  static constexpr std::size_t kPriced = 18;  // magnitudes with a price of their own

  // The cheapest symbols of a component, without their signs: from even and from odd states, each
  // with an even and with an odd symbol.
  struct Choice {
    std::array<float, 4> cost;           // [2 * odd + parity]
    std::array<std::int32_t, 4> symbol;  // likewise
  };

 private:
  using Prices = std::array<float, kPriced>;  // lambda times bits
  float price(const Prices& prices, std::int32_t magnitude) const;
  Choice choose(float size, std::size_t activity, std::size_t c) const;
  std::size_t walk_scalar();  // the state that the best path ends with

  float lambda_;
  codec::Isa isa_;
  std::array<std::array<std::array<Prices, 2>, kClasses>, kActivities> prices_{};
  std::vector<Choice> choices_;
  std::vector<std::uint8_t> is_upper_;  // a bit per state: its best path came by way of the upper
                                        // of the two states before it
};

}  // namespace tqcache::predict
