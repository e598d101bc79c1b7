// The queue serves one at a time, in order, and no more than it has places.

#include "tqcache/serve/embedded/request_queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace tqcache::serve {
namespace {

bool always() { return true; }

TEST(RequestQueue, IsBounded) {
  RequestQueue queue(2);
  auto a = queue.join();
  auto b = queue.join();
  auto c = queue.join();
  ASSERT_TRUE(a && b && c);
  EXPECT_FALSE(queue.join());
  EXPECT_EQ(queue.counts().running, 1u);
  EXPECT_EQ(queue.counts().waiting, 2u);
  EXPECT_TRUE(a->wait(always));
  b.reset();  // a client that gave up
  EXPECT_EQ(queue.counts().waiting, 1u);
  EXPECT_TRUE(queue.join());
  a.reset();
  EXPECT_TRUE(c->wait(always));
}

TEST(RequestQueue, CanBeLeftWhileWaiting) {
  RequestQueue queue(2);
  const auto first = queue.join();
  auto second = queue.join();
  int n_asked = 0;
  EXPECT_FALSE(second->wait([&] { return ++n_asked < 3; }));
  EXPECT_EQ(n_asked, 3);
}

TEST(RequestQueue, ServesOneAtATimeInOrder) {
  RequestQueue queue(64);
  std::vector<RequestQueue::Turn> turns;
  for (int i = 0; i < 16; ++i) turns.push_back(std::move(*queue.join()));
  std::vector<int> order;
  std::atomic<int> n_inside = 0;
  std::vector<std::thread> threads;
  for (int i = 15; i >= 0; --i) {
    threads.emplace_back([&, i, turn = std::move(turns[static_cast<std::size_t>(i)])]() mutable {
      EXPECT_TRUE(turn.wait(always));
      EXPECT_EQ(++n_inside, 1);
      order.push_back(i);
      --n_inside;
      const RequestQueue::Turn leaves = std::move(turn);
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_EQ(order.size(), 16u);
  for (int i = 0; i < 16; ++i) EXPECT_EQ(order[static_cast<std::size_t>(i)], i);
  EXPECT_EQ(queue.counts().running, 0u);
}

}  // namespace
}  // namespace tqcache::serve
