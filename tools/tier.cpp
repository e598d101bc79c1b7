#include "tier.h"

#include <fmt/format.h>

#include <map>

#include "outcome.h"

namespace tqcache::cli {
namespace {

const std::map<std::string, Tier> kTiers = {{"turbo", Tier::kTurbo}, {"lossless", Tier::kLossless}};

}  // namespace

void add_tier_flag(CLI::App& app, TierFlags& flags) {
  app.add_option_function<std::string>(
         "--tier", [&flags](const std::string& word) { flags.tier = kTiers.at(word); },
         "turbo: packed, and used as it is; lossless: every value stays as it is, bit for bit, "
         "and only its bytes are compressed (--compress planes)")
      ->type_name("WORD")
      ->check(CLI::IsMember(kTiers).description(""))
      ->default_str("turbo");
}

Result<void> apply_tier(const TierFlags& flags, const std::vector<const CLI::Option*>& of_codec,
                        cache::ConvertOptions& options, CompressionFlags& compression) {
  if (flags.tier == Tier::kTurbo) return {};
  if (const std::string flag = first_given(of_codec); !flag.empty()) {
    return usage_error(
        fmt::format("{} does not go with --tier lossless, which packs nothing", flag));
  }
  options.keys.dense = options.values.dense = true;
  if (!compression.is_given) compression.method = "planes";
  return {};
}

std::string first_given(const std::vector<const CLI::Option*>& options) {
  for (const CLI::Option* option : options) {
    if (option->count() > 0) return option->get_name();
  }
  return {};
}

}  // namespace tqcache::cli
