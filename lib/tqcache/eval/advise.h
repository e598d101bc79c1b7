#pragma once
// eval/advise.h: search for the smallest configuration that is good enough for a model, or the best
// one that fits into a given size.
//
// The search runs over a ladder of sizes. A rung is one size with a few ways to divide its bits
// between keys and values; the best of them counts, because models differ in which need more. More
// bits are assumed to be better, so few rungs have to be measured: three per round, which share
// their dense run, between the largest rung that was not good enough and the smallest that was.
//
// Spec: docs/explain/quality.md, "advise".

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "tqcache/base/result.h"
#include "tqcache/cache/configuration.h"
#include "tqcache/eval/predictions.h"
#include "tqcache/eval/report.h"

namespace tqcache::eval {

using Rung = std::vector<cache::Configuration>;  // of one size

// From 2 bits for keys and values to 8, smallest first.
std::vector<Rung> advice_ladder();

// Calls measure_predictions(); tests replace it.
using MeasureConfigurations =
    std::function<Result<PredictionCosts>(std::span<const cache::Configuration>)>;

struct Advice {
  PredictionCosts costs;              // everything measured, by size, the best of each size first
  std::optional<std::size_t> choice;  // index in costs.ways; absent: none is good enough
};

// The smallest configuration with a mean KL divergence of at most `max_kld`.
// Requires: a ladder with no empty rung.
// Errors:   those of `measure`.
Result<Advice> advise_by_divergence(std::span<const Rung> ladder, double max_kld,
                                    const MeasureConfigurations& measure);

// The best configuration of the first `n_fitting` rungs, those that fit. Measures the last of them,
// the one before it, which may be better after all, and the first that does not fit, to show what
// more room would give.
// Requires: a ladder with no empty rung, n_fitting of 1 to its size.
// Errors:   those of `measure`.
Result<Advice> advise_by_size(std::span<const Rung> ladder, std::size_t n_fitting,
                              const MeasureConfigurations& measure);

// The size of the keys and values of `n_tokens` tokens: quantized token blocks, and the incomplete
// one as f16. A file adds a few KB; its compression saves a few percent.
struct CacheBytes {
  std::int64_t n_tokens = 0;
  std::uint64_t bytes = 0;
  std::uint64_t dense_bytes = 0;  // the same in f16
};

// Errors: those of cache::convert(); the message names the configuration.
Result<CacheBytes> cache_bytes(const model::ModelConfig& config, const cache::Identity& identity,
                               const cache::Configuration& configuration, std::int64_t n_tokens);

// The report of the measurements, with the advice and the expected sizes.
// Shapes: sizes [ways][lengths].
Report advice_report(const Advice& advice, std::span<const std::vector<CacheBytes>> sizes);

}  // namespace tqcache::eval
