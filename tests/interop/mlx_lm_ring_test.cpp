#include <gtest/gtest.h>

#include "tqcache/interop/mlx/mlx_lm_rows.h"

namespace tqcache::interop {
namespace mlx_lm_ring_test {

RowRuns rows(const MlxRing& ring, std::int64_t n_rows) {
  auto runs = ring_rows(ring, n_rows);
  EXPECT_TRUE(runs.ok()) << runs.error().message;
  return runs ? *runs : RowRuns();
}

RowRuns batch_rows(const MlxBatchRing& ring, std::int64_t n_rows) {
  auto runs = batch_ring_rows(ring, n_rows);
  EXPECT_TRUE(runs.ok()) << runs.error().message;
  return runs ? *runs : RowRuns();
}

void expect_corrupt(const Result<RowRuns>& runs, const std::string& message) {
  ASSERT_FALSE(runs.ok());
  EXPECT_EQ(runs.error().code, ErrorCode::kCorrupt);
  EXPECT_EQ(runs.error().message, message);
}

TEST(MlxRing, TakesRowsInOrderBeforeTheRingIsFull) {
  EXPECT_EQ(rows({.keep = 4, .max_size = 64, .offset = 40, .next = 40}, 40), (RowRuns{{0, 40}}));
  EXPECT_EQ(rows({.keep = 4, .max_size = 64, .offset = 64, .next = 64}, 64), (RowRuns{{0, 64}}));
}

TEST(MlxRing, LeavesOutRowsThatWereNeverWritten) {
  EXPECT_EQ(rows({.keep = 4, .max_size = 512, .offset = 10, .next = 10}, 256), (RowRuns{{0, 10}}));
}

TEST(MlxRing, PutsAWrappedRingIntoTheOrderOfPositions) {
  EXPECT_EQ(rows({.keep = 4, .max_size = 16, .offset = 25, .next = 13}, 16),
            (RowRuns{{0, 4}, {13, 3}, {4, 9}}));
  EXPECT_EQ(rows({.keep = 0, .max_size = 16, .offset = 21, .next = 5}, 16),
            (RowRuns{{5, 11}, {0, 5}}));
  EXPECT_EQ(rows({.keep = 4, .max_size = 16, .offset = 16, .next = 4}, 16),
            (RowRuns{{0, 4}, {4, 12}}));
}

TEST(MlxRing, DropsWhatNoQueryLooksAt) {
  // A prompt of 100 tokens taken in at once.
  EXPECT_EQ(rows({.keep = 4, .max_size = 16, .offset = 100, .next = 100}, 100),
            (RowRuns{{0, 4}, {88, 12}}));
  EXPECT_EQ(rows({.keep = 0, .max_size = 16, .offset = 100, .next = 100}, 100),
            (RowRuns{{84, 16}}));
}

TEST(MlxRing, TakesANumberBeyondTheBufferForAllOfIt) {
  EXPECT_EQ(rows({.keep = 0, .max_size = 8, .offset = 9, .next = 12}, 8), (RowRuns{{0, 8}}));
}

TEST(MlxRing, RefusesStatesThatNoRingIsIn) {
  expect_corrupt(ring_rows({.keep = 4, .max_size = 16, .offset = 25, .next = 3}, 16),
                 "ring: _idx 3 among the 4 rows that stay");
  expect_corrupt(ring_rows({.keep = 0, .max_size = 16, .offset = 5, .next = 8}, 16),
                 "ring: 8 rows of 5 tokens");
  expect_corrupt(ring_rows({.keep = 0, .max_size = 16, .offset = 5, .next = 16}, 16),
                 "ring: 16 rows of 5 tokens");
  expect_corrupt(ring_rows({.keep = 0, .max_size = 16, .offset = 25, .next = 12}, 12),
                 "ring: 12 tokens, expected 16");
}

TEST(MlxBatchRing, LeavesOutThePadding) {
  EXPECT_EQ(batch_rows({.max_size = 16, .next = 9, .left_padding = 4, .offset = 5}, 9),
            (RowRuns{{4, 5}}));
  EXPECT_EQ(batch_rows({.max_size = 16, .next = 9, .left_padding = 4, .offset = 5}, 256),
            (RowRuns{{4, 5}}));
}

TEST(MlxBatchRing, PutsAWrappedRingIntoTheOrderOfPositions) {
  EXPECT_EQ(
      batch_rows({.max_size = 8, .next = 3, .rotated = true, .left_padding = -2, .offset = 20}, 8),
      (RowRuns{{3, 5}, {0, 3}}));
  EXPECT_EQ(
      batch_rows({.max_size = 8, .next = 3, .rotated = true, .left_padding = 2, .offset = 6}, 8),
      (RowRuns{{5, 3}, {0, 3}}));
}

TEST(MlxBatchRing, DropsWhatNoQueryLooksAt) {
  EXPECT_EQ(batch_rows({.max_size = 8, .next = 20, .left_padding = 0, .offset = 20}, 20),
            (RowRuns{{12, 8}}));
}

TEST(MlxBatchRing, RefusesStatesThatNoRingIsIn) {
  expect_corrupt(batch_ring_rows({.max_size = 8, .next = 4, .left_padding = 5, .offset = 1}, 8),
                 "ring: padding of 5 in 4 rows");
  expect_corrupt(batch_ring_rows({.max_size = 8, .next = 4, .left_padding = 0, .offset = 20}, 8),
                 "ring: 4 tokens, expected 8");
}

}  // namespace mlx_lm_ring_test
}  // namespace tqcache::interop
