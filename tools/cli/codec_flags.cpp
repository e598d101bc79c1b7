#include "cli/codec_flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/common_flags.h"
#include "cli/terminal.h"
#include "tqcache/error.h"
#include "tqcache/file.h"
#include "tqcache/quantize.h"

namespace tqcache::cli {
namespace {

constexpr int kDenseBits = 16;

// A whole number of bits, 1 to 8 or 16.
Result<int> parse_bits(std::string_view text) {
  int bits = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), bits);
  const bool is_number = error == std::errc{} && end == text.data() + text.size();
  if (is_number && (bits == kDenseBits || (bits >= codec::kMinBits && bits <= codec::kMaxBits))) {
    return bits;
  }
  return usage_error(fmt::format(
      "--bits: {} is none of 1 to 8 and 16 (dense). Two numbers are for keys and values: 4,3. "
      "Fractions need --config archive",
      text));
}

// Gives keys or values this number of bits.
Result<void> set_bits(int bits, cache::TensorPlan& plan) {
  if (bits == kDenseBits) {
    plan.dense = true;
    return {};
  }
  if (plan.dense) {
    TQC_TRY_ASSIGN(const cache::ConvertOptions usual, cache::preset(cache::kDefaultPreset));
    plan = usual.keys;
  }
  codec::CodecSpec& spec = plan.codec;
  if (spec.mode == codec::Mode::kMixed || spec.mode == codec::Mode::kTrellis) {
    return usage_error(
        fmt::format("--bits does not go with mode {} of --config, which has bits of its own",
                    codec::mode_word(spec.mode)));
  }
  if (spec.mode == codec::Mode::kProd && bits < 2) {
    return usage_error("--bits 1 does not go with mode prod: its residual needs one bit");
  }
  // Below 4 bits scales keep lengths, unless --config says otherwise.
  const bool is_usual = spec.scale == cache::usual_scale(spec.bits);
  spec.bits = bits;
  if (spec.mode == codec::Mode::kMse && is_usual) spec.scale = cache::usual_scale(bits);
  return {};
}

}  // namespace

void add_bits_flag(FlagSet& app, CodecFlags& flags, const std::string& group) {
  app.add("-b,--bits", flags.bits,
          "Bits per value, 1 to 8; 16: dense. K,V: of keys and values, such as 4,3")
      ->type_name("B")
      ->group(group);
}

void add_config_flag(FlagSet& app, CodecFlags& flags, const std::string& group) {
  app.add("--config", flags.configuration,
          "Goal or settings: high, balanced, small, lossless, archive, turbo4, k8v4, "
          "k=mse:4,v=mse:3,sink=0, ...")
      ->type_name("TEXT")
      ->group(group);
}

void add_codec_flags(FlagSet& app, CodecFlags& flags) {
  const std::string group = "Quantization of a new cache";
  add_bits_flag(app, flags, group);
  add_config_flag(app, flags, group);
  app.add("--profile", flags.profile,
          "Use the factors of keys in this file of tqcache profile; without other flags with the "
          "default of convert")
      ->type_name("FILE")
      ->file()
      ->group(group);
}

Result<cache::Configuration> configuration_of(const CodecFlags& flags) {
  auto parsed =
      cache::parse_configuration(flags.configuration.value_or(std::string(cache::kDefaultPreset)));
  if (!parsed) return in_context("--config", std::move(parsed).error());
  cache::Configuration configuration = std::move(parsed).value();
  cache::ConvertOptions& options = configuration.options;
  if (!flags.bits) {
    // Who asks for nothing does not insist on heads that are too small for any codes.
    options.keys.keep_small_heads = options.values.keep_small_heads = !flags.configuration;
    return configuration;
  }
  if (configuration.is_archive) return configuration;  // the bits are those of the whole file
  if (options.keep_all) {
    return usage_error("--bits does not go with --config lossless, which quantizes nothing");
  }
  const std::string_view text = *flags.bits;
  const std::size_t comma = text.find(',');
  TQC_TRY_ASSIGN(const int key_bits, parse_bits(text.substr(0, comma)));
  TQC_TRY_ASSIGN(const int value_bits,
                 parse_bits(comma == std::string_view::npos ? text : text.substr(comma + 1)));
  // One number is for what the configuration quantizes: with kfv4 keys stay dense.
  const bool is_for_dense = comma != std::string_view::npos;
  if (!options.keys.dense || is_for_dense) TQC_TRY(set_bits(key_bits, options.keys));
  if (!options.values.dense || is_for_dense) TQC_TRY(set_bits(value_bits, options.values));
  return configuration;
}

