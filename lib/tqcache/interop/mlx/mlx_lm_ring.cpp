#include "tqcache/interop/mlx/mlx_lm_ring.h"

#include <algorithm>
#include <string>
#include <utility>

#include "tqcache/base/result.h"

namespace tqcache::interop {
namespace {

RowRuns without_empty(RowRuns runs) {
  std::erase_if(runs, [](const RowRun& run) { return run.count <= 0; });
  return runs;
}

// The same without `count` rows from the `at`-th on. Requires: they are there.
RowRuns cut_rows(const RowRuns& runs, std::int64_t at, std::int64_t count) {
  RowRuns result;
  std::int64_t position = 0;  // of the run's first row among all
  for (const RowRun& run : runs) {
    const std::int64_t before = std::clamp<std::int64_t>(at - position, 0, run.count);
    const std::int64_t behind = std::clamp<std::int64_t>(at + count - position, 0, run.count);
    result.push_back({run.first, before});
    result.push_back({run.first + behind, run.count - behind});
    position += run.count;
  }
  return without_empty(std::move(result));
}

// Leaves the `keep` first rows and the newest ones.
Result<RowRuns> newest_rows(const RowRuns& runs, std::int64_t keep, std::int64_t wanted) {
  const std::int64_t spare = count_rows(runs) - wanted;
  if (spare == 0) return runs;
  if (spare > 0) return cut_rows(runs, std::min(keep, wanted), spare);
  return corrupt("ring: " + std::to_string(count_rows(runs)) + " tokens where " +
                 std::to_string(wanted) + " belong");
}

}  // namespace

std::int64_t count_rows(const RowRuns& runs) {
  std::int64_t count = 0;
  for (const RowRun& run : runs) count += run.count;
  return count;
}

Result<RowRuns> ring_rows(const MlxRing& ring, std::int64_t n_rows) {
  const std::int64_t next = std::min(ring.next, n_rows);
  RowRuns runs;
  if (next == n_rows) {
    runs = {{0, n_rows}};
  } else if (next >= ring.offset) {
    runs = {{0, next}};  // the rest was never written
  } else if (next >= ring.keep) {
    runs = {{0, ring.keep}, {next, n_rows - next}, {ring.keep, next - ring.keep}};
  } else {
    return corrupt("ring: _idx " + std::to_string(next) + " among the " +
                   std::to_string(ring.keep) + " rows that stay");
  }
  runs = without_empty(std::move(runs));
  if (count_rows(runs) > ring.offset) {
    return corrupt("ring: " + std::to_string(count_rows(runs)) + " rows of " +
                   std::to_string(ring.offset) + " tokens");
  }
  return newest_rows(runs, ring.keep, std::min(ring.max_size, ring.offset));
}

Result<RowRuns> batch_ring_rows(const MlxBatchRing& ring, std::int64_t n_rows) {
  const std::int64_t next = std::min(ring.next, n_rows);
  RowRuns runs = {{0, next}};
  if (ring.rotated) runs = {{next, n_rows - next}, {0, next}};
  runs = without_empty(std::move(runs));
  const std::int64_t padding = std::max<std::int64_t>(ring.left_padding, 0);
  if (padding > count_rows(runs)) {
    return corrupt("ring: padding of " + std::to_string(padding) + " in " +
                   std::to_string(count_rows(runs)) + " rows");
  }
  return newest_rows(cut_rows(runs, 0, padding), 0, std::min(ring.max_size, ring.offset));
}

}  // namespace tqcache::interop
