#include "cli/codec_flags.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <cmath>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/common_flags.h"
#include "tqcache/cache/codec_words.h"
#include "tqcache/error.h"
#include "tqcache/quantize.h"

namespace tqcache::cli {

namespace {

using codec::Mode;
using codec::ScaleRule;
using codec::TransformKind;

constexpr int kDenseBits = 16;

template <class Table>
std::vector<std::string> words_of(const Table& table) {
  std::vector<std::string> words;
  for (const auto& each : table) words.emplace_back(each.word);
  return words;
}

// Requires: parsing has found the word in the table.
template <class Table>
auto value_of(const Table& table, const std::string& word) {
  return cache::find_word(table, word).value();
}

std::vector<std::string> strings_of(const std::vector<std::string_view>& words) {
  return {words.begin(), words.end()};
}

constexpr const char* kBoth = "Quantization";
constexpr const char* kKeys = "For keys alone (as the flags above)";
constexpr const char* kValues = "For values alone";

std::optional<double> parse_double(const std::string& text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return number;
}

// Defines the flags of K, of V, or of both: `prefix` is "key-", "value-" or "".
class SideFlagAdder {
 public:
  SideFlagAdder(FlagSet& app, std::string prefix)
      : app_(app),
        prefix_(std::move(prefix)),
        group_(prefix_.empty()     ? kBoth
               : prefix_ == "key-" ? kKeys
                                   : kValues) {}

  template <class T>
  Flag* add(std::string_view name, std::optional<T>& value, const std::string& text,
            const char* type) {
    return finish(app_.add(fmt::format("--{}{}", prefix_, name), value, shown(name, text)), type);
  }

  template <class Table>
  void add_word(std::string_view name, std::optional<std::string>& value, const Table& table,
                const std::string& text) {
    add(name, value, text, "WORD")->one_of(words_of(table));
  }

  void add_bits(SideFlags& side) {
    const auto take = [&side](const std::string& word) {
      const double value = *parse_double(word);
      side.exact_bits = value;
      side.bits.reset();
      if (value == std::floor(value) && std::abs(value) < 1000) side.bits = static_cast<int>(value);
    };
    finish(app_.add_text(prefix_.empty() ? "-b,--bits" : fmt::format("--{}bits", prefix_), take,
                         shown("bits",
                               "Bits per quantized value, 1 to 8; 16 keeps values dense. With "
                               "--tier archive: bits per value of the whole file, such as 2.4")),
           "B")
        ->check([](const std::string& word) -> Result<void> {
          if (parse_double(word)) return {};
          return usage_error(fmt::format("{} is not a number this flag takes", word));
        });
  }

  void add_all(SideFlags& side) {
    add_bits(side);
    add_word("mode", side.mode, cache::kModeWords,
             "Quantizer: mse; prod (mse plus a 1-bit QJL residual); mixed (more bits for outlier "
             "channels); affine (groups with scale and bias)");
    add_word("scale", side.scale, cache::kScaleWords,
             "Property that the scale of a vector preserves: unbiased (inner products), norm (the "
             "length; default below 4 bits), raw (neither)");
    add_word("rotation", side.rotation, cache::kRotationWords,
             "Transform before quantizing: hadamard, or dense (slow, as in the paper)");
    add("rounds", side.rounds, "Rounds of random signs and Hadamard transform, 1 to 3", "N");
    add("seed", side.seed, "Seed of the rotations", "N");
    add_word("residual", side.residual, cache::kResidualWords,
             "With --mode prod: matrix of the residual, gaussian or orthogonal");
    add("outlier-channels", side.outlier_channels,
        "With --mode mixed: outlier channels per head; 0 means a quarter", "N");
    add("outlier-high-bits", side.outlier_high_bits,
        "With --mode mixed: bits of the outlier channels", "B");
    add("regular-bits", side.regular_bits, "With --mode mixed: bits of the other channels", "B");
    add("group-size", side.group_size, "With --mode affine: channels per group, 32, 64 or 128",
        "N");
    add("sink-tokens", side.sink_tokens,
        "First tokens to keep dense, 0 to 256. Default: 4; with --preset 0", "N");
    add_word("center", side.center, cache::kCenteringWords,
             "Subtract the mean before quantizing: pre-rope, post-rope or none");
  }

