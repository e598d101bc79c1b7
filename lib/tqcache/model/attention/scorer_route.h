#pragma once
// model/attention/scorer_route.h: how attention reads a cache on this CPU, for reports.

#include <string>
#include <string_view>

#include "tqcache/cache/cache.h"
#include "tqcache/codec/kernels/kernels.h"

namespace tqcache::model {

// How packed codes are scored: in f32, or with queries and centroids rounded to whole numbers where
// the CPU multiplies those faster (docs/reference/codec.md, "Kernels", has the error bounds).
using Scorer = codec::Precision;

struct ScorerRoute {
  // Of decode steps: "dense" (no block is packed), "packed_int8" or "packed_f32" (codes are scored
  // as they stand, in whole numbers or in f32). The slowest of all sides.
  std::string_view step = "dense";

  // Of prompts, many tokens at once: "dense", or "decoded": each block is decoded once, and serves
  // all queries.
  std::string_view prompt = "dense";

  // Why a decode step is slower than what was asked for, of the first side where it is: "layer 0 k:
  // no kernels of whole numbers on scalar". Empty if it is not.
  std::string fallback;
};

ScorerRoute scorer_route(const cache::Cache& cache, Scorer scorer);

}  // namespace tqcache::model
