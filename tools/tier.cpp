#include "tier.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <string_view>

#include "outcome.h"

namespace tqcache::cli {
namespace {

const std::map<std::string, Tier> kTiers = {
    {"turbo", Tier::kTurbo}, {"lossless", Tier::kLossless}, {"archive", Tier::kArchive}};

constexpr double kDefaultArchiveBits = 3.0;

// On the bundled model four dense tokens take off 3% of the divergence of an archive. They cost 64
// bits a channel, in a cache of thousands of tokens.
constexpr std::int64_t kArchiveSinks = 4;

// What may be said of the sides of an archive; all else follows from its size.
constexpr std::array<std::string_view, 7> kOfArchives = {
    "--bits",        "--center",          "--key-center",       "--value-center",
    "--sink-tokens", "--key-sink-tokens", "--value-sink-tokens"};

Result<void> make_lossless(const std::vector<const CLI::Option*>& of_codec,
                           cache::ConvertOptions& options, CompressionFlags& compression) {
  if (const std::string flag = first_given(of_codec); !flag.empty()) {
    return usage_error(
        fmt::format("{} does not go with --tier lossless, which packs nothing", flag));
  }
  options.keep_all = true;
  if (!compression.is_given) compression.method = "planes";
  return {};
}

// Sides that are packed already are kept unless other bits are asked for.
Result<void> make_archive(const TierFlags& flags, const std::vector<const CLI::Option*>& of_codec,
                          cache::ConvertOptions& options, const CompressionFlags& compression) {
  bool has_bits = false;
  const auto is_given = [&](std::string_view flag) {
    return std::ranges::any_of(of_codec, [&](const CLI::Option* option) {
      return option->count() > 0 && option->get_name() == flag;
    });
  };
  for (const CLI::Option* option : of_codec) {
    if (option->count() == 0) continue;
    const std::string name = option->get_name();
    has_bits = has_bits || name == "--bits";
    if (std::ranges::find(kOfArchives, name) != kOfArchives.end()) continue;
    return usage_error(fmt::format("{} does not go with --tier archive", name));
  }
  if (has_bits && flags.target_mse) {
    return usage_error("--bits and --target-mse both say how large the archive shall be");
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
    plan->keep_packed = !has_bits && !flags.target_mse;
  }
  return {};
}

}  // namespace

void add_tier_flag(CLI::App& app, TierFlags& flags) {
  app.add_option_function<std::string>(
         "--tier", [&flags](const std::string& word) { flags.tier = kTiers.at(word); },
         "turbo: packed, and used as it is; archive: packed for disk, in as many bits as --bits "
         "says, also 2.4; lossless: every value stays as it is, bit for bit, and only its bytes "
         "are compressed (--compress planes)")
      ->type_name("WORD")
      ->check(CLI::IsMember(kTiers).description(""))
      ->default_str("turbo");
  app.add_option("--target-mse", flags.target_mse,
                 "--tier archive: the error of a vector, squared, to its length, squared")
      ->type_name("E");
}

std::optional<format::ArchiveTarget> archive_target(const TierFlags& flags,
                                                    const CodecFlags& codec) {
  if (flags.tier != Tier::kArchive) return std::nullopt;
  if (flags.target_mse) return format::ArchiveTarget{{}, flags.target_mse};
  return format::ArchiveTarget{codec.both.exact_bits.value_or(kDefaultArchiveBits), {}};
}

Result<void> apply_tier(const TierFlags& flags, const std::vector<const CLI::Option*>& of_codec,
                        cache::ConvertOptions& options, CompressionFlags& compression) {
  if (flags.target_mse && flags.tier != Tier::kArchive) {
    return usage_error("--target-mse is for --tier archive");
  }
  if (flags.tier == Tier::kLossless) return make_lossless(of_codec, options, compression);
  if (flags.tier == Tier::kArchive) return make_archive(flags, of_codec, options, compression);
  return {};
}

std::string first_given(const std::vector<const CLI::Option*>& options) {
  for (const CLI::Option* option : options) {
    if (option->count() > 0) return option->get_name();
  }
  return {};
}

}  // namespace tqcache::cli