 private:
  std::string shown(std::string_view name, const std::string& text) const {
    return prefix_.empty() ? text : fmt::format("As --{}", name);
  }
  Flag* finish(Flag* flag, const char* type) const {
    if (!prefix_.empty()) flag->brief();
    return flag->type_name(type)->group(group_);
  }

  FlagSet& app_;
  std::string prefix_;
  std::string group_;
};

// A value and the flag that it came from.
template <class T>
struct Choice {
  const std::optional<T>& value;
  std::string flag;

  explicit operator bool() const { return value.has_value(); }
  const T& operator*() const { return *value; }
};

// The flags of K or V. Its own flags win over those for both.
class SideChoices {
 public:
  SideChoices(const SideFlags& both, const SideFlags& own, std::string_view prefix)
      : both_(both), own_(own), prefix_(prefix) {}

  template <class T>
  Choice<T> get(std::optional<T> SideFlags::*member, std::string_view name) const {
    if ((own_.*member).has_value()) return {own_.*member, fmt::format("--{}{}", prefix_, name)};
    return {both_.*member, fmt::format("--{}", name)};
  }

  // The first flag, except the one for bits, that was given for this tensor only; empty if absent.
  std::string first_own_flag() const { return first_flag(own_, prefix_); }
  // As above, for the flags for both.
  std::string first_common_flag() const { return first_flag(both_, ""); }

  bool bits_are_own() const { return own_.bits.has_value(); }

 private:
  static std::string first_flag(const SideFlags& side, std::string_view prefix) {
    const std::pair<bool, const char*> given[] = {
        {side.mode.has_value(), "mode"},
        {side.scale.has_value(), "scale"},
        {side.rotation.has_value(), "rotation"},
        {side.rounds.has_value(), "rounds"},
        {side.seed.has_value(), "seed"},
        {side.residual.has_value(), "residual"},
        {side.outlier_channels.has_value(), "outlier-channels"},
        {side.outlier_high_bits.has_value(), "outlier-high-bits"},
        {side.regular_bits.has_value(), "regular-bits"},
        {side.group_size.has_value(), "group-size"},
        {side.sink_tokens.has_value(), "sink-tokens"},
        {side.center.has_value(), "center"}};
    for (const auto& [is_given, name] : given) {
      if (is_given) return fmt::format("--{}{}", prefix, name);
    }
    return {};
  }

