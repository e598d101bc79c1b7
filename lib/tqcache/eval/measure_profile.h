#pragma once
// eval/measure_profile.h: measurement of a model's profile on a sample of text.
//
// The model reads some windows, spread over the sample: once with a dense cache; once for K and
// once for V of each layer, with only that tensor quantized; and then once for each point of the
// curve, with all tensors quantized and their quantization steps weighted by the measured
// sensitivities.
//
// Spec: docs/reference/profile.md.

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "tqcache/base/progress.h"
#include "tqcache/base/result.h"
#include "tqcache/cache/configuration.h"
#include "tqcache/eval/predictions.h"
#include "tqcache/eval/profile.h"
#include "tqcache/model/loading/model.h"

namespace tqcache::eval {

struct ProfileOptions {
  std::int64_t window = 2048;    // tokens
  std::int64_t max_windows = 4;  // spread over the text; 0: the whole text
  unsigned n_threads = 0;        // 0: all processors
};

// The tokens of `max_windows` windows of `ids` at equal distances, joined, and the last token,
// which the last window predicts. All of `ids` if there are no more windows. Requires: a window of
// 1 or more.
std::vector<std::int32_t> spread_windows(std::span<const std::int32_t> ids, std::int64_t window,
                                         std::int64_t max_windows);

// The first measurements: [2 n_layers], keys before values. Each quantizes K or V of one layer and
// leaves everything else dense.
std::vector<cache::Configuration> sensitivity_configurations(std::int64_t n_layers);

// The second measurements: everything quantized with weighted steps, from the finest to the widest.
std::vector<cache::Configuration> curve_configurations(const cache::StepWeights& weights);

// Progress: tokens read, over all runs.
// Errors:   those of measure_predictions(); kCorrupt if the divergence does not grow with the
//           quantization step.
Result<Profile> measure_profile(const model::Model& model, std::span<const std::int32_t> ids,
                                const ProfileOptions& options, const Progress& progress = {});

}  // namespace tqcache::eval
