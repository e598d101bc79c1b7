#pragma once
// tools/cli/archive_goal.h: the size or divergence that `tqcache convert --config archive` aims at,
// and the quantization step that reaches it.

#include <memory>
#include <optional>
#include <string>

#include "cli/codec_flags.h"
#include "cli/console.h"
#include "cli/flags.h"
#include "tqcache/error.h"
#include "tqcache/eval.h"
#include "tqcache/predict.h"
#include "tqcache/quantize.h"
#include "tqcache/reader.h"
#include "tqcache/tqkv.h"

namespace tqcache::cli {

struct ArchiveFlags {
  std::optional<double> target_mse;  // instead of bits
  std::optional<double> target_kld;
};

void add_archive_flags(FlagSet& app, ArchiveFlags& flags);

// The goal, and the profile that distributes the bits among layers or predicts layers.
struct ArchiveGoal {
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

// The default is 3 bits, and 1.5 with a profile of version 2. `options` are those of the
// configuration; what they say of K and V that are quantized already is set.
// Errors: kInvalidArgument (flags that exclude each other, a divergence outside the profile,
//         settings that follow from the goal), those of the profile's file.
Result<ArchiveGoal> archive_goal(const Console& console, const CodecFlags& codec,
                                 const ArchiveFlags& flags, cache::ConvertOptions& options);

// How an archive is quantized.
struct ArchivePlan {
  cache::ConvertOptions options;
  std::optional<double> expected_kld;  // if a profile tells it
  // Of a predicted archive; null: it is not predicted.
  std::shared_ptr<const predict::Predictor> predictor = {};
  std::shared_ptr<const cache::CacheReader> predicted = {};  // the source, as it is written
  float predicted_step = 0;

  std::string text() const;  // the configuration, or "predicted:0.25"
};

// Chooses the step, of several profiles in a folder the one with the least divergence to expect, or
// the fewest bits. `options`: mode trellis; sink tokens and centering are kept.
// Requires: `source` outlives the plan.
// Errors: those of format::choose_step() and format::choose_predicted_step(); kMismatch (a profile
//         of another model).
Result<ArchivePlan> plan_archive(const Console& console, const cache::CacheReader& source,
                                 const ArchiveGoal& goal, const cache::ConvertOptions& options);

}  // namespace tqcache::cli