  const SideFlags& both_;
  const SideFlags& own_;
  std::string_view prefix_;
};

template <class T>
Result<void> check_range(const Choice<T>& choice, T lowest, T highest) {
  if (!choice || (*choice >= lowest && *choice <= highest)) return {};
  return usage_error(fmt::format("{}: {} is not {} to {}", choice.flag, *choice, lowest, highest));
}

// Rejects a flag that needs another mode than that of the tensor.
template <class T>
Result<void> check_mode(const Choice<T>& choice, Mode needed, Mode mode) {
  if (!choice || mode == needed) return {};
  return usage_error(fmt::format("{} needs --mode {}; the mode is {}", choice.flag,
                                 codec::mode_word(needed), codec::mode_word(mode)));
}

template <class T>
Result<void> refuse_in_affine(const Choice<T>& choice, Mode mode) {
  if (!choice || mode != Mode::kAffine) return {};
  return usage_error(fmt::format("{} does not go with --mode affine", choice.flag));
}

// Another mode starts with its own default settings.
Result<void> apply_mode(const SideChoices& flags, cache::SidePlan& plan) {
  codec::CodecSpec& spec = plan.codec;
  const auto mode = flags.get(&SideFlags::mode, "mode");
  if (!mode || value_of(cache::kModeWords, *mode) == spec.mode) return {};
  const int bits = spec.mode == Mode::kMixed ? 4 : spec.bits;
  spec = {.head_dim = spec.head_dim, .mode = value_of(cache::kModeWords, *mode), .bits = bits};
  if (spec.mode == Mode::kProd) spec.scale = ScaleRule::kRaw;
  if (spec.mode == Mode::kMixed) {
    spec.bits = 2;
    spec.outlier_bits = 3;
  }
  if (spec.mode == Mode::kAffine) plan.center = cache::Centering::kNone;
  return {};
}

Result<void> apply_bits(const SideChoices& flags, codec::CodecSpec& spec) {
  const auto bits = flags.get(&SideFlags::bits, "bits");
  if (!bits) return {};
  if (spec.mode == Mode::kMixed) {
    return usage_error(fmt::format(
        "{} does not go with mode mixed: use --regular-bits and --outlier-high-bits", bits.flag));
  }
  spec.bits = *bits;
  return {};
}

Result<void> apply_turn(const SideChoices& flags, codec::CodecSpec& spec) {
  const auto scale = flags.get(&SideFlags::scale, "scale");
  const auto rotation = flags.get(&SideFlags::rotation, "rotation");
  const auto rounds = flags.get(&SideFlags::rounds, "rounds");
  const auto seed = flags.get(&SideFlags::seed, "seed");
  TQC_TRY(refuse_in_affine(scale, spec.mode));
  TQC_TRY(refuse_in_affine(rotation, spec.mode));
  TQC_TRY(refuse_in_affine(rounds, spec.mode));
  TQC_TRY(refuse_in_affine(seed, spec.mode));
  TQC_TRY(check_range(rounds, 1, codec::kMaxRounds));
  if (scale) spec.scale = value_of(cache::kScaleWords, *scale);
  if (rotation) spec.rotation = value_of(cache::kRotationWords, *rotation);
  if (seed) spec.seed = *seed;
  if (!rounds) return {};
  if (spec.rotation == TransformKind::kDenseQr && *rounds != 1) {
    return usage_error(fmt::format("{} does not go with {} dense", rounds.flag, rotation.flag));
  }
  spec.rounds = *rounds;
  return {};
}

Result<void> apply_prod(const SideChoices& flags, codec::CodecSpec& spec) {
  const auto residual = flags.get(&SideFlags::residual, "residual");
  TQC_TRY(check_mode(residual, Mode::kProd, spec.mode));
  if (residual) spec.residual = value_of(cache::kResidualWords, *residual);
  if (spec.mode != Mode::kProd || spec.bits >= 2) return {};
  return usage_error(fmt::format("{} 1 does not go with {} prod: the residual needs one bit",
                                 flags.get(&SideFlags::bits, "bits").flag,
                                 flags.get(&SideFlags::mode, "mode").flag));
}

Result<void> apply_mixed(const SideChoices& flags, codec::CodecSpec& spec) {
  const auto channels = flags.get(&SideFlags::outlier_channels, "outlier-channels");
  const auto high = flags.get(&SideFlags::outlier_high_bits, "outlier-high-bits");
  const auto regular = flags.get(&SideFlags::regular_bits, "regular-bits");
  TQC_TRY(check_mode(channels, Mode::kMixed, spec.mode));
  TQC_TRY(check_mode(high, Mode::kMixed, spec.mode));
  TQC_TRY(check_mode(regular, Mode::kMixed, spec.mode));
  TQC_TRY(check_range(channels, 0, codec::kMaxHeadDim));
  TQC_TRY(check_range(high, codec::kMinBits, codec::kMaxBits));
  TQC_TRY(check_range(regular, codec::kMinBits, codec::kMaxBits));
  if (channels) spec.outlier_channels = *channels;
  if (high) spec.outlier_bits = *high;
  if (regular) spec.bits = *regular;
  if (spec.mode != Mode::kMixed || spec.outlier_bits > spec.bits) return {};
  return usage_error(fmt::format("{} {} is not above {} {}", high.flag, spec.outlier_bits,
                                 regular.flag, spec.bits));
}

Result<void> apply_affine(const SideChoices& flags, codec::CodecSpec& spec) {
  const auto size = flags.get(&SideFlags::group_size, "group-size");
  TQC_TRY(check_mode(size, Mode::kAffine, spec.mode));
  if (!size) return {};
  if (*size != 32 && *size != 64 && *size != 128) {
    return usage_error(fmt::format("{}: {} is not 32, 64 or 128", size.flag, *size));
  }
  spec.group_size = *size;
  return {};
}

// The number of bits determines the scale rule, unless a flag does.
void apply_usual_scale(const SideChoices& flags, codec::CodecSpec& spec) {
  if (flags.get(&SideFlags::scale, "scale")) return;
  if (spec.mode == Mode::kMse || spec.mode == Mode::kMixed) {
    spec.scale = cache::usual_scale(spec.bits);
  }
}

Result<void> apply_surroundings(const SideChoices& flags, cache::SidePlan& plan) {
  const auto sinks = flags.get(&SideFlags::sink_tokens, "sink-tokens");
  const auto center = flags.get(&SideFlags::center, "center");
  TQC_TRY(check_range(sinks, std::int64_t{0}, cache::kTokenBlock));
  if (sinks) plan.n_sinks = *sinks;
  if (center) plan.center = value_of(cache::kCenteringWords, *center);
  return {};
}

// With 16 bits K or V stays dense, and no other flag applies.
Result<void> make_dense(const SideChoices& flags, cache::SidePlan& plan) {
  std::string other = flags.first_own_flag();
  if (other.empty() && !flags.bits_are_own()) other = flags.first_common_flag();
  if (!other.empty()) {
    return usage_error(fmt::format("{} does not go with {} 16, which keeps values dense", other,
                                   flags.get(&SideFlags::bits, "bits").flag));
  }
  plan.dense = true;
  return {};
}

Result<void> check_bits(const Choice<int>& bits) {
  if (!bits || *bits == kDenseBits || (*bits >= codec::kMinBits && *bits <= codec::kMaxBits)) {
    return {};
  }
  return usage_error(fmt::format("{}: {} is neither {} to {} nor 16 (dense)", bits.flag, *bits,
                                 codec::kMinBits, codec::kMaxBits));
}

Result<void> apply(const SideChoices& flags, cache::SidePlan& plan) {
  const auto bits = flags.get(&SideFlags::bits, "bits");
  TQC_TRY(check_bits(bits));
  if (bits && *bits == kDenseBits) return make_dense(flags, plan);
  const bool is_meant = flags.bits_are_own() || !flags.first_own_flag().empty();
  if (plan.dense && !is_meant) return {};  // flags for both apply to the quantized one
  if (plan.dense) plan = cache::SidePlan{};
  TQC_TRY(apply_mode(flags, plan));
  TQC_TRY(apply_bits(flags, plan.codec));
  TQC_TRY(apply_turn(flags, plan.codec));
  TQC_TRY(apply_prod(flags, plan.codec));
  TQC_TRY(apply_mixed(flags, plan.codec));
  TQC_TRY(apply_affine(flags, plan.codec));
  apply_usual_scale(flags, plan.codec);
  return apply_surroundings(flags, plan);
}

std::optional<std::int64_t> parse_number(std::string_view text) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return number;
}

// The flag replaces all others, so it excludes the flags from `first` on.
void exclude_others(FlagSet& app, std::size_t first, Flag* flag) {
  for (std::size_t i = first; i < app.flags().size(); ++i) {
    if (app.flags()[i].get() != flag) flag->excludes(app.flags()[i].get());
  }
}

// "N" or "N:BITS".
Result<cache::BoundaryLayers> parse_boundary(const std::string& text) {
  cache::BoundaryLayers boundary;
  if (text.empty()) return boundary;
  const std::size_t colon = text.find(':');
  const auto n = parse_number(std::string_view(text).substr(0, colon));
  const auto bits = colon == std::string::npos
                        ? std::optional<std::int64_t>(boundary.bits)
                        : parse_number(std::string_view(text).substr(colon + 1));
  if (!n || *n < 0 || *n > cache::kMaxLayers || !bits || *bits < codec::kMinBits ||
      *bits > codec::kMaxBits) {
    return usage_error(
        fmt::format("--boundary-layers: {} is not a number of layers, or N:BITS "
                    "with 1 to 8 bits",
                    text));
  }
  return cache::BoundaryLayers{*n, static_cast<int>(*bits)};
}

Result<void> check_whole(const SideFlags& side, std::string_view prefix) {
  if (!side.exact_bits || side.bits) return {};
  return usage_error(fmt::format("--{}bits: {} is not a whole number", prefix, *side.exact_bits));
}

}  // namespace

