#pragma once
// cache/presets.h: the ways to pack a cache that have a name.
//
//   turbo4 turbo3 turbo2   so many bits for keys and values
//   turbo3.5 turbo2.5      one bit more for a quarter of the channels, the loud ones: 3.25 and 2.25
//                          bits a code, and twice the scales
//   k8v4 k4v3 kfv4         other bits for keys than for values; f: dense
//   prod4 prod3 prod2      unbiased inner products by a residual of one bit, as TurboQuant has it
//   affine8 affine4        groups of 64 channels with scale and bias, neither rotated nor
//                          centered: the usual baseline

#include <string_view>
#include <vector>

#include "tqcache/base/result.h"
#include "tqcache/cache/plan.h"

namespace tqcache::cache {

inline constexpr std::string_view kDefaultPreset = "turbo4";

// What a scale preserves in modes mse and mixed unless told: the length of a vector below 4 bits
// (of regular channels), where unbiased inner products cost too much; inner products from there on.
// Measured: docs/explain/quality.md, "Scales".
constexpr codec::ScaleRule usual_scale(int bits) {
  return bits < 4 ? codec::ScaleRule::kNorm : codec::ScaleRule::kUnbiased;
}

// Errors: kInvalidArgument for a name that is not known; the message gives those that are.
Result<ConvertOptions> preset(std::string_view name);

// All of them, the default first.
std::vector<std::string_view> preset_names();

// One line for people. Empty for a name that is not known.
std::string_view preset_description(std::string_view name);

// Three configurations by what they are for: "high", "balanced" (the default preset) and "small",
// the best ones of their sizes that were measured (docs/explain/quality.md, "Three qualities").
// Errors: kInvalidArgument for another word.
Result<ConvertOptions> quality(std::string_view word);
std::vector<std::string_view> quality_words();

}  // namespace tqcache::cache
