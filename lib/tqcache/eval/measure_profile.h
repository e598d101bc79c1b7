#pragma once
// eval/measure_profile.h: a model and a sample of text to a profile.
//
// The model reads some windows of the sample, spread over it, once with a dense cache and once for
// each side of each layer with that side alone coded; and then once for each point of the curve
// with all sides coded, their steps being weighted by what was found.
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
  std::int64_t max_windows = 4;  // spread over the text; 0: all of it
  unsigned n_threads = 0;        // 0: all processors
};

// The tokens of so many windows of `ids` at equal distances, one behind the other, and one token
// more, which no window is measured without. All windows there are if there are no more.
// Requires: a window of 1 or more.
std::vector<std::int32_t> spread_windows(std::span<const std::int32_t> ids, std::int64_t window,
                                         std::int64_t max_windows);

// What is measured first: [2 n_layers], keys before values, each with the side of one layer coded
// and all else dense.
std::vector<cache::Configuration> sensitivity_configurations(std::int64_t n_layers);

// What is measured then: all sides coded with weighted steps, from the finest to the widest.
std::vector<cache::Configuration> curve_configurations(const cache::StepWeights& weights);

// Progress: tokens read, in all runs together.
// Errors:   those of measure_predictions(); kCorrupt when the divergence does not grow with the
//           step, as it does in models.
Result<Profile> measure_profile(const model::Model& model, std::span<const std::int32_t> ids,
                                const ProfileOptions& options, const Progress& progress = {});

}  // namespace tqcache::eval
