#pragma once
// eval/speed.h: how fast a model reads a prompt and writes behind it, and what its cache takes, for
// several ways to keep the cache.
//
// Every run begins with an empty cache of its kind, reads the whole prompt into it, and then takes
// one decode step after the other behind it. All runs take the same tokens, so that they do the
// same work whatever a model would say.

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "tqcache/base/result.h"
#include "tqcache/cache/cache.h"
#include "tqcache/cache/plan.h"
#include "tqcache/model/decoder.h"
#include "tqcache/model/loading/model.h"

namespace tqcache::eval {

// One way to keep the cache.
struct SpeedCase {
  std::string name;  // in messages
  cache::ConvertOptions options;
  bool must_pack = true;  // a run in which nothing was packed is no measurement
};

// Units: seconds.
struct SpeedRun {
  double prompt_seconds = 0;
  double generation_seconds = 0;  // of all decode steps
};

// What came of one case.
struct Speed {
  std::vector<SpeedRun> runs;      // in the order in which they ran, warm-ups left out
  cache::ByteCount cache_bytes;    // at the end of a run
  std::int64_t packed_blocks = 0;  // token blocks of all sides
  model::KernelPath route;
  std::uint64_t scratch_bytes = 0;  // of the decoder
};

struct SpeedOptions {
  int n_warmups = 1;
  int n_repeats = 3;
  unsigned n_threads = 0;  // 0: all processors
  model::Scorer scorer = model::Scorer::kFast;
};

// Now, in seconds from any fixed moment.
using SecondsClock = std::function<double()>;
SecondsClock steady_clock();

// Cases take turns, run by run, so that what else the machine does falls on all of them.
//
// Progress: tokens, of all runs together.
// Requires: both lists of tokens are not empty; n_repeats at least 1.
// Errors:   kInvalidArgument (nothing was packed, and how many tokens it takes; more tokens than
// the
//           context holds; an id out of range), those of cache::convert with the case's name,
//           kInterrupted.
Result<std::vector<Speed>> measure_speed(const model::Model& model,
                                         std::span<const SpeedCase> cases,
                                         std::span<const std::int32_t> prompt,
                                         std::span<const std::int32_t> continuation,
                                         const SpeedOptions& options, const Progress& progress = {},
                                         const SecondsClock& now = steady_clock());

// The middle one, or the mean of the two in the middle. Requires: not empty.
double median(std::vector<double> values);

// The median of each time by itself. Requires: there is a run.
SpeedRun median_run(const Speed& speed);

// Ids that nobody would write: each drawn from the whole vocabulary, the same for the same seed.
std::vector<std::int32_t> random_ids(std::int64_t n, std::int64_t vocab_size, std::uint64_t seed);

}  // namespace tqcache::eval
