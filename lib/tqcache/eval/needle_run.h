#pragma once
// eval/needle_run.h: how often a model finds a needle in a cache, for each way to keep it.
//
// What a user gets: the document is read into a dense cache, the cache is converted, and the
// question is asked of what came out. The document is read once for all configurations, which so
// answer the same questions about the same texts.

#include <cstdint>
#include <optional>
#include <vector>

#include "tqcache/base/progress.h"
#include "tqcache/base/result.h"
#include "tqcache/cache/configuration.h"
#include "tqcache/eval/answers_score.h"
#include "tqcache/eval/needle.h"
#include "tqcache/eval/report.h"
#include "tqcache/model/loading/model.h"

namespace tqcache::eval {

struct NeedleOptions {
  std::vector<std::int64_t> lengths;  // tokens of the prompt
  std::vector<double> depths;         // percent
  std::int64_t trials = 1;            // of each length and depth
  std::vector<cache::Configuration> configurations;
  std::uint64_t seed = 0;
  std::int64_t max_tokens = 32;  // of an answer
  std::optional<Needle> needle;  // absent: a code, another one each time
  unsigned n_threads = 0;
};

// Of one configuration: [lengths][depths].
using NeedleGrid = std::vector<std::vector<AnswerScore>>;

struct NeedleResult {
  std::vector<NeedleGrid> grids;  // [configurations]
};

AnswerScore total(const NeedleGrid& grid);

// Whatever depends on neither a model's arithmetic nor time: that the model's context has room for
// every length and the answer, that the haystack is long enough, and that the configurations fit
// the model.
// Errors: kInvalidArgument, kUnsupported.
Result<void> check_needles(const model::Model& model, const Haystack& haystack,
                           const Dialogue& dialogue, const NeedleOptions& options);

// Progress: tokens of documents read, of all.
// Errors:   as check_needles(); those of the decoder and of cache::convert; kInterrupted.
// Bytes:    the same options give the same result for any number of threads, on one kind of CPU.
// Memory:   the dense cache of one prompt in f32, two copies of it, and the model.
Result<NeedleResult> measure_needles(const model::Model& model, const Haystack& haystack,
                                     const Dialogue& dialogue, const NeedleOptions& options,
                                     const Progress& progress = {});

// A table of all configurations, a grid of shares found for each of them, and a table of these.
Report needle_report(const NeedleOptions& options, const NeedleResult& result);

}  // namespace tqcache::eval
