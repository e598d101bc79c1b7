// Real Redis servers that these tests start, stop and fill themselves, and what a real one refuses.

#include "store/redis_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hiredis/hiredis.h>

#include <thread>

#include "store/no_blobs.h"
#include "store/server_url.h"
#include "store/values.h"
#include "support/matchers.h"
#include "tqcache/access.h"
#include "tqcache/store/backends/encrypted_backend.h"

namespace tqcache::test {
namespace redis_server_test {

TEST_F(RedisServer, IsReachedAgainAfterARestart) {
  start();
  const auto store = open();
  ASSERT_TRUE(store->put("a", as_bytes("value")).ok());
  stop();
  EXPECT_EQ(store->get("a").error().code, ErrorCode::kIo);
  start();
  const auto value = store->get("a");
  ASSERT_TRUE(value.ok()) << value.error().message;
  EXPECT_FALSE(value->has_value());  // it keeps nothing on disk
  EXPECT_TRUE(store->put("a", as_bytes("value")).ok());
}

TEST_F(RedisServer, ShowsNoPartOfAValueWhenItIsRestartedInTheMiddle) {
  start();
  const Bytes value = value_of("a", 8 << 20);
  const auto store = open();
  std::thread writer([&] {
    for (int i = 0; i < 30; ++i) (void)store->put("k/" + std::to_string(i), value).ok();
  });
  stop();
  start();
  writer.join();
  const std::vector<std::string> keys = {"k/0", "k/10", "k/20", "k/29"};
  const Result<void> done =
      store->get(keys, [&](std::size_t, std::optional<ByteView> found) -> Result<void> {
        EXPECT_TRUE(!found || std::ranges::equal(*found, value));
        return {};
      });
  EXPECT_TRUE(done.ok()) << done.error().message;
}

TEST_F(RedisServer, SaysThatItIsFull) {
  start({"--maxmemory", "4mb", "--maxmemory-policy", "noeviction"});
  const auto store = open();
  Result<store::PutOutcome> outcome = store->put("k/0", Bytes(1 << 20));
  for (int i = 1; i < 20 && outcome; ++i)
    outcome = store->put("k/" + std::to_string(i), Bytes(1 << 20));
  ASSERT_FALSE(outcome.ok());
  EXPECT_EQ(outcome.error().code, ErrorCode::kIo);  // as a full disk
  EXPECT_TRUE(store->get("k/0")->has_value());
}

TEST_F(RedisServer, HoldsADamagedBlobWhereAKeyIsOfAnotherKind) {
  start();
  const auto store = open();
  redisContext* const context = ::redisConnectUnix(socket_.c_str());
  ASSERT_TRUE(context != nullptr && context->err == 0);
  expect_no_blob_is_damage(*store, [&](const std::string& key) {
    const std::string name = "tqcache:" + key;
    for (const char* command : {"DEL %s", "HSET %s field value"}) {
      void* const reply = ::redisCommand(context, command, name.c_str());
      ASSERT_TRUE(reply != nullptr && context->err == 0);
      ::freeReplyObject(reply);
    }
  });
  ::redisFree(context);
}

TEST_F(RedisServer, MayDropWhatItLikes) {
  start({"--maxmemory", "6mb", "--maxmemory-policy", "allkeys-lru"});
  const auto store = open();
  std::vector<std::string> keys;
  for (int i = 0; i < 20; ++i) {
    keys.push_back("k/" + std::to_string(i));
    ASSERT_TRUE(store->put(keys.back(), value_of(keys.back(), 1 << 20)).ok());
  }
  int n_found = 0;
  const Result<void> done =
      store->get(keys, [&](std::size_t i, std::optional<ByteView> value) -> Result<void> {
        EXPECT_TRUE(!value || std::ranges::equal(*value, value_of(keys[i], 1 << 20)));
        n_found += value ? 1 : 0;
        return {};
      });
  EXPECT_TRUE(done.ok()) << done.error().message;
  EXPECT_GT(n_found, 0);
  EXPECT_LT(n_found, 20);
}

TEST_F(RedisServer, DropsABlobAfterItsTime) {
  start();
  const auto store = open("?ttl=1");
  ASSERT_TRUE(store->put("a", as_bytes("value")).ok());
  for (int i = 0; i < 200 && *store->exists("a"); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_FALSE(store->get("a")->has_value());
}

TEST_F(RedisServer, KeepsStoresOfDifferentDatabasesAndPrefixesApart) {
  start();
  ASSERT_TRUE(open("?db=1&prefix=x:")->put("a", as_bytes("value")).ok());
  EXPECT_TRUE(open("?db=1&prefix=x:")->get("a")->has_value());
  EXPECT_FALSE(open("?db=2&prefix=x:")->get("a")->has_value());
  EXPECT_FALSE(open("?db=1&prefix=y:")->get("a")->has_value());
}

// store.md, 19. The value of k/check, which the first put writes, is what tells.
TEST_F(RedisServer, IsOfOneKey) {
  start();
  const auto check = [&](int key, store::BeforePut before_put) {
    store::BackendOptions options;
    if (key > 0) options.keys = KeyRing::parse(Bytes(32, std::byte(key))).value();
    const auto store = std::move(store::open_backend(url(), options)).value();
    return store::check_store_key(*store, before_put);
  };
  EXPECT_TRUE(check(1, store::BeforePut::kNo).ok());
  EXPECT_FALSE(*open()->exists("k/check"));
  EXPECT_TRUE(check(1, store::BeforePut::kYes).ok());
  EXPECT_EQ((**open()->get("k/check")).size(), 192u);
  ASSERT_TRUE(open()->put("p/0000000000000000", as_bytes("anything")).ok());
  for (const auto before_put : {store::BeforePut::kNo, store::BeforePut::kYes}) {
    EXPECT_TRUE(check(1, before_put).ok());
    for (const int other : {0, 2})
      EXPECT_THAT(check(other, before_put), FailsWith(ErrorCode::kNoKey, testing::HasSubstr("k/")));
  }
}

TEST_F(RedisServer, IsNotAskedByTheWrongUser) {
  const std::string url = server_url("TQCACHE_TEST_REDIS");
  const std::string address = url.substr(url.find('@') + 1);
  for (const std::string login : {"", ":wrong@", "nobody:secret@"}) {
    const auto store = store::open_backend("redis://" + login + address, {});
    const auto value = (*store)->get("a");
    ASSERT_FALSE(value.ok()) << login;
    EXPECT_EQ(value.error().code, ErrorCode::kIo) << value.error().message;
  }
}

TEST_F(RedisServer, IsNeverSentMoreThanItTakes) {
  start();
  const auto store = open();
  // Memory that nobody touches.
  const std::unique_ptr<std::byte[]> bytes(new std::byte[store::kMaxValueBytes + 1]);
  const auto outcome = store->put("a", {bytes.get(), store::kMaxValueBytes + 1});
  EXPECT_EQ(outcome.error().code, ErrorCode::kTooLarge);
  EXPECT_TRUE(store->put("b", {}).ok());
}

}  // namespace redis_server_test
}  // namespace tqcache::test
