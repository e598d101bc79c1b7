#include "tqcache/cache/configuration_items.h"

#include <array>
#include <charconv>
#include <utility>
#include <vector>

#include "tqcache/cache/codec_words.h"
#include "tqcache/error.h"
#include "tqcache/quantize.h"

namespace tqcache::cache {
namespace {

using codec::CodecSpec;
using codec::Mode;

constexpr std::string_view kTensorWords =
    "dense, mse:1 to mse:8, prod:2 to prod:8, mixed:1 to mixed:7 (mixed:BITS:CHANNELS:BITS), "
    "affine:1 to affine:8 (affine:BITS:GROUP), trellis:STEP or trellis:STEP:map";

Error no_tensor(std::string_view value) {
  return invalid(std::string(value) + " is none of " + std::string(kTensorWords));
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (std::size_t end = 0; end != std::string_view::npos;) {
    end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end != std::string_view::npos) text.remove_prefix(end + 1);
  }
  return parts;
}

std::optional<int> parse_within(std::string_view text, int lowest, int highest) {
  const auto number = parse_count(text);
  if (!number || *number < static_cast<std::uint64_t>(lowest) ||
      *number > static_cast<std::uint64_t>(highest)) {
    return std::nullopt;
  }
  return static_cast<int>(*number);
}

// Shapes: numbers: those after the mode, the bits first.
bool read_mixed(std::span<const std::string_view> numbers, CodecSpec& spec) {
  spec.outlier_bits = spec.bits + 1;
  if (numbers.size() == 1) return spec.outlier_bits <= codec::kMaxBits;
  if (numbers.size() != 3) return false;
  const auto channels = parse_within(numbers[1], 0, codec::kMaxHeadDim);
  const auto high = parse_within(numbers[2], spec.bits + 1, codec::kMaxBits);
  spec.outlier_channels = channels.value_or(0);
  spec.outlier_bits = high.value_or(0);
  return channels && high;
}

bool read_affine(std::span<const std::string_view> numbers, CodecSpec& spec) {
  if (numbers.size() == 1) return true;
  const auto group = parse_within(numbers[1], 32, 128);
  if (!group || numbers.size() != 2) return false;
  spec.group_size = *group;
  return *group == 32 || *group == 64 || *group == 128;
}

bool read_mode(std::span<const std::string_view> numbers, TensorPlan& plan) {
  CodecSpec& spec = plan.codec;
  switch (spec.mode) {
    case Mode::kMse:
      spec.scale = usual_scale(spec.bits);
      return numbers.size() == 1;
    case Mode::kProd:
      spec.scale = codec::ScaleRule::kRaw;  // as in the paper: the residual corrects the bias
      return numbers.size() == 1 && spec.bits >= 2;
    case Mode::kMixed:
      spec.scale = usual_scale(spec.bits);
      return read_mixed(numbers, spec);
    case Mode::kAffine:
      plan.center = Centering::kNone;  // as in other programs
      return read_affine(numbers, spec);
    case Mode::kTrellis:
      break;  // has no bits: see read_trellis()
  }
  return false;
}

constexpr std::string_view kTrellisWord = "trellis";

// The text must be the number and nothing else.
std::optional<float> parse_float(std::string_view text) {
  float number = 0;
  const char* const end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, number);
  if (read.ec != std::errc{} || read.ptr != end) return std::nullopt;
  return number;
}

// The shortest text that is read as the same number.
std::string float_text(float number) {
  std::array<char, 32> digits;
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), number).ptr;
  return {digits.data(), end};
}

// "trellis:0.25", "trellis:0.25:map".
std::optional<TensorPlan> read_trellis(std::span<const std::string_view> parts) {
  if (parts.size() < 2 || parts.size() > 3) return std::nullopt;
  TensorPlan plan;
  plan.n_sinks = kDefaultSinks;
  const auto step = parse_float(parts[1]);
  if (!step || !(*step >= codec::kMinStep && *step <= codec::kMaxStep)) return std::nullopt;
  if (parts.size() == 3 && parts[2] != "map") return std::nullopt;
  plan.codec.step = *step;
  plan.codec.mode = Mode::kTrellis;
  plan.fit_transforms = parts.size() == 3;
  return plan;
}

std::string trellis_text(const TensorPlan& plan) {
  return std::string(kTrellisWord) + ":" + float_text(plan.codec.step) +
         (plan.fit_transforms ? ":map" : "");
}

bool has_scale(const TensorPlan& plan) {
  return !plan.dense && plan.codec.mode != Mode::kAffine && plan.codec.mode != Mode::kTrellis;
}
bool is_packed(const TensorPlan& plan) { return !plan.dense; }
bool has_rotation(const TensorPlan& plan) {
  return !plan.dense && plan.codec.mode != Mode::kAffine && !plan.fit_transforms;
}
bool is_prod(const TensorPlan& plan) { return !plan.dense && plan.codec.mode == Mode::kProd; }

// Sets `field` to the value for a word.
template <class Table, class Value>
Result<void> set_word(const Table& table, std::string_view word, Value& field) {
  const auto value = find_word(table, word);
  if (!value) return invalid(std::string(word) + " is none of " + all_words(table));
  field = *value;
  return {};
}