bool asks_for(const CodecFlags& flags, char tensor) {
  if (flags.bits) return true;
  if (!flags.configuration) return false;
  const std::string& text = *flags.configuration;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view item = std::string_view(text).substr(begin, end - begin);
    const bool is_of_one = item.size() > 1 && (item[1] == '=' || item[1] == '.');
    if (!is_of_one || item[0] == tensor) return true;
    begin = end + 1;
  }
  return false;
}

// Rejects K or V that would be quantized again.
Result<void> check_kept_codes(const cache::CacheDesc& cache, const cache::ConvertOptions& options) {
  for (std::size_t i = 0; i < cache.layers.size(); ++i) {
    const auto* const attention = std::get_if<cache::AttentionDesc>(&cache.layers[i]);
    if (attention == nullptr) continue;
    const bool is_of_keys = attention->k.quant && !options.keys.keep_packed;
    if (!is_of_keys && (!attention->v.quant || options.values.keep_packed)) continue;
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("layer {} {}: is packed already, in codes that are kept without "
                             "--bits and --config; --bits 16 decodes them",
                             i, is_of_keys ? "k" : "v")};
  }
  return {};
}

namespace {

bool begins_as_profile(const std::string& path) {
  constexpr std::string_view kWord = "tqcache-profile ";
  std::array<std::byte, kWord.size()> begin;
  const auto file = open_file(path);
  return file && (*file)->size() >= begin.size() && (*file)->read_at(0, begin) &&
         std::ranges::equal(begin, std::as_bytes(std::span(kWord)));
}

// The first profile in the folder, by name, that belongs to the model of the cache; empty: none.
Result<std::string> profile_in(const Console& console, const std::string& folder,
                               const cache::CacheDesc& cache) {
  std::vector<std::string> names;
  std::error_code error;
  std::filesystem::directory_iterator each(folder, error);
  for (; !error && each != std::filesystem::directory_iterator(); each.increment(error)) {
    names.push_back(each->path().string());
  }
  if (error) return Error{ErrorCode::kIo, error.message(), folder};
  std::ranges::sort(names);
  std::string chosen;
  for (const std::string& name : names) {
    // Other files, and profiles that have no factors, are passed over. Damaged ones are not: the
    // file would have other bytes than with a whole one.
    const auto found = cache::read_calibration(name, console.access.memory);
    if (!found && found.error().code == ErrorCode::kCorrupt && begins_as_profile(name)) {
      return in_file(name, Error{found.error()});
    }
    const bool fits = found && found->weights_fingerprint != Sha256{} &&
                      found->weights_fingerprint == cache.identity.weights_fingerprint;
    if (fits && chosen.empty()) chosen = name;
  }
  return chosen;
}

}  // namespace

Result<void> add_calibration(const Console& console, const std::string& profile,
                             const cache::CacheDesc& cache, cache::ConvertOptions& options) {
  if (options.calibration != nullptr) {
    return usage_error("--profile and profile= in --config exclude each other");
  }
  std::string path = profile;
  std::error_code ignored;
  if (std::filesystem::is_directory(profile, ignored)) {
    TQC_TRY_ASSIGN(path, profile_in(console, profile, cache));
    if (path.empty()) {
      note(console, fmt::format("{}: no profile with factors of keys belongs to the model of the "
                                "cache; none is used",
                                profile));
      return {};
    }
  }
  TQC_TRY_ASSIGN(cache::Calibration calibration,
                 in_file(path, cache::read_calibration(path, console.access.memory)));
  options.calibration = std::make_shared<const cache::Calibration>(std::move(calibration));
  options.calibration_path = path;
  return {};
}

Result<std::optional<cache::ConvertOptions>> options_in_memory(const Console& console,
                                                               const CodecFlags& flags) {
  if (!flags.given()) return std::optional<cache::ConvertOptions>();
  TQC_TRY_ASSIGN(cache::Configuration configuration, configuration_of(flags));
  if (configuration.is_archive) {
    return usage_error(
        "--config archive: a model cannot extend an archive; turbo2 is the smallest");
  }
  if (configuration.options.keep_all) {
    return usage_error("--config lossless: a new cache is dense without --config");
  }
  cache::ConvertOptions& options = configuration.options;
  if (!flags.profile.empty()) {
    if (options.calibration) return usage_error("--profile and profile= exclude each other");
    TQC_TRY_ASSIGN(
        cache::Calibration calibration,
        in_file(flags.profile, cache::read_calibration(flags.profile, console.access.memory)));
    options.calibration = std::make_shared<const cache::Calibration>(std::move(calibration));
    options.calibration_path = flags.profile;
  }
  return std::optional(std::move(options));
}

}  // namespace tqcache::cli