void add_codec_flags(FlagSet& app, CodecFlags& flags) {
  const std::size_t first = app.flags().size();
  app.add("--preset", flags.preset,
          "Set of quantization settings to start from, without sink tokens. Without this flag: "
          "turbo4 and 4 sink tokens")
      ->type_name("NAME")
      ->one_of(strings_of(cache::preset_names()))
      ->group(kBoth);
  SideFlagAdder(app, "").add_all(flags.both);
  app.add("--boundary-layers", flags.boundary_layers,
          "Give the first and the last N layers BITS bits, 8 by default")
      ->type_name("N[:BITS]")
      ->group(kBoth);
  app.add("--windows", flags.windows,
          "Sliding-window layers: keep (dense), turbo (quantized) or turbo:center (quantized with "
          "centered keys, for models with one RoPE, not Gemma 3)")
      ->type_name("WORD")
      ->one_of(words_of(cache::kWindowWords))
      ->group(kBoth)
      ->show_default();
  app.add("--fit", flags.fit,
          "Tokens that the means are taken of: first (the first 256: prompts that begin alike can "
          "share blocks) or prompt (up to 8,192 of the whole prompt)")
      ->type_name("WORD")
      ->one_of(words_of(cache::kFitWords))
      ->group(kBoth)
      ->show_default();
  SideFlagAdder(app, "key-").add_all(flags.keys);
  SideFlagAdder(app, "value-").add_all(flags.values);
  Flag* const quality = app.add("--quality", flags.quality,
                                "Goal instead of settings: high (6 bits for keys, 5 for values), "
                                "balanced (4 bits, the default) or small (3 bits)")
                            ->one_of(strings_of(cache::quality_words()))
                            ->type_name("WORD")
                            ->group(kBoth);
  exclude_others(app, first, quality);
  Flag* const all = app.add("--config", flags.configuration,
                            "All settings in one word, as eval takes them: "
                            "k=mse:4,v=mse:3,boundary=2:8,sink=4")
                        ->type_name("TEXT")
                        ->group(kBoth);
  exclude_others(app, first, all);
}

