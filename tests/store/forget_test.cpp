// Everything of one tenant goes, and nothing of the others.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "store/aged_backend.h"
#include "store/library_fixture.h"
#include "tqcache/store/blobs/blob_keys.h"
#include "tqcache/upkeep.h"

namespace tqcache::test {
namespace forget_test {

using testing::IsEmpty;

const std::vector<std::string> kAlice{"alice"}, kBob{"bob"};

std::uint64_t blobs_in(const store::ForgetReport& report) {
  std::uint64_t sum = 0;
  for (const store::KindTotal& total : report.removed) sum += total.blobs;
  return sum;
}

// Attention, a window and recurrent state: blocks, snapshots and data.
cache::Cache prompt_of(std::int64_t n_tokens, unsigned seed) {
  return CacheBuilder(n_tokens, seed).dense(kHeads).arrays().rotating({{1, 16}, 40, 0}).build();
}

class Forget : public testing::Test {
 protected:
  static void put_all(store::Backend& backend, const std::string& salt, unsigned seed) {
    ToldLibrary library(backend, salt);
    must(library->put_cache(prompt_of(1300, seed), "long"));
    must(library->put_cache(prompt_of(700, seed), ""));
    must(library->put_cache(prompt_of(200, seed), "short"));
    must(library->put_cache(CacheBuilder(600, seed + 1).turbo(kHeads, 4, 2).build(), "turbo"));
  }
  static std::vector<std::string> keys(store::Backend& backend) { return all_keys(backend); }
};

TEST_F(Forget, RemovesAllOfATenantAndNothingElse) {
  const auto backend = open_store(), of_bob = open_store();
  put_all(*of_bob, "bob", 1);
  put_all(*backend, "bob", 1);
  put_all(*backend, "alice", 1);  // the same prompts
  put_all(*backend, "", 1);
  const std::vector<std::string> all = keys(*backend);
  const store::ForgetReport dry = must(store::forget(*backend, kAlice, true));
  EXPECT_EQ(keys(*backend), all);
  const store::ForgetReport report = must(store::forget(*backend, kAlice, false));
  EXPECT_EQ(report.prompts, 3u);
  EXPECT_EQ(blobs_in(report), blobs_in(dry));
  EXPECT_EQ(blobs_in(report), keys(*of_bob).size());
  EXPECT_EQ(keys(*backend).size(), 2 * keys(*of_bob).size());
  for (const std::string& key : keys(*of_bob)) EXPECT_TRUE(must(backend->exists(key))) << key;
  EXPECT_EQ(blobs_in(must(store::forget(*backend, kAlice, false))), 0u);
  const std::vector<std::string> both{"bob", "", "bob"};
  must(store::forget(*backend, both, false));
  EXPECT_THAT(keys(*backend), IsEmpty());
}

// At each place where it may be interrupted, the rest is found the next time.
TEST_F(Forget, GoesOnAfterAnInterruption) {
  AgedBackend whole;
  put_all(whole, "alice", 3);
  const auto values = whole.values;
  std::vector<std::string> order;
  whole.on_remove = [&](const std::string& key) { order.push_back(key); };
  must(store::forget(whole, kAlice, false));
  ASSERT_EQ(order.size(), values.size());
  for (std::size_t i = 0; i < order.size(); i += 3) {
    AgedBackend backend;
    backend.values = values;
    for (std::size_t gone = 0; gone < i; ++gone) backend.values.erase(order[gone]);
    must(store::forget(backend, kAlice, false));
    EXPECT_THAT(backend.values, IsEmpty()) << i;
  }
}

TEST_F(Forget, FindsDataThatNoSnapshotNames) {
  const auto backend = open_store();
  put_all(*backend, "alice", 5);
  put_all(*backend, "bob", 5);
  for (const char* prefix : {"n/", "s/"}) {
    for (const std::string& key : all_keys(*backend, prefix)) must(backend->remove(key));
  }
  const std::size_t n_data = all_keys(*backend, "d/").size();
  ASSERT_GT(n_data, 0u);
  must(store::forget(*backend, kAlice, false));
  EXPECT_EQ(2 * all_keys(*backend, "d/").size(), n_data);
  must(store::forget(*backend, kBob, false));
  EXPECT_THAT(keys(*backend), IsEmpty());
}

TEST_F(Forget, CountsWhatIsDamaged) {
  const auto backend = open_store();
  put_all(*backend, "alice", 7);
  const std::string key = all_keys(*backend, "d/").front();
  Bytes value = must(backend->get(key)).value();
  value[value.size() / 2] ^= std::byte{1};
  must(backend->remove(key));
  must(backend->put(key, value));
  const store::ForgetReport report = must(store::forget(*backend, kBob, false));
  EXPECT_EQ(report.unread, 1u);
  EXPECT_EQ(blobs_in(report), 0u);
}

TEST_F(Forget, ReadsAnEncryptedStoreWithItsKeyAlone) {
  const TempDir dir;
  const std::string url = "dir:" + (dir / "store").string();
  const KeyRing ring = must(KeyRing::parse(Bytes(32, std::byte{5})));
  const std::string salt = store::secret_salt(ring, "alice");
  store::BackendOptions options;
  options.keys = ring;
  const auto backend = must(store::open_backend(url, options));
  put_all(*backend, salt, 9);
  const auto without = must(store::open_backend(url, {}));
  const auto refused = store::forget(*without, kAlice, false);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kNoKey);
  EXPECT_EQ(must(store::forget(*backend, std::vector<std::string>{salt}, false)).prompts, 3u);
  EXPECT_THAT(keys(*backend), IsEmpty());
}

TEST_F(Forget, CanBeInterrupted) {
  const auto backend = open_store();
  put_all(*backend, "alice", 11);
  const std::vector<std::string> all = keys(*backend);
  const auto stopped = store::forget(*backend, kAlice, false,
                                     [](std::uint64_t done, std::uint64_t) { return done < 3; });
  ASSERT_FALSE(stopped.ok());
  EXPECT_EQ(stopped.error().code, ErrorCode::kInterrupted);
  EXPECT_EQ(keys(*backend), all);
}

}  // namespace forget_test
}  // namespace tqcache::test
