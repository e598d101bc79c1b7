#include "research/simulation/block_store.h"

#include <gtest/gtest.h>

#include <vector>

#include "research/simulation/draw.h"

namespace tqcache::simulation {
namespace block_store_test {

using Chain = std::vector<Link>;

// Links of 10 bytes under keys 100 * owner + 0, 1, 2 and so on.
Chain chain(Key owner, std::size_t n, bool kept = false) {
  Chain links;
  for (std::size_t i = 0; i < n; ++i) links.push_back({100 * owner + i, 10, 1, false, kept});
  return links;
}

Link state(Key key) { return {key, 1, 1, true}; }

TEST(BlockStore, StoresWhatIsMissingOnly) {
  BlockStore store(BlockStore::kEndless);
  Added added = store.use(chain(1, 3));
  EXPECT_EQ(added.bytes, 30u);
  EXPECT_EQ(added.blobs, 3);
  added = store.use(chain(1, 5));
  EXPECT_EQ(added.bytes, 20u);
  EXPECT_EQ(store.bytes(), 50u);
  EXPECT_EQ(store.size(), 5u);
}

TEST(BlockStore, EvictsWhatWasNotUsedForLongest) {
  BlockStore store(60);
  store.use(chain(1, 2));
  store.use(chain(2, 2));
  store.use(chain(1, 2));
  store.use(chain(3, 4));
  EXPECT_EQ(store.leading(chain(1, 2)), 2u);
  EXPECT_EQ(store.leading(chain(2, 2)), 0u);
  EXPECT_EQ(store.leading(chain(3, 4)), 4u);
}

TEST(BlockStore, EvictsTheDeepestOfEqualUseFirst) {
  BlockStore store(50);
  store.use(chain(1, 4));
  store.use(chain(2, 3));
  EXPECT_EQ(store.leading(chain(1, 4)), 2u);
  EXPECT_EQ(store.leading(chain(2, 3)), 3u);
}

TEST(BlockStore, KeepsTheBeginningOfWhatIsLargerThanItself) {
  BlockStore store(35);
  store.use(chain(1, 6));
  EXPECT_EQ(store.leading(chain(1, 6)), 3u);
  EXPECT_EQ(store.bytes(), 30u);
}

TEST(BlockStore, NeverEvictsWhatIsKept) {
  BlockStore store(50);
  store.use(chain(1, 2, true));
  for (Key owner = 2; owner < 20; ++owner) store.use(chain(owner, 3));
  EXPECT_EQ(store.leading(chain(1, 2)), 2u);
  EXPECT_EQ(store.bytes(), 50u);
}

TEST(BlockStore, RefusesWhatDoesNotFitBesideWhatIsKept) {
  BlockStore store(25);
  store.use(chain(1, 2, true));
  EXPECT_EQ(store.use(chain(2, 3)).bytes, 0u);
  EXPECT_EQ(store.leading(chain(2, 3)), 0u);
  EXPECT_EQ(store.totals().bytes_refused, 10u) << "the first link; those behind it are not tried";
}

TEST(BlockStore, StoresNothingWithoutRoom) {
  BlockStore store(0);
  EXPECT_EQ(store.use(chain(1, 3)).bytes, 0u);
  EXPECT_EQ(store.size(), 0u);
}

TEST(BlockStore, HasSixteenStatesBehindOneBlock) {
  BlockStore store(BlockStore::kEndless);
  for (Key key = 1000; key < 1020; ++key) store.use(Chain{chain(1, 1)[0], state(key)});
  EXPECT_EQ(store.size(), 17u);
  EXPECT_TRUE(store.has(1015));
  EXPECT_FALSE(store.has(1016));
}

TEST(BlockStore, TakesAStateForOneThatWasEvicted) {
  BlockStore store(26);
  for (Key key = 1000; key < 1016; ++key) store.use(Chain{chain(1, 1)[0], state(key)});
  store.use(chain(2, 1));  // 36 bytes: ten states go
  EXPECT_FALSE(store.has(1009));
  EXPECT_TRUE(store.has(1010));
  store.use(Chain{chain(1, 1)[0], state(2000)});
  EXPECT_TRUE(store.has(2000));
}

// Chains that share beginnings, states among them, in a store that is always too small.
TEST(BlockStore, HoldsPrefixesAndEveryByteIsStoredOrEvicted) {
  constexpr std::uint64_t kCapacity = 500;
  BlockStore store(kCapacity);
  Random random(1);
  const Zipf owners(40, 0.7);
  std::vector<Chain> all;
  for (Key owner = 1; owner <= 40; ++owner) {
    Chain links = chain(owner % 5, 3, owner % 5 == 0);
    for (const Link& own : chain(owner + 100, 8)) links.push_back(own);
    links.push_back(state(1'000'000 + owner));
    all.push_back(links);
  }
  for (int i = 0; i < 3000; ++i) {
    const Chain& links = all[owners.draw(random)];
    store.use(std::span(links).first(1 + owners.draw(random) % links.size()));
    ASSERT_LE(store.bytes(), kCapacity);
    ASSERT_EQ(store.totals().bytes_in - store.totals().bytes_evicted, store.bytes());
    for (const Chain& each : all) {
      const std::size_t n = store.leading(each);
      for (std::size_t j = n; j < each.size(); ++j) ASSERT_FALSE(store.has(each[j].key)) << j;
    }
  }
  EXPECT_GT(store.totals().bytes_evicted, 10 * kCapacity);
}

}  // namespace block_store_test
}  // namespace tqcache::simulation
