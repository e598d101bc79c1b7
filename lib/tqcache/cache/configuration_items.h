#pragma once
// cache/configuration_items.h: the configuration items that change K or V, as one table for reading
// and writing. Internal; the public interface is tqcache/quantize.h.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tqcache/error.h"
#include "tqcache/quantize.h"

namespace tqcache::cache {

// A whole number in decimal digits, with nothing before or after it.
std::optional<std::uint64_t> parse_count(std::string_view text);

// The plan that k=VALUE or v=VALUE gives, with the defaults of its mode.
// Errors: kInvalidArgument; the message lists the allowed values.
Result<TensorPlan> parse_tensor(std::string_view value);

// The value from which parse_side() makes a plan with the same mode and bits.
std::string tensor_text(const TensorPlan& plan);

// The item with each layer's step weight (StepWeights): k.weights=0.9:1.25:1.
inline constexpr std::string_view kWeightsName = "weights";

// Errors: kInvalidArgument; the message lists the allowed values.
Result<std::vector<float>> parse_weights(std::string_view value);

// The text that parse_weights() reads as the same weights.
std::string weights_text(std::span<const float> weights);

struct TensorItem {
  std::string_view name;
  // Whether the item applies to this plan.
  bool (*fits)(const TensorPlan& plan);
  // Errors: kInvalidArgument; the message lists the allowed values.
  Result<void> (*set)(std::string_view value, TensorPlan& plan);
  // The value that set() reads as the same setting.
  std::string (*get)(const TensorPlan& plan);
};

std::span<const TensorItem> tensor_items();

}  // namespace tqcache::cache
