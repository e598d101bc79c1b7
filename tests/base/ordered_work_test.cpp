// Pieces that are made in parallel and taken in order.

#include <gtest/gtest.h>

#include <atomic>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "tqcache/base/pool.h"
#include "tqcache/base/threads.h"

namespace tqcache {
namespace ordered_work_test {

constexpr unsigned kThreadCounts[] = {0, 1, 2, 3, 8, 100'000};

Error failure(std::size_t i) { return {ErrorCode::kCorrupt, "piece " + std::to_string(i)}; }

// Some pieces take far longer than others. Not by yielding: on a busy machine a thread that yields
// waits for the slices of all others.
void dawdle(std::size_t i) {
  volatile std::size_t steps = 0;
  while (steps < i * 7919 % 100 * 200) steps = steps + 1;
}

TEST(RunInOrder, TakesEveryPieceOnceInItsOrder) {
  for (const unsigned n_threads : kThreadCounts) {
    for (const std::size_t count : {0u, 1u, 2u, 500u}) {
      std::vector<std::size_t> made(slot_count(n_threads), count);
      std::vector<std::size_t> taken;
      const OrderedWork work{count,
                             [&](std::size_t i, std::size_t slot) -> Result<void> {
                               dawdle(i);
                               made[slot] = i;
                               return {};
                             },
                             [&](std::size_t i, std::size_t slot) -> Result<void> {
                               EXPECT_EQ(made[slot], i);
                               taken.push_back(i);
                               return {};
                             }};
      ASSERT_TRUE(run_in_order(work, n_threads).ok());
      ASSERT_EQ(taken.size(), count);
      for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(taken[i], i);
    }
  }
}

TEST(RunInOrder, TakesEachPieceBeforeItMakesTheNextWhenThereIsOneThread) {
  const std::thread::id here = std::this_thread::get_id();
  std::string calls;
  const auto note = [&](char call) {
    return [&calls, here, call](std::size_t i, std::size_t) -> Result<void> {
      EXPECT_EQ(std::this_thread::get_id(), here);
      calls += call + std::to_string(i) + ' ';
      return {};
    };
  };
  ASSERT_TRUE(run_in_order({3, note('m'), note('t')}, 1).ok());
  EXPECT_EQ(calls, "m0 t0 m1 t1 m2 t2 ");
}

// Pieces of 1 to 5 bytes, and one that is larger than the window.
std::uint64_t weight(std::size_t i) { return i == 50 ? 1000 : i * 31 % 5 + 1; }

TEST(RunInOrder, HoldsNoMoreThanTheWindowAndASinglePieceAtLeast) {
  for (const unsigned n_threads : kThreadCounts) {
    for (const std::uint64_t window : {0u, 1u, 7u, 20u}) {
      std::atomic<std::uint64_t> held = 0;
      std::atomic<bool> is_within = true;
      const auto make = [&](std::size_t i, std::size_t) -> Result<void> {
        const std::uint64_t now = held += weight(i);
        if (now > window && now != weight(i)) is_within = false;
        dawdle(i);
        return {};
      };
      const auto take = [&](std::size_t i, std::size_t) -> Result<void> {
        held -= weight(i);
        return {};
      };
      ASSERT_TRUE(run_in_order({300, make, take, weight, window}, n_threads).ok());
      EXPECT_TRUE(is_within) << n_threads << ' ' << window;
      EXPECT_EQ(held, 0u);
    }
  }
}

TEST(RunInOrder, GivesTheErrorOfTheSmallestPieceThatCannotBeMade) {
  for (int repeat = 0; repeat < 20; ++repeat) {
    for (const unsigned n_threads : kThreadCounts) {
      std::vector<std::size_t> taken;
      const auto make = [](std::size_t i, std::size_t) -> Result<void> {
        dawdle(i);
        if (i == 101 || i == 102 || i == 105) return failure(i);
        return {};
      };
      const auto take = [&](std::size_t i, std::size_t) -> Result<void> {
        taken.push_back(i);
        return {};
      };
      const Result<void> result = run_in_order({300, make, take}, n_threads);
      ASSERT_FALSE(result.ok());
      ASSERT_EQ(result.error().message, "piece 101");
      ASSERT_EQ(taken.size(), 101u);
    }
  }
}

TEST(RunInOrder, TakesNothingAfterAPieceThatCannotBeTaken) {
  for (const unsigned n_threads : kThreadCounts) {
    std::size_t taken = 0;
    const auto make = [](std::size_t i, std::size_t) -> Result<void> {
      if (i > 60) return failure(i);
      return {};
    };
    const auto take = [&](std::size_t i, std::size_t) -> Result<void> {
      ++taken;
      if (i == 40) return Error{ErrorCode::kIo, "full"};
      return {};
    };
    const Result<void> result = run_in_order({300, make, take}, n_threads);
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.error().code, ErrorCode::kIo);
    EXPECT_EQ(taken, 41u);
  }
}

TEST(RunInOrder, PassesOnAnException) {
  const auto fine = [](std::size_t, std::size_t) -> Result<void> { return {}; };
  const auto throws = [](std::size_t i, std::size_t) -> Result<void> {
    if (i == 30) throw std::bad_alloc();
    return {};
  };
  for (const unsigned n_threads : kThreadCounts) {
    EXPECT_THROW((void)run_in_order({100, throws, fine}, n_threads), std::bad_alloc);
    EXPECT_THROW((void)run_in_order({100, fine, throws}, n_threads), std::bad_alloc);
  }
}

TEST(Pool, LendsEachThingToOneAtATimeAndUsesItAgain) {
  Pool<std::vector<int>> pool;
  int n_made = 0;
  const auto make = [&] { return std::make_unique<std::vector<int>>(1, ++n_made); };
  const std::vector<int>* first = nullptr;
  {
    const auto one = pool.borrow(make);
    const auto two = pool.borrow(make);
    EXPECT_EQ(one->front(), 1);
    EXPECT_EQ(two->front(), 2);
    first = one.get();
  }
  EXPECT_EQ(pool.borrow(make).get(), first) << "the last one given back";
  EXPECT_EQ(n_made, 2);
}

}  // namespace ordered_work_test
}  // namespace tqcache
