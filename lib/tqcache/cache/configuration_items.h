#pragma once
// cache/configuration_items.h: the items of a configuration that change a side, as a table that
// reading and writing share. Not for users of the library: tqcache/quantize.h is.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tqcache/error.h"
#include "tqcache/quantize.h"

namespace tqcache::cache {

// A whole number in decimal digits, nothing before or behind them.
std::optional<std::uint64_t> parse_count(std::string_view text);

// The side that k=VALUE or v=VALUE gives, with its mode's usual ways.
// Errors: kInvalidArgument, saying what could stand there.
Result<SidePlan> parse_side(std::string_view value);

// The value that parse_side() makes the same mode and bits of.
std::string side_text(const SidePlan& plan);

// The item that gives each layer's step its weight (StepWeights): k.weights=0.9:1.25:1.
inline constexpr std::string_view kWeightsName = "weights";

// Errors: kInvalidArgument, saying what could stand there.
Result<std::vector<float>> parse_weights(std::string_view value);

// What parse_weights() makes the same of.
std::string weights_text(std::span<const float> weights);

struct SideItem {
  std::string_view name;
  // Whether a side of this plan has such a thing.
  bool (*fits)(const SidePlan& plan);
  // Errors: kInvalidArgument, saying what could stand there.
  Result<void> (*set)(std::string_view value, SidePlan& plan);
  // What set() makes the same of.
  std::string (*get)(const SidePlan& plan);
};

std::span<const SideItem> side_items();

}  // namespace tqcache::cache
