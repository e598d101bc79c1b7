#include <algorithm>
#include <array>
#include <span>
#include <string>

#include "tqcache/quantize.h"

namespace tqcache::cache {
namespace {

using codec::CodecSpec;
using codec::Mode;

struct Preset {
  std::string_view name;
  std::string_view description;
  TensorPlan keys;
  TensorPlan values;
};

TensorPlan plan(const CodecSpec& spec) {
  TensorPlan tensor;
  tensor.codec = spec;
  tensor.n_sinks = kDefaultSinks;
  return tensor;
}

TensorPlan mse(int bits) {
  CodecSpec spec;
  spec.bits = bits;
  spec.scale = usual_scale(bits);
  return plan(spec);
}

// A quarter of the channels gets one more bit.
TensorPlan mixed(int bits) {
  CodecSpec spec;
  spec.mode = Mode::kMixed;
  spec.bits = bits;
  spec.outlier_bits = bits + 1;
  spec.scale = usual_scale(bits);
  return plan(spec);
}

TensorPlan prod(int bits) {
  CodecSpec spec;
  spec.mode = Mode::kProd;
  spec.bits = bits;
  spec.scale = codec::ScaleRule::kRaw;  // as in the paper: the residual corrects the bias
  return plan(spec);
}

// As in other programs, so no mean is removed.
TensorPlan affine(int bits) {
  CodecSpec spec;
  spec.mode = Mode::kAffine;
  spec.bits = bits;
  TensorPlan tensor = plan(spec);
  tensor.center = Centering::kNone;
  return tensor;
}

TensorPlan dense() {
  TensorPlan tensor;
  tensor.dense = true;
  return tensor;
}

// About 3 bits per value in a file.
TensorPlan trellis() {
  CodecSpec spec;
  spec.mode = Mode::kTrellis;
  spec.step = 0.25f;
  return plan(spec);
}

const auto kPresets = std::to_array<Preset>({
    {"turbo4", "4 bits: the default", mse(4), mse(4)},
    {"turbo3", "3 bits", mse(3), mse(3)},
    {"turbo2", "2 bits: smallest", mse(2), mse(2)},
    {"k8v4", "keys 8 bits, values 4", mse(8), mse(4)},
    {"k4v3", "keys 4 bits, values 3", mse(4), mse(3)},
    {"kfv4", "keys dense, values 4 bits", dense(), mse(4)},
    {"turbo3.5", "4 bits for a quarter of the channels, 3 for the rest; for research", mixed(3),
     mixed(3)},
    {"turbo2.5", "3 bits for a quarter of the channels, 2 for the rest; for research", mixed(2),
     mixed(2)},
    {"prod4", "3 bits and a residual of 1 bit for unbiased inner products; for research", prod(4),
     prod(4)},
    {"prod3", "2 bits and a residual of 1 bit; for research", prod(3), prod(3)},
    {"prod2", "1 bit and a residual of 1 bit; for research", prod(2), prod(2)},
    {"affine8", "8 bits in groups of 64 with scale and bias, for comparison", affine(8), affine(8)},
    {"affine4", "4 bits in groups of 64 with scale and bias, for comparison", affine(4), affine(4)},
});

// Names of goals. configuration_text() does not use them.
const auto kGoals = std::to_array<Preset>({
    {"high", "keys 6 bits, values 5", mse(6), mse(5)},
    {"balanced", "4 bits, as turbo4", mse(4), mse(4)},
    {"small", "3 bits, as turbo3", mse(3), mse(3)},
    {"turbo", "4 bits, as turbo4", mse(4), mse(4)},
    {"archive", "smallest on disk, about 3 bits, or --bits with fractions; not for memory",
     trellis(), trellis()},
});

const Preset* find_in(std::span<const Preset> all, std::string_view name) {
  const auto found = std::ranges::find(all, name, &Preset::name);
  return found == all.end() ? nullptr : &*found;
}

const Preset* find(std::string_view name) {
  const Preset* const found = find_in(kPresets, name);
  return found != nullptr ? found : find_in(kGoals, name);
}

std::vector<std::string_view> names_of(std::span<const Preset> all) {
  std::vector<std::string_view> names;
  for (const Preset& each : all) names.push_back(each.name);
  return names;
}

}  // namespace

Result<ConvertOptions> preset(std::string_view name) {
  if (const Preset* found = find(name)) return ConvertOptions{found->keys, found->values, {}, 0};
  std::string known;
  for (const auto& names : {names_of(kGoals), names_of(kPresets)}) {
    for (const std::string_view each : names) known += std::string(each) + ", ";
  }
  return Error{ErrorCode::kInvalidArgument,
               "\"" + std::string(name) + "\": not one of " + known.substr(0, known.size() - 2)};
}

std::vector<std::string_view> preset_names() { return names_of(kPresets); }
std::vector<std::string_view> goal_names() { return names_of(kGoals); }

std::string_view preset_description(std::string_view name) {
  const Preset* const found = find(name);
  return found ? found->description : std::string_view();
}

}  // namespace tqcache::cache
