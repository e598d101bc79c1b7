#pragma once
// tools/cli/tier.h: The goal of `tqcache convert`: turbo, archive or lossless.

#include <optional>
#include <string>
#include <vector>

#include "cli/codec_flags.h"
#include "cli/common_flags.h"
#include "cli/flags.h"
#include "tqcache/base/result.h"
#include "tqcache/cache/quantize.h"
#include "tqcache/eval/profile.h"
#include "tqcache/format/archive_rate.h"

namespace tqcache::cli {

enum class Tier {
  kTurbo,     // quantized, and used in this form in memory
  kLossless,  // values unchanged; only the bytes are compressed
  kArchive,   // quantized for disk, to the size or error that is asked for
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

// The target of an archive, and the profile that distributes its bits among layers.
struct Archive {
  format::ArchiveTarget target;
  std::optional<eval::Profile> profile = {};
};

// Absent if no archive is to be made. The default is 3 bits.
// Errors: kInvalidArgument (flags that do not go together, a divergence that the profile does not
//         know), those of the profile's file.
Result<std::optional<Archive>> wanted_archive(const TierFlags& flags, const CodecFlags& codec);

// The name of the first flag that was given, or empty.
std::string first_given(const std::vector<const Flag*>& options);

}  // namespace tqcache::cli
