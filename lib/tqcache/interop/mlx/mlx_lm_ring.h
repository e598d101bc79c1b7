#pragma once
// interop/mlx/mlx_lm_ring.h: which rows of a ring buffer hold the tokens of a window, oldest first.
//
// Source: ml-explore/mlx-lm mlx_lm/models/cache.py, RotatingKVCache and BatchRotatingKVCache.

#include <cstdint>
#include <vector>

#include "tqcache/base/result.h"

namespace tqcache::interop {

// Rows one after another.
struct RowRun {
  std::int64_t first = 0;
  std::int64_t count = 0;
  bool operator==(const RowRun&) const = default;
};

using RowRuns = std::vector<RowRun>;  // without empty ones

std::int64_t count_rows(const RowRuns& runs);

// A RotatingKVCache. Once all rows are taken, the first `keep` stay and the others go round.
struct MlxRing {
  std::int64_t keep = 0;
  std::int64_t max_size = 0;  // tokens that a query can look at
  std::int64_t offset = 0;    // tokens seen
  std::int64_t next = 0;  // "_idx": the row to be written next; more than there are counts as all
};

// Rows of the min(max_size, offset) tokens of the window. A buffer of `n_rows` may have more, which
// no query looks at any more: prefill keeps whole prompts for a while.
//
// Requires: 0 <= keep < max_size; the others are not negative.
// Errors:   kCorrupt (a state that no ring can be in, too few rows).
Result<RowRuns> ring_rows(const MlxRing& ring, std::int64_t n_rows);

// One row of a BatchRotatingKVCache, which keeps no first tokens.
struct MlxBatchRing {
  std::int64_t max_size = 0;
  std::int64_t next = 0;          // "_idx"
  bool rotated = false;           // the rows go round, from `next` on
  std::int64_t left_padding = 0;  // rows before the first token; below 0 once that is overwritten
  std::int64_t offset = 0;        // tokens seen
};

// As ring_rows().
Result<RowRuns> batch_ring_rows(const MlxBatchRing& ring, std::int64_t n_rows);

}  // namespace tqcache::interop