Result<cache::ConvertOptions> convert_options(const CodecFlags& flags) {
  TQC_TRY(check_whole(flags.both, ""));
  TQC_TRY(check_whole(flags.keys, "key-"));
  TQC_TRY(check_whole(flags.values, "value-"));
  if (flags.configuration) {
    auto parsed = cache::parse_configuration(*flags.configuration);
    if (!parsed) return in_context("--config", std::move(parsed).error());
    return std::move(parsed)->options;
  }
  if (flags.quality) return cache::quality(*flags.quality);
  TQC_TRY_ASSIGN(cache::ConvertOptions options,
                 flags.preset ? cache::preset(*flags.preset) : cache::quality("balanced"));
  TQC_TRY(apply(SideChoices(flags.both, flags.keys, "key-"), options.keys));
  TQC_TRY(apply(SideChoices(flags.both, flags.values, "value-"), options.values));
  TQC_TRY_ASSIGN(options.boundary, parse_boundary(flags.boundary_layers));
  options.windows = value_of(cache::kWindowWords, flags.windows);
  options.fit = value_of(cache::kFitWords, flags.fit);
  // Who asks for no number of bits does not insist on heads that are too small for any.
  const bool is_asked = flags.preset || flags.both.bits || flags.keys.bits || flags.values.bits;
  options.keys.keep_small_heads = options.values.keep_small_heads = !is_asked;
  return options;
}

void add_form_flags(FlagSet& app, FormFlags& flags) {
  const std::string group = "Quantization of a new cache";
  app.add("-b,--bits", flags.bits, "Quantize the new cache to N bits, as convert does")
      ->type_name("N")
      ->group(group);
  app.add("--config", flags.configuration,
          "Settings of the new cache: turbo4, k=mse:4,v=mse:3, ...; f32 is dense")
      ->type_name("TEXT")
      ->group(group);
  app.add("--profile", flags.profile,
          "Use the factors of keys in this file of tqcache profile; without other flags with the "
          "default of convert")
      ->type_name("FILE")
      ->file()
      ->group(group);
}

Result<std::optional<cache::ConvertOptions>> form_of(const FormFlags& flags) {
  if (!flags.given()) return std::optional<cache::ConvertOptions>();
  if (flags.bits && flags.configuration) {
    return usage_error("--bits and --config exclude each other");
  }
  CodecFlags codec;
  codec.both.bits = flags.bits;
  codec.configuration = flags.configuration;
  TQC_TRY_ASSIGN(cache::ConvertOptions options, convert_options(codec));
  if (!flags.profile.empty()) {
    if (options.calibration) return usage_error("--profile and profile= exclude each other");
    TQC_TRY_ASSIGN(cache::Calibration calibration,
                   in_file(flags.profile, cache::read_calibration(flags.profile)));
    options.calibration = std::make_shared<const cache::Calibration>(std::move(calibration));
    options.calibration_path = flags.profile;
  }
  return std::optional(std::move(options));
}

}  // namespace tqcache::cli
