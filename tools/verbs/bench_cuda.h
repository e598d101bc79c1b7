#pragma once
// tools/verbs/bench_cuda.h: `tqcache bench --device cuda`.

#include <cstdint>
#include <string>

#include "cli/console.h"
#include "verbs/eval_common.h"

namespace tqcache::cli {

struct CudaBench {
  std::string model;          // whose shape is measured; empty: 8 heads of 128, 32 query heads
  std::string configuration;  // "turbo4"
  std::int64_t n_tokens = 131072;
  int n_runs = 20;
};

// Measures the kernels on the first GPU and prints a report.
// Errors: kInvalidArgument; kUnsupported: no kernels, no GPU, or no kernel for the configuration.
Result<ExitCode> bench_cuda(const Console& console, const CudaBench& bench,
                            const EvalOutput& output);

}  // namespace tqcache::cli
