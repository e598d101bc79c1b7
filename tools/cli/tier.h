#pragma once
// tools/cli/tier.h: how much of a cache `tqcache convert` gives away for a smaller file.

#include <optional>
#include <string>
#include <vector>

#include "cli/codec_flags.h"
#include "cli/common_flags.h"
#include "cli/flags.h"
#include "tqcache/base/result.h"
#include "tqcache/cache/convert.h"
#include "tqcache/eval/profile.h"
#include "tqcache/format/archive_rate.h"

namespace tqcache::cli {

enum class Tier {
  kTurbo,     // packed, and used as it stands in the file
  kLossless,  // every value as it was, bit for bit; the bytes alone get fewer
  kArchive,   // packed for disk: as few bits as are asked for
};

struct TierFlags {
  Tier tier = Tier::kTurbo;
  // Of kArchive, in place of bits.
  std::optional<double> target_mse;
  std::optional<double> target_kld;
  std::string profile;  // of kArchive: a file of `tqcache profile`, or empty
};

void add_tier_flag(FlagSet& app, TierFlags& flags);

// Changes what the flags of codec and compression say to what the tier needs. `of_codec` are all
// flags that say how sides are packed.
//
// Errors: kInvalidArgument when one of them was given with a tier that packs nothing.
Result<void> apply_tier(const TierFlags& flags, const std::vector<const Flag*>& of_codec,
                        cache::ConvertOptions& options, CompressionFlags& compression);

// What an archive shall come to, and the profile that says how layers share it.
struct Archive {
  format::ArchiveTarget target;
  std::optional<eval::Profile> profile = {};
};

// Nothing if no archive is to be made. Without flags: 3 bits.
// Errors: kInvalidArgument (flags that do not go together, a divergence that the profile does not
//         know), those of the profile's file.
Result<std::optional<Archive>> wanted_archive(const TierFlags& flags, const CodecFlags& codec);

// The first of them that was given, or empty.
std::string first_given(const std::vector<const Flag*>& options);

}  // namespace tqcache::cli
