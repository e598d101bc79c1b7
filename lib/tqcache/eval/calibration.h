#pragma once
// eval/calibration.h: profiles of version 2, made from text by the reference decoder.
//
// Spec: docs/reference/profile.md, "Version 2".

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "tqcache/error.h"
#include "tqcache/model.h"
#include "tqcache/predict.h"
#include "tqcache/progress.h"

namespace tqcache::eval {

// Models whose embeddings are wider have no features.
inline constexpr std::int64_t kMaxFeatureWidth = 8192;

struct CalibrationOptions {
  std::int64_t depth = 2;         // earlier layers that a layer is predicted from
  std::int64_t n_features = 128;  // of a token; fewer if the model is narrower
  std::int64_t n_tokens = 65'536;
  std::int64_t window = 2048;
  std::int64_t n_sensitivity = 512;  // tokens by which sensitivities are measured
  unsigned n_threads = 0;
  MemoryBudget memory = {};
  // What was measured so far, if the calibration is interrupted, and every two minutes. A
  // calibration with the same model, texts and options goes on from there, and gives the same
  // profile. Empty: none. The caller removes it in the end.
  std::filesystem::path checkpoint = {};
};

// Shapes:   texts: the ids of each text, which contribute equally.
// Progress: tokens read, over all runs.
// Errors:   kUnsupported (layers without full attention; more than predict::kMaxChannels),
//           kTooLarge (its sums need more memory than the budget has, or its file would be larger
//           than predict::kMaxProfileBytes), kInvalidArgument (texts shorter than a window),
//           kInterrupted, those of the decoder and of the checkpoint (kMismatch: of another
//           calibration).
Result<predict::Profile> calibrate(const model::Model& model,
                                   std::span<const std::vector<std::int32_t>> texts,
                                   const CalibrationOptions& options, const Progress& progress);

}  // namespace tqcache::eval
