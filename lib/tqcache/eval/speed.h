#pragma once
// eval/speed.h: speed of prefill and generation, and the size of the cache, for several
// configurations of the cache.
//
// Every run starts with an empty cache of its configuration, reads the whole prompt and then makes
// one decode step after another. All runs use the same tokens, so they do the same work whatever
// the model would generate.

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "tqcache/cache.h"
#include "tqcache/decoder.h"
#include "tqcache/error.h"
#include "tqcache/model.h"
#include "tqcache/quantize.h"

namespace tqcache::eval {

// One configuration of the cache.
struct SpeedCase {
  std::string name;  // in messages
  cache::ConvertOptions options;
  bool must_pack = true;  // a run without quantized blocks is an error
};

// Units: seconds.
struct SpeedRun {
  double prompt_seconds = 0;
  double generation_seconds = 0;  // of all decode steps
};

// The result of one case.
struct Speed {
  std::vector<SpeedRun> runs;      // in order, without warm-ups
  cache::ByteCount cache_bytes;    // at the end of a run
  std::int64_t packed_blocks = 0;  // quantized token blocks of K and V
  model::KernelPath route;
  std::uint64_t scratch_bytes = 0;  // of the decoder
};

struct SpeedOptions {
  int n_warmups = 1;
  int n_repeats = 3;
  unsigned n_threads = 0;  // 0: all processors
  model::Scorer scorer = model::Scorer::kFast;
  model::ActivationBits activations = model::ActivationBits::k16;
};

// Seconds since an arbitrary fixed moment.
using SecondsClock = std::function<double()>;
SecondsClock steady_clock();

// Cases alternate, run by run, so that other load on the machine affects all of them.
//
// Progress: tokens, over all runs.
// Requires: neither list of tokens is empty; n_repeats at least 1.
// Errors:   kInvalidArgument (nothing was quantized; more tokens than the context holds; an id out
//           of range), those of cache::convert with the case's name,
//           kInterrupted.
Result<std::vector<Speed>> measure_speed(const model::Model& model,
                                         std::span<const SpeedCase> cases,
                                         std::span<const std::int32_t> prompt,
                                         std::span<const std::int32_t> continuation,
                                         const SpeedOptions& options, const Progress& progress = {},
                                         const SecondsClock& now = steady_clock());

// The middle value, or the mean of the two middle values. Requires: not empty.
double median(std::vector<double> values);

// The median of each time separately. Requires: at least one run.
SpeedRun median_run(const Speed& speed);

// Random ids from the whole vocabulary, the same for the same seed.
std::vector<std::int32_t> random_ids(std::int64_t n, std::int64_t vocab_size, std::uint64_t seed);

}  // namespace tqcache::eval
