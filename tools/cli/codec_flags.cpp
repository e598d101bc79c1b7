#include "cli/codec_flags.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <cmath>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/outcome.h"
#include "tqcache/cache/codec_words.h"
#include "tqcache/cache/configuration.h"

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

// Defines the flags of keys, of values, or of both: `prefix` is "key-", "value-" or "".
class SideFlagAdder {
 public:
  SideFlagAdder(CLI::App& app, std::string prefix)
      : app_(app),
        prefix_(std::move(prefix)),
        group_(prefix_.empty()     ? "Codec"
               : prefix_ == "key-" ? "Keys alone"
                                   : "Values alone") {}

  template <class T>
  CLI::Option* add(std::string_view name, std::optional<T>& value, const std::string& text,
                   const char* type) {
    const std::string shown = prefix_.empty() ? text : fmt::format("As --{}", name);
    return app_.add_option(fmt::format("--{}{}", prefix_, name), value, shown)
        ->type_name(type)
        ->group(group_);
  }

  template <class Table>
  void add_word(std::string_view name, std::optional<std::string>& value, const Table& table,
                const std::string& text) {
    add(name, value, text, "WORD")->check(CLI::IsMember(words_of(table)).description(""));
  }

  void add_all(SideFlags& side) {
    const std::string bits = prefix_.empty() ? "-b,--bits" : fmt::format("--{}bits", prefix_);
    app_.add_option_function<double>(
            bits,
            [&side](double value) {
              side.exact_bits = value;
              side.bits.reset();
              if (value == std::floor(value) && std::abs(value) < 1000) {
                side.bits = static_cast<int>(value);
              }
            },
            prefix_.empty() ? "Bits of a packed value, 1 to 8; 16: stay dense. With --tier archive "
                              "those of the whole file for a value, also 2.4"
                            : "As --bits")
        ->type_name("B")
        ->group(group_);
    add_word("mode", side.mode, cache::kModeWords,
             "mse; prod: a bit of it for a QJL residual; mixed: outlier channels get more bits; "
             "affine: groups with scale and bias");
    add_word("scale", side.scale, cache::kScaleWords,
             "What a vector's scale preserves: unbiased (inner products), norm (its length; the "
             "default below 4 bits), raw (nothing)");
    add_word("rotation", side.rotation, cache::kRotationWords,
             "hadamard, or dense (slow, as in the paper)");
    add("rounds", side.rounds, "Rounds of signs and Hadamard transform, 1 to 3", "N");
    add("seed", side.seed, "Seed of rotations", "N");
    add_word("residual", side.residual, cache::kResidualWords,
             "Mode prod's matrix: gaussian or orthogonal");
    add("outlier-channels", side.outlier_channels,
        "Mode mixed: outlier channels of a head; 0: a quarter", "N");
    add("outlier-high-bits", side.outlier_high_bits, "Mode mixed: bits of outlier channels", "B");
    add("regular-bits", side.regular_bits, "Mode mixed: bits of the other channels", "B");
    add_word("outlier-policy", side.outlier_policy, cache::kOutlierPolicyWords,
             "Mode mixed: outliers in the first block (calibration_variance) or in all tokens "
             "(rolling_variance)");
    add("group-size", side.group_size, "Mode affine: channels of a group, 32, 64 or 128", "N");
    add("sink-tokens", side.sink_tokens, "First tokens that stay dense, 0 to 256", "N");
    add_word("center", side.center, cache::kCenteringWords,
             "Take the mean out before packing: pre-rope, post-rope, none");
  }

 private:
  CLI::App& app_;
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

// The flags of one side, its own before those of both.
class SideChoices {
 public:
  SideChoices(const SideFlags& both, const SideFlags& own, std::string_view prefix)
      : both_(both), own_(own), prefix_(prefix) {}

  template <class T>
  Choice<T> get(std::optional<T> SideFlags::*member, std::string_view name) const {
    if ((own_.*member).has_value()) return {own_.*member, fmt::format("--{}{}", prefix_, name)};
    return {both_.*member, fmt::format("--{}", name)};
  }

  // The first flag, other than that of bits, that was given for this side alone; empty: none.
  std::string first_own_flag() const { return first_flag(own_, prefix_); }
  // The same of the flags for both sides.
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
        {side.outlier_policy.has_value(), "outlier-policy"},
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

// Refuses a flag that says something about another mode than the side's.
template <class T>
Result<void> check_mode(const Choice<T>& choice, Mode needed, Mode mode) {
  if (!choice || mode == needed) return {};
  return usage_error(fmt::format("{} needs --mode {}, and the mode here is {}", choice.flag,
                                 codec::mode_word(needed), codec::mode_word(mode)));
}

template <class T>
Result<void> refuse_in_affine(const Choice<T>& choice, Mode mode) {
  if (!choice || mode != Mode::kAffine) return {};
  return usage_error(fmt::format("{} does not go with --mode affine", choice.flag));
}

// Another mode begins with its own usual numbers.
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
        "{} does not go with mode mixed: give --regular-bits and --outlier-high-bits", bits.flag));
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
  return usage_error(fmt::format("{} 1 does not go with {} prod: its residual takes one bit",
                                 flags.get(&SideFlags::bits, "bits").flag,
                                 flags.get(&SideFlags::mode, "mode").flag));
}

