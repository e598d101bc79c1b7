#pragma once
// tools/cli/tier.h: the goal of `tqcache convert`: turbo, archive or lossless.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/codec_flags.h"
#include "cli/common_flags.h"
#include "cli/flags.h"
#include "tqcache/error.h"
#include "tqcache/eval.h"
#include "tqcache/predict.h"
#include "tqcache/quantize.h"
#include "tqcache/tqkv.h"

namespace tqcache::cli {

enum class Tier {
  kTurbo,     // quantized, and used in this layout in memory
  kLossless,  // values unchanged; only the bytes are compressed
  kArchive,   // quantized for disk, to the requested size or error
};

struct TierFlags {
  Tier tier = Tier::kTurbo;
  // Of kArchive, instead of bits.
  std::optional<double> target_mse;
  std::optional<double> target_kld;
  std::string profile;  // of kArchive: a file of `tqcache profile`, a folder of them, or empty
};

void add_tier_flag(FlagSet& app, TierFlags& flags);

// Adjusts the settings from the codec and compression flags to the tier. `of_codec` are all flags
// that say how K and V are quantized.
//
// Errors: kInvalidArgument if one of them was given with a tier without quantization.
Result<void> apply_tier(const TierFlags& flags, const std::vector<const Flag*>& of_codec,
                        cache::ConvertOptions& options, CompressionFlags& compression);

// The target of an archive, and the profile that distributes its bits among layers.
struct Archive {
  format::ArchiveTarget target;
  std::optional<eval::Profile> profile = {};
  // With a profile of version 2, or a folder of them: either bits per value, or the divergence to
  // reach. `target` is for caches that cannot be predicted.
  std::shared_ptr<const predict::Predictor> predictor = {};
  std::string profile_folder = {};
  double predicted_bits = 0;
  std::optional<double> predicted_kld = {};

  bool may_predict() const { return predictor != nullptr || !profile_folder.empty(); }
};

// Absent if no archive is made. The default is 3 bits.
// Errors: kInvalidArgument (flags that exclude each other, a divergence outside the profile), those
//         of the profile's file.
Result<std::optional<Archive>> wanted_archive(const TierFlags& flags, const CodecFlags& codec);

// The name of the first flag that was given, or empty.
std::string first_given(const std::vector<const Flag*>& options);

}  // namespace tqcache::cli
