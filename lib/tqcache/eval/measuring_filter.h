#pragma once
// eval/measuring_filter.h: a filter of keys and values that measures its quantization errors.

#include "tqcache/eval.h"

namespace tqcache::eval {

// model::coding_filter() of `cache`, which also adds its errors to `errors`.
// Requires: both arguments outlive the filter; `errors` has the cache's shape; all layers are
//           attention layers of one shape.
model::KvFilter measuring_filter(const cache::Cache& cache, CodingErrors& errors);

}  // namespace tqcache::eval