Result<void> apply_mixed(const SideChoices& flags, cache::SidePlan& plan) {
  codec::CodecSpec& spec = plan.codec;
  const auto channels = flags.get(&SideFlags::outlier_channels, "outlier-channels");
  const auto high = flags.get(&SideFlags::outlier_high_bits, "outlier-high-bits");
  const auto regular = flags.get(&SideFlags::regular_bits, "regular-bits");
  const auto policy = flags.get(&SideFlags::outlier_policy, "outlier-policy");
  TQC_TRY(check_mode(channels, Mode::kMixed, spec.mode));
  TQC_TRY(check_mode(high, Mode::kMixed, spec.mode));
  TQC_TRY(check_mode(regular, Mode::kMixed, spec.mode));
  TQC_TRY(check_mode(policy, Mode::kMixed, spec.mode));
  TQC_TRY(check_range(channels, 0, codec::kMaxHeadDim));
  TQC_TRY(check_range(high, codec::kMinBits, codec::kMaxBits));
  TQC_TRY(check_range(regular, codec::kMinBits, codec::kMaxBits));
  if (channels) spec.outlier_channels = *channels;
  if (high) spec.outlier_bits = *high;
  if (regular) spec.bits = *regular;
  if (policy) plan.outlier_policy = value_of(cache::kOutlierPolicyWords, *policy);
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

// Bits decide what scales preserve, unless a flag does.
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

// A side whose bits are 16 stays dense, and nothing else can be said of it.
Result<void> make_dense(const SideChoices& flags, cache::SidePlan& plan) {
  std::string other = flags.first_own_flag();
  if (other.empty() && !flags.bits_are_own()) other = flags.first_common_flag();
  if (!other.empty()) {
    return usage_error(fmt::format("{} does not go with {} 16, which leaves the side dense", other,
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
  if (plan.dense && !is_meant) return {};  // what is said of both is said of the packed one
  if (plan.dense) plan = cache::SidePlan{};
  TQC_TRY(apply_mode(flags, plan));
  TQC_TRY(apply_bits(flags, plan.codec));
  TQC_TRY(apply_turn(flags, plan.codec));
  TQC_TRY(apply_prod(flags, plan.codec));
  TQC_TRY(apply_mixed(flags, plan));
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

bool is_of_codec(const CLI::Option* option) {
  const std::string& group = option->get_group();
  return group == "Codec" || group == "Keys alone" || group == "Values alone";
}

// It says all of it, so it goes with none of the flags that are there.
void add_quality_flag(CLI::App& app, CodecFlags& flags) {
  std::vector<std::string> words;
  for (const std::string_view word : cache::quality_words()) words.emplace_back(word);
  CLI::Option* const quality =
      app.add_option("--quality", flags.quality,
                     "high (5 bits for keys, 6 for values), balanced (4 bits) or small (3 bits)")
          ->check(CLI::IsMember(words).description(""));
  for (CLI::Option* option : app.get_options(is_of_codec)) quality->excludes(option);
  quality->type_name("WORD")->group("Codec");
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

void add_codec_flags(CLI::App& app, CodecFlags& flags) {
  std::vector<std::string> presets;
  for (const std::string_view name : cache::preset_names()) presets.emplace_back(name);
  app.add_option("--preset", flags.preset, fmt::format("{}", fmt::join(presets, ", ")))
      ->type_name("NAME")
      ->check(CLI::IsMember(presets).description(""))
      ->group("Codec")
      ->capture_default_str();
  SideFlagAdder(app, "").add_all(flags.both);
  app.add_option("--boundary-layers", flags.boundary_layers,
                 "The first and last N layers get BITS bits, 8 unless told otherwise")
      ->type_name("N[:BITS]")
      ->group("Codec");
  app.add_option("--windows", flags.windows,
                 "Sliding windows: keep as they are; turbo: packed, too; turbo:center: their keys "
                 "centered as well, for models with one RoPE (not Gemma 3)")
      ->type_name("WORD")
      ->check(CLI::IsMember(words_of(cache::kWindowWords)).description(""))
      ->group("Codec")
      ->capture_default_str();
  SideFlagAdder(app, "key-").add_all(flags.keys);
  SideFlagAdder(app, "value-").add_all(flags.values);
  add_quality_flag(app, flags);
  CLI::Option* const all = app.add_option("--config", flags.configuration,
                                          "All of this in one word, as eval has it: "
                                          "k=mse:4,v=mse:3,boundary=2:8,sink=4");
  for (CLI::Option* option : app.get_options(is_of_codec)) all->excludes(option);
  all->type_name("TEXT")->group("Codec");
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
  TQC_TRY_ASSIGN(cache::ConvertOptions options, cache::preset(flags.preset));
  TQC_TRY(apply(SideChoices(flags.both, flags.keys, "key-"), options.keys));
  TQC_TRY(apply(SideChoices(flags.both, flags.values, "value-"), options.values));
  TQC_TRY_ASSIGN(options.boundary, parse_boundary(flags.boundary_layers));
  options.windows = value_of(cache::kWindowWords, flags.windows);
  return options;
}

}  // namespace tqcache::cli