template <class Value>
Result<void> set_number(std::string_view text, int lowest, int highest, Value& field) {
  const auto number = parse_within(text, lowest, highest);
  if (!number) {
    return invalid(std::string(text) + " is not " + std::to_string(lowest) + " to " +
                   std::to_string(highest));
  }
  field = *number;
  return {};
}

Result<void> set_seed(std::string_view text, TensorPlan& plan) {
  const auto seed = parse_count(text);
  if (!seed) return invalid(std::string(text) + " is not a number below 2^64");
  plan.codec.seed = *seed;
  return {};
}

constexpr auto kTensorItems = std::to_array<TensorItem>({
    {"sink", is_packed,
     [](std::string_view value, TensorPlan& plan) {
       return set_number(value, 0, int{kTokenBlock}, plan.n_sinks);
     },
     [](const TensorPlan& plan) { return std::to_string(plan.n_sinks); }},
    {"center", is_packed,
     [](std::string_view value, TensorPlan& plan) {
       return set_word(kCenteringWords, value, plan.center);
     },
     [](const TensorPlan& plan) { return std::string(word_of(kCenteringWords, plan.center)); }},
    {"rotation", has_rotation,
     [](std::string_view value, TensorPlan& plan) {
       return set_word(kRotationWords, value, plan.codec.rotation);
     },
     [](const TensorPlan& plan) {
       return std::string(word_of(kRotationWords, plan.codec.rotation));
     }},
    {"rounds", has_rotation,
     [](std::string_view value, TensorPlan& plan) {
       return set_number(value, 1, codec::kMaxRounds, plan.codec.rounds);
     },
     [](const TensorPlan& plan) { return std::to_string(plan.codec.rounds); }},
    {"seed", has_rotation, set_seed,
     [](const TensorPlan& plan) { return std::to_string(plan.codec.seed); }},
    {"scale", has_scale,
     [](std::string_view value, TensorPlan& plan) {
       return set_word(kScaleWords, value, plan.codec.scale);
     },
     [](const TensorPlan& plan) { return std::string(word_of(kScaleWords, plan.codec.scale)); }},
    {"residual", is_prod,
     [](std::string_view value, TensorPlan& plan) {
       return set_word(kResidualWords, value, plan.codec.residual);
     },
     [](const TensorPlan& plan) {
       return std::string(word_of(kResidualWords, plan.codec.residual));
     }},
});

std::string mixed_text(const CodecSpec& spec) {
  if (spec.outlier_channels == 0 && spec.outlier_bits == spec.bits + 1) return {};
  return ":" + std::to_string(spec.outlier_channels) + ":" + std::to_string(spec.outlier_bits);
}

}  // namespace

std::optional<std::uint64_t> parse_count(std::string_view text) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return number;
}

Result<TensorPlan> parse_tensor(std::string_view value) {
  TensorPlan plan;
  plan.dense = value == "dense";
  if (plan.dense) return plan;
  plan.n_sinks = kDefaultSinks;
  const std::vector<std::string_view> parts = split(value, ':');
  if (parts[0] == kTrellisWord) {
    const auto trellis = read_trellis(parts);
    if (trellis) return *trellis;
    return no_tensor(value);
  }
  const auto mode = find_word(kModeWords, parts[0]);
  if (!mode || parts.size() < 2) return no_tensor(value);
  const auto bits = parse_within(parts[1], codec::kMinBits, codec::kMaxBits);
  if (!bits) return no_tensor(value);
  plan.codec.mode = *mode;
  plan.codec.bits = *bits;
  if (!read_mode(std::span(parts).subspan(1), plan)) return no_tensor(value);
  return plan;
}

std::string tensor_text(const TensorPlan& plan) {
  if (plan.dense) return "dense";
  if (plan.codec.mode == Mode::kTrellis) return trellis_text(plan);
  const CodecSpec& spec = plan.codec;
  std::string text = std::string(word_of(kModeWords, spec.mode)) + ":" + std::to_string(spec.bits);
  if (spec.mode == Mode::kMixed) text += mixed_text(spec);
  if (spec.mode == Mode::kAffine && spec.group_size != CodecSpec{}.group_size) {
    text += ":" + std::to_string(spec.group_size);
  }
  return text;
}

Result<std::vector<float>> parse_weights(std::string_view value) {
  std::vector<float> weights;
  for (const std::string_view part : split(value, ':')) {
    const auto weight = parse_float(part);
    const bool in_range =
        weight && (*weight == 0 || (*weight >= kMinStepWeight && *weight <= kMaxStepWeight));
    if (!in_range) {
      return invalid("\"" + std::string(part) + "\" is not 0, nor from 0.125 to 8");
    }
    if (std::ssize(weights) == kMaxLayers) return invalid("more weights than there can be layers");
    weights.push_back(*weight);
  }
  return weights;
}

std::string weights_text(std::span<const float> weights) {
  std::string text;
  for (const float each : weights) text += (text.empty() ? "" : ":") + float_text(each);
  return text;
}

std::span<const TensorItem> tensor_items() { return kTensorItems; }

}  // namespace tqcache::cache
