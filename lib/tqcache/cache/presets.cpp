#include <algorithm>
#include <array>
#include <string>

#include "tqcache/quantize.h"

namespace tqcache::cache {
namespace {

using codec::CodecSpec;
using codec::Mode;

struct Preset {
  std::string_view name;
  std::string_view description;
  SidePlan keys;
  SidePlan values;
};

SidePlan plan(const CodecSpec& spec) {
  SidePlan side;
  side.codec = spec;
  return side;
}

SidePlan mse(int bits) {
  CodecSpec spec;
  spec.bits = bits;
  spec.scale = usual_scale(bits);
  return plan(spec);
}

// A quarter of the channels gets one more bit.
SidePlan mixed(int bits) {
  CodecSpec spec;
  spec.mode = Mode::kMixed;
  spec.bits = bits;
  spec.outlier_bits = bits + 1;
  spec.scale = usual_scale(bits);
  return plan(spec);
}

SidePlan prod(int bits) {
  CodecSpec spec;
  spec.mode = Mode::kProd;
  spec.bits = bits;
  spec.scale = codec::ScaleRule::kRaw;  // as in the paper: the residual corrects the bias
  return plan(spec);
}

// As in other programs, so no mean is removed.
SidePlan affine(int bits) {
  CodecSpec spec;
  spec.mode = Mode::kAffine;
  spec.bits = bits;
  SidePlan side = plan(spec);
  side.center = Centering::kNone;
  return side;
}

SidePlan dense() {
  SidePlan side;
  side.dense = true;
  return side;
}

const auto kPresets = std::to_array<Preset>({
    {"turbo4", "4 bits; the default is turbo4 with the first 4 tokens dense", mse(4), mse(4)},
    {"turbo3.5", "4 bits for a quarter of the channels, 3 for the rest", mixed(3), mixed(3)},
    {"turbo3", "3 bits", mse(3), mse(3)},
    {"turbo2.5", "3 bits for a quarter of the channels, 2 for the rest", mixed(2), mixed(2)},
    {"turbo2", "2 bits: smallest", mse(2), mse(2)},
    {"k8v4", "keys 8 bits, values 4", mse(8), mse(4)},
    {"k4v3", "keys 4 bits, values 3", mse(4), mse(3)},
    {"kfv4", "keys dense, values 4 bits", dense(), mse(4)},
    {"prod4", "3 bits and a residual of 1 bit for unbiased inner products", prod(4), prod(4)},
    {"prod3", "2 bits and a residual of 1 bit", prod(3), prod(3)},
    {"prod2", "1 bit and a residual of 1 bit", prod(2), prod(2)},
    {"affine8", "8 bits in groups of 64 with scale and bias, for comparison", affine(8), affine(8)},
    {"affine4", "4 bits in groups of 64 with scale and bias, for comparison", affine(4), affine(4)},
});

struct Quality {
  std::string_view word;
  SidePlan keys;
  SidePlan values;
};

SidePlan with_sinks(SidePlan side) {
  side.n_sinks = kDefaultSinks;
  return side;
}

const auto kQualities = std::to_array<Quality>({
    {"high", with_sinks(mse(6)), with_sinks(mse(5))},
    {"balanced", with_sinks(mse(4)), with_sinks(mse(4))},
    {"small", with_sinks(mse(3)), with_sinks(mse(3))},
});

const Preset* find(std::string_view name) {
  const auto found = std::ranges::find(kPresets, name, &Preset::name);
  return found == kPresets.end() ? nullptr : &*found;
}

}  // namespace

Result<ConvertOptions> preset(std::string_view name) {
  if (const Preset* found = find(name)) return ConvertOptions{found->keys, found->values, {}, 0};
  std::string known;
  for (const Preset& each : kPresets) known += (known.empty() ? "" : ", ") + std::string(each.name);
  return Error{ErrorCode::kInvalidArgument,
               "preset \"" + std::string(name) + "\": not one of " + known};
}

std::vector<std::string_view> preset_names() {
  std::vector<std::string_view> names;
  for (const Preset& each : kPresets) names.push_back(each.name);
  return names;
}

std::string_view preset_description(std::string_view name) {
  const Preset* const found = find(name);
  return found ? found->description : std::string_view();
}

Result<ConvertOptions> quality(std::string_view word) {
  const auto found = std::ranges::find(kQualities, word, &Quality::word);
  if (found != kQualities.end()) return ConvertOptions{found->keys, found->values, {}, 0};
  return Error{ErrorCode::kInvalidArgument,
               "quality \"" + std::string(word) + "\": not one of high, balanced, small"};
}

std::vector<std::string_view> quality_words() {
  std::vector<std::string_view> words;
  for (const Quality& each : kQualities) words.push_back(each.word);
  return words;
}

}  // namespace tqcache::cache
