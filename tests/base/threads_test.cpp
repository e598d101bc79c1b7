#include "tqcache/base/threads.h"

#include <gtest/gtest.h>

#include <atomic>
#include <new>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace tqcache {
namespace threads_test {

constexpr unsigned kThreadCounts[] = {0, 1, 2, 3, 8, 100'000};

Error failure(std::size_t i) { return {ErrorCode::kCorrupt, "piece " + std::to_string(i)}; }

TEST(ThreadCount, IsWhatWasAskedForOrAtLeastOne) {
  EXPECT_EQ(thread_count(1), 1u);
  EXPECT_EQ(thread_count(7), 7u);
  EXPECT_GE(thread_count(0), 1u);
}

TEST(ParallelFor, CallsTheBodyOnceForEveryIndex) {
  for (const unsigned n_threads : kThreadCounts) {
    for (const std::size_t count : {0u, 1u, 2u, 3u, 1000u}) {
      std::vector<std::atomic<int>> calls(count);
      parallel_for(count, n_threads, [&](std::size_t i) { ++calls[i]; });
      for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(calls[i], 1) << n_threads << ' ' << i;
    }
  }
}

TEST(ParallelFor, RunsInOrderInTheCallingThreadWhenThereIsOne) {
  const std::thread::id here = std::this_thread::get_id();
  std::vector<std::size_t> order;
  parallel_for(100, 1, [&](std::size_t i) {
    order.push_back(i);
    EXPECT_EQ(std::this_thread::get_id(), here);
  });
  ASSERT_EQ(order.size(), 100u);
  for (std::size_t i = 0; i < 100; ++i) EXPECT_EQ(order[i], i);
}

TEST(ParallelFor, UsesNoMoreThreadsThanItMay) {
  for (const unsigned n_threads : {2u, 3u}) {
    std::atomic<unsigned> running = 0;
    std::atomic<bool> too_many = false;
    parallel_for(500, n_threads, [&](std::size_t) {
      if (++running > n_threads) too_many = true;
      std::this_thread::yield();
      --running;
    });
    EXPECT_FALSE(too_many);
  }
}

TEST(ParallelFor, PassesOnAnException) {
  for (const unsigned n_threads : kThreadCounts) {
    const auto body = [](std::size_t i) {
      if (i == 37) throw std::runtime_error("piece 37");
    };
    try {
      parallel_for(1000, n_threads, body);
      ADD_FAILURE() << "no exception with " << n_threads << " threads";
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "piece 37");
    }
  }
}

TEST(ParallelFor, CanBeNested) {
  std::atomic<int> calls = 0;
  parallel_for(20, 4, [&](std::size_t) { parallel_for(20, 4, [&](std::size_t) { ++calls; }); });
  EXPECT_EQ(calls, 400);
}

TEST(ParallelTry, IsOkWhenEveryPieceIs) {
  for (const unsigned n_threads : kThreadCounts) {
    std::atomic<int> calls = 0;
    const Result<void> result = parallel_try(500, n_threads, [&](std::size_t) -> Result<void> {
      ++calls;
      return {};
    });
    EXPECT_TRUE(result.ok());
    EXPECT_EQ(calls, 500);
  }
  EXPECT_TRUE(parallel_try(0, 4, [](std::size_t i) { return failure(i); }).ok());
}

TEST(ParallelTry, GivesTheErrorOfTheSmallestFailingIndex) {
  const std::set<std::size_t> failing = {301, 302, 700, 999};
  for (int repeat = 0; repeat < 50; ++repeat) {
    for (const unsigned n_threads : kThreadCounts) {
      const Result<void> result = parallel_try(1000, n_threads, [&](std::size_t i) -> Result<void> {
        if (failing.contains(i)) return failure(i);
        return {};
      });
      ASSERT_FALSE(result.ok());
      EXPECT_EQ(result.error().code, ErrorCode::kCorrupt);
      ASSERT_EQ(result.error().message, "piece 301");
    }
  }
}

// Gives other threads a chance to set the flag, without depending on it.
void wait_a_little(const std::atomic<bool>& flag) {
  for (int turn = 0; turn < 2000 && !flag; ++turn) std::this_thread::yield();
}

TEST(ParallelTry, KeepsTheErrorOfASmallerIndexThatFailedEarlier) {
  for (int repeat = 0; repeat < 30; ++repeat) {
    std::atomic<bool> second_runs = false;
    std::atomic<bool> first_failed = false;
    const std::atomic<bool> never = false;
    const Result<void> result = parallel_try(2, 2, [&](std::size_t i) -> Result<void> {
      if (i == 0) {
        wait_a_little(second_runs);
        first_failed = true;
      } else {
        second_runs = true;
        wait_a_little(first_failed);
        wait_a_little(never);
      }
      return failure(i);
    });
    ASSERT_EQ(result.error().message, "piece 0");
  }
}

TEST(ParallelTry, GivesTheErrorOfIndexZeroWhenAllFail) {
  for (const unsigned n_threads : kThreadCounts) {
    const Result<void> result =
        parallel_try(1000, n_threads, [](std::size_t i) -> Result<void> { return failure(i); });
    EXPECT_EQ(result.error().message, "piece 0");
  }
}

TEST(ParallelTry, LeavesOutWhatComesAfterAFailureWhenThereIsOneThread) {
  std::size_t calls = 0;
  const Result<void> result = parallel_try(1000, 1, [&](std::size_t i) -> Result<void> {
    ++calls;
    if (i == 5) return failure(i);
    return {};
  });
  EXPECT_FALSE(result.ok());
  EXPECT_EQ(calls, 6u);
}

TEST(ParallelTry, PassesOnAnException) {
  EXPECT_THROW(
      (void)parallel_try(100, 2, [](std::size_t) -> Result<void> { throw std::bad_alloc(); }),
      std::bad_alloc);
}

}  // namespace threads_test
}  // namespace tqcache
