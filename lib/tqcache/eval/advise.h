#pragma once
// eval/advise.h: which configuration is good enough for a model, or the best that fits?
//
// A search over a ladder of sizes. A rung is one size: some ways to share its bits among keys and
// values, of which the best one counts, because models differ in what they need more. More bits are
// taken to be better, so few rungs are measured: three a round, which share their dense run, each
// round between the largest rung that was not good enough and the smallest that was.
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

// How measure_predictions() is asked; a test may give numbers of its own.
using MeasureConfigurations =
    std::function<Result<PredictionCosts>(std::span<const cache::Configuration>)>;

struct Advice {
  PredictionCosts costs;              // all that was measured; ways by size, the best of one first
  std::optional<std::size_t> choice;  // of costs.ways; absent: nothing will do
};

// The smallest way with a mean KL divergence of at most `max_kld`.
// Requires: a ladder with no empty rung.
// Errors:   those of `measure`.
Result<Advice> advise_by_divergence(std::span<const Rung> ladder, double max_kld,
                                    const MeasureConfigurations& measure);

// The best way of the first `n_fitting` rungs, which are those that fit: the last of them is
// measured, the one before it, which may be better after all, and the first that does not fit, to
// show what more room would give.
// Requires: a ladder with no empty rung, n_fitting of 1 to its size.
// Errors:   those of `measure`.
Result<Advice> advise_by_size(std::span<const Rung> ladder, std::size_t n_fitting,
                              const MeasureConfigurations& measure);

// What keys and values take once so many tokens are in: packed token blocks, and the incomplete one
// as f16. A file adds a few KB, and its compression takes some percent off.
struct CacheBytes {
  std::int64_t n_tokens = 0;
  std::uint64_t bytes = 0;
  std::uint64_t dense_bytes = 0;  // all of it as f16
};

// Errors: those of cache::convert(); the message names the configuration.
Result<CacheBytes> cache_bytes(const model::ModelConfig& config, const cache::Identity& identity,
                               const cache::Configuration& configuration, std::int64_t n_tokens);

// Sizes of every way: [ways][lengths].
// What was measured, with the choice and the sizes before it.
Report advice_report(const Advice& advice, std::span<const std::vector<CacheBytes>> sizes);

}  // namespace tqcache::eval
