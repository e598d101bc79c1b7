#include "cli/tier.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <string_view>

#include "tqcache/error.h"
#include "tqcache/file.h"

namespace tqcache::cli {
namespace {

const std::map<std::string, Tier> kTiers = {
    {"turbo", Tier::kTurbo}, {"lossless", Tier::kLossless}, {"archive", Tier::kArchive}};

constexpr double kDefaultArchiveBits = 3.0;
constexpr double kDefaultPredictedBits = 1.5;

// On the bundled model four dense tokens reduce the divergence of an archive by 3%. They cost 64
// bits per channel, in a cache of thousands of tokens.
constexpr std::int64_t kArchiveSinks = 4;

// Flags that apply to archives; everything else follows from the target.
constexpr std::array<std::string_view, 7> kOfArchives = {
    "--bits",        "--center",          "--key-center",       "--value-center",
    "--sink-tokens", "--key-sink-tokens", "--value-sink-tokens"};

Result<void> make_lossless(const std::vector<const Flag*>& of_codec, cache::ConvertOptions& options,
                           CompressionFlags& compression) {
  if (const std::string flag = first_given(of_codec); !flag.empty()) {
    return usage_error(
        fmt::format("{} does not go with --tier lossless, which quantizes nothing", flag));
  }
  options.keep_all = true;
  if (!compression.is_given) compression.method = "planes";
  return {};
}

// K or V that is already quantized is kept unless other bits are asked for.
Result<void> make_archive(const TierFlags& flags, const std::vector<const Flag*>& of_codec,
                          cache::ConvertOptions& options, const CompressionFlags& compression) {
  bool has_bits = false;
  const auto is_given = [&](std::string_view flag) {
    return std::ranges::any_of(
        of_codec, [&](const Flag* option) { return option->is_given() && option->name() == flag; });
  };
  for (const Flag* option : of_codec) {
    if (!option->is_given()) continue;
    const std::string name = option->name();
    has_bits = has_bits || name == "--bits";
    if (std::ranges::find(kOfArchives, name) != kOfArchives.end()) continue;
    return usage_error(fmt::format("{} does not go with --tier archive", name));
  }
  if (int{has_bits} + int{flags.target_mse.has_value()} + int{flags.target_kld.has_value()} > 1) {
    return usage_error("--bits, --target-mse and --target-kld exclude each other");
  }
  if (compression.is_given && compression.method == "none") {
    return usage_error("--compress none does not go with --tier archive");
  }
  for (cache::SidePlan* plan : {&options.keys, &options.values}) {
    plan->codec = {};
    plan->codec.mode = codec::Mode::kTrellis;
    const bool is_key = plan == &options.keys;
    const bool has_sinks =
        is_given("--sink-tokens") || is_given(is_key ? "--key-sink-tokens" : "--value-sink-tokens");
    if (!has_sinks) plan->n_sinks = kArchiveSinks;
    plan->keep_packed = !has_bits && !flags.target_mse && !flags.target_kld;
  }
  return {};
}

Result<void> check_archive_flags(const TierFlags& flags) {
  if (flags.target_kld && flags.profile.empty()) {
    return usage_error("--target-kld needs a --profile, made by tqcache profile");
  }
  if (flags.tier == Tier::kArchive) return {};
  if (flags.target_mse) return usage_error("--target-mse needs --tier archive");
  if (flags.target_kld) return usage_error("--target-kld needs --tier archive");
  if (!flags.profile.empty() && flags.tier == Tier::kLossless) {
    return usage_error("--profile does not go with --tier lossless, which quantizes nothing");
  }
  return {};
}

// A profile of either version, or a folder that is read when the cache's model is known.
Result<void> read_profile(const std::string& path, Archive& archive) {
  if (std::filesystem::is_directory(path)) {
    archive.profile_folder = path;
    return {};
  }
  TQC_TRY_ASSIGN(const std::unique_ptr<ByteSource> source, open_file(path));
  std::array<std::byte, 20> start{};
  const std::size_t n_read = std::min<std::size_t>(start.size(), source->size());
  TQC_TRY(source->read_at(0, std::span(start).first(n_read)));
  if (!predict::looks_like_profile(start)) {
    TQC_TRY_ASSIGN(const Bytes bytes, read_file(path, eval::kMaxProfileBytes));
    TQC_TRY_ASSIGN(archive.profile, eval::parse_profile(bytes));
    if (archive.profile->is_measured()) return {};
    return invalid(
        "a profile of factors of keys, for tier turbo; archives need one that tqcache "
        "profile made without --quick and --from");
  }
  TQC_TRY_ASSIGN(archive.predictor, predict::read_profile(path));
  predict::add_profile(archive.predictor);
  return {};
}

}  // namespace

void add_tier_flag(FlagSet& app, TierFlags& flags) {
  app.add_text(
         "--tier", [&flags](const std::string& word) { flags.tier = kTiers.at(word); },
         "Goal of the conversion: turbo (quantized, used as it is in memory), archive (smallest on "
         "disk, in --bits bits per value, such as 2.4) or lossless (values unchanged, compressed "
         "with --compress planes)")
      ->type_name("WORD")
      ->one_of({"archive", "lossless", "turbo"})
      ->show_default("turbo");
  app.add("--target-mse", flags.target_mse,
          "With --tier archive: mean squared error of a vector, relative to its squared length")
      ->type_name("E");
  app.add("--target-kld", flags.target_kld,
          "With --tier archive and --profile: mean KL divergence to expect, in nats")
      ->type_name("NATS");
  app.add(
         "--profile", flags.profile,
         "File of tqcache profile: its factors of keys lower the error of tier turbo. With --tier "
         "archive it tells how much each layer tolerates; version 2 predicts layers. A folder: the "
         "profile in it that fits the model of the cache")
      ->type_name("FILE")
      ->file();
}

Result<std::optional<Archive>> wanted_archive(const TierFlags& flags, const CodecFlags& codec) {
  std::optional<Archive> archive;
  TQC_TRY(check_archive_flags(flags));
  if (flags.tier != Tier::kArchive) return archive;
  archive.emplace();
  if (!flags.profile.empty()) {
    TQC_TRY(in_file(flags.profile, read_profile(flags.profile, *archive)));
  }
  if (archive->may_predict()) {
    if (flags.target_mse) {
      return usage_error("a profile of version 2 reaches --bits or --target-kld, no --target-mse");
    }
    archive->predicted_kld = flags.target_kld;
    if (flags.target_kld) {
      if (!(*flags.target_kld > 0)) return usage_error("--target-kld: not above 0");
      archive->target.bits = kDefaultArchiveBits;
      return archive;
    }
    archive->predicted_bits = codec.both.exact_bits.value_or(kDefaultPredictedBits);
    if (!(archive->predicted_bits >= 0.1 && archive->predicted_bits <= 8)) {
      return usage_error("--bits: not between 0.1 and 8");
    }
    // For what cannot be predicted.
    archive->target.bits = std::max(archive->predicted_bits, format::kMinArchiveBits);
    return archive;
  }
  if (flags.target_kld) {
    TQC_TRY_ASSIGN(
        archive->target.step,
        in_file(flags.profile, eval::step_for_divergence(*archive->profile, *flags.target_kld)));
  } else if (flags.target_mse) {
    archive->target.mse = flags.target_mse;
  } else {
    archive->target.bits = codec.both.exact_bits.value_or(kDefaultArchiveBits);
  }
  return archive;
}

Result<void> apply_tier(const TierFlags& flags, const std::vector<const Flag*>& of_codec,
                        cache::ConvertOptions& options, CompressionFlags& compression) {
  if (flags.tier == Tier::kLossless) return make_lossless(of_codec, options, compression);
  if (flags.tier == Tier::kArchive) return make_archive(flags, of_codec, options, compression);
  return {};
}

std::string first_given(const std::vector<const Flag*>& options) {
  for (const Flag* option : options) {
    if (option->is_given()) return option->name();
  }
  return {};
}

}  // namespace tqcache::cli
