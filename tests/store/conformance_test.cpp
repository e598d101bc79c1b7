// The promises of tqcache/store.h, checked for every backend.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <thread>

#include "store/test_backends.h"
#include "store/values.h"
#include "support/temp_dir.h"
#include "tqcache/store.h"

namespace tqcache::test {
namespace conformance_test {

using store::Backend;
using store::Blob;
using store::Entry;
using store::PutOutcome;
using testing::ElementsAre;

const std::string kBlobKey = "b/0123456789abcdef/" + std::string(64, 'a');

class AnyStore : public testing::TestWithParam<TestBackend> {
 protected:
  AnyStore() : url_(GetParam().new_url(folder_.path())), store_(open()) {}

  std::unique_ptr<Backend> open(store::BackendOptions options = {}) const {
    options.credentials = store::credentials_of_environment();
    auto opened = store::open_backend(url_, options);
    if (!opened) throw std::runtime_error(opened.error().message);
    return std::move(opened).value();
  }

  PutOutcome put(const std::string& key, ByteView value) {
    const Result<PutOutcome> outcome = store_->put(key, value);
    EXPECT_TRUE(outcome.ok()) << outcome.error().message;
    return outcome.ok() ? *outcome : PutOutcome::kExisted;
  }

  // Throws when it is not there.
  Bytes get(const std::string& key) {
    const auto value = store_->get(key);
    if (!value) throw std::runtime_error(key + ": " + value.error().message);
    return value->value();
  }

  std::vector<Entry> list(const std::string& prefix) {
    std::vector<Entry> entries;
    const Result<void> done = store_->list(prefix, [&](const Entry& entry) -> Result<void> {
      entries.push_back(entry);
      return {};
    });
    EXPECT_TRUE(done.ok()) << done.error().message;
    return entries;
  }

  std::vector<std::string> keys(const std::string& prefix) {
    std::vector<std::string> all;
    for (const Entry& entry : list(prefix)) all.push_back(entry.key);
    return all;
  }

  TempDir folder_;
  std::string url_;
  std::unique_ptr<Backend> store_;
};

INSTANTIATE_TEST_SUITE_P(Store, AnyStore, testing::ValuesIn(test_backends()),
                         [](const auto& tested) { return tested.param.name; });

TEST_P(AnyStore, GivesBackWhatWasPut) {
  for (const std::size_t size : {0U, 1U, 4096U, 5U << 20U}) {
    const std::string key = "b/0/" + std::to_string(size);
    const Bytes value = value_of(key, size);
    EXPECT_EQ(put(key, value), PutOutcome::kStored);
    EXPECT_EQ(get(key), value) << size;
    EXPECT_TRUE(*store_->exists(key));
  }
}

TEST_P(AnyStore, TellsAMissFromAnEmptyValue) {
  const auto missing = store_->get("b/none");
  ASSERT_TRUE(missing.ok()) << missing.error().message;
  EXPECT_FALSE(missing->has_value());
  EXPECT_FALSE(*store_->exists("b/none"));
  put("b/empty", {});
  EXPECT_EQ(get("b/empty"), Bytes());
}

TEST_P(AnyStore, KeepsTheFirstValueOfAKey) {
  EXPECT_EQ(put(kBlobKey, as_bytes("first")), PutOutcome::kStored);
  EXPECT_EQ(put(kBlobKey, as_bytes("second")), PutOutcome::kExisted);
  EXPECT_TRUE(std::ranges::equal(get(kBlobKey), as_bytes("first")));
}

TEST_P(AnyStore, ReplacesAValueOrPutsTheFirst) {
  ASSERT_TRUE(store_->replace(kBlobKey, as_bytes("first")).ok());
  ASSERT_TRUE(store_->replace(kBlobKey, as_bytes("the second")).ok());
  EXPECT_TRUE(std::ranges::equal(get(kBlobKey), as_bytes("the second")));
  EXPECT_EQ(keys(""), std::vector<std::string>{kBlobKey});
  EXPECT_EQ(put(kBlobKey, as_bytes("third")), PutOutcome::kExisted);
}

// Several replace a value while others read it: there is always one.
TEST_P(AnyStore, NobodyMissesAValueThatIsReplaced) {
  ASSERT_TRUE(store_->replace("n/a", value_of("n/a", 3000)).ok());
  std::atomic<int> n_left = 3;
  std::vector<std::thread> writers;
  for (int i = 0; i < 3; ++i) {
    writers.emplace_back([&] {
      for (int n = 0; n < 20; ++n) EXPECT_TRUE(store_->replace("n/a", value_of("n/a", 3000)).ok());
      --n_left;
    });
  }
  while (n_left > 0) {
    const auto value = store_->get("n/a");
    EXPECT_TRUE(value.ok() && value->has_value() && **value == value_of("n/a", 3000));
  }
  for (std::thread& writer : writers) writer.join();
}

TEST_P(AnyStore, TakesEveryKeyThatIsAllowed) {
  std::vector<std::string> allowed = {
      "a",           "0",    "-",  "_",   "a/b", "a.b",
      "a/b.c/d-e_f", "a..b", "a.", "x/-", "b",   std::string(store::kMaxKeyBytes, 'k'),
      kBlobKey};
  for (const std::string& key : allowed) put(key, as_bytes(key));
  for (const std::string& key : allowed) EXPECT_TRUE(std::ranges::equal(get(key), as_bytes(key)));
  std::ranges::sort(allowed);
  EXPECT_EQ(keys(""), allowed);
}

TEST_P(AnyStore, RefusesEveryOtherKey) {
  for (const std::string& key :
       {std::string(), std::string("/a"), std::string("a/"), std::string("a//b"), std::string("."),
        std::string(".."), std::string("a/../b"), std::string("a/.b"), std::string("A"),
        std::string("a b"), std::string("a*"), std::string("a%2f"), std::string("a\0b", 3),
        std::string("\xc3\xa4"), std::string(store::kMaxKeyBytes + 1, 'k')}) {
    EXPECT_EQ(store_->put(key, {}).error().code, ErrorCode::kInvalidArgument) << key;
    EXPECT_EQ(store_->get(key).error().code, ErrorCode::kInvalidArgument) << key;
    EXPECT_EQ(store_->exists(key).error().code, ErrorCode::kInvalidArgument) << key;
    EXPECT_EQ(store_->remove(key).error().code, ErrorCode::kInvalidArgument) << key;
    EXPECT_EQ(store_->touch(std::vector{key}).error().code, ErrorCode::kInvalidArgument) << key;
  }
}

TEST_P(AnyStore, RefusesAPrefixThatNoKeyCanHave) {
  const auto ignore = [](const Entry&) -> Result<void> { return {}; };
  for (const std::string prefix : {"*", "/", "a//", "a/..", "A"}) {
    EXPECT_EQ(store_->list(prefix, ignore).error().code, ErrorCode::kInvalidArgument) << prefix;
  }
}

TEST_P(AnyStore, RefusesAValueAboveItsLimit) {
  store::BackendOptions options;
  options.max_value_bytes = 1000;
  const std::unique_ptr<Backend> store = open(options);
  EXPECT_EQ(store->put("a", Bytes(1001)).error().code, ErrorCode::kTooLarge);
  EXPECT_TRUE(store->put("b", Bytes(1000)).ok());
}

TEST_P(AnyStore, GetsSeveralInOrderWithMissesBetween) {
  std::vector<std::string> wanted;
  for (int i = 0; i < 40; ++i) {
    wanted.push_back("m/" + std::to_string(i));
    if (i % 3 != 1) put(wanted.back(), value_of(wanted.back(), static_cast<std::size_t>(i) * 1000));
  }
  std::size_t next = 0;
  const Result<void> done =
      store_->get(wanted, [&](std::size_t i, std::optional<ByteView> value) -> Result<void> {
        EXPECT_EQ(i, next++);
        EXPECT_EQ(value.has_value(), i % 3 != 1);
        EXPECT_TRUE(!value || std::ranges::equal(*value, value_of(wanted[i], i * 1000)));
        return {};
      });
  EXPECT_TRUE(done.ok()) << done.error().message;
  EXPECT_EQ(next, wanted.size());
  const auto found = store_->exists(wanted);
  ASSERT_TRUE(found.ok()) << found.error().message;
  for (std::size_t i = 0; i < wanted.size(); ++i) EXPECT_EQ((*found)[i], i % 3 != 1);
}

TEST_P(AnyStore, EndsAGetWithTheErrorOfItsSink) {
  put("a", {});
  put("b", {});
  const std::vector<std::string> wanted = {"a", "b"};
  int n_calls = 0;
  const Result<void> done =
      store_->get(wanted, [&](std::size_t, std::optional<ByteView>) -> Result<void> {
        ++n_calls;
        return Error{ErrorCode::kInterrupted, "enough"};
      });
  EXPECT_EQ(done.error().code, ErrorCode::kInterrupted);
  EXPECT_EQ(n_calls, 1);
  EXPECT_TRUE(store_->exists("a").ok());
}

TEST_P(AnyStore, PutsSeveralAndTellsWhichWereThere) {
  std::vector<Bytes> values;
  std::vector<std::string> names;
  for (int i = 0; i < 40; ++i) {
    names.push_back("p/" + std::to_string(i));
    values.push_back(value_of(names.back(), static_cast<std::size_t>(i) * 20'000));
  }
  put(names[7], values[7]);
  std::vector<Blob> blobs;
  for (std::size_t i = 0; i < names.size(); ++i) blobs.push_back({names[i], values[i]});
  const auto outcomes = store_->put(blobs);
  ASSERT_TRUE(outcomes.ok()) << outcomes.error().message;
  for (std::size_t i = 0; i < names.size(); ++i) {
    EXPECT_EQ((*outcomes)[i], i == 7 ? PutOutcome::kExisted : PutOutcome::kStored) << i;
    EXPECT_EQ(get(names[i]), values[i]);
  }
  EXPECT_TRUE(store_->put(std::vector<Blob>())->empty());
}

TEST_P(AnyStore, PutsOneKeyOnceWhenItComesTwice) {
  const std::vector<Blob> blobs = {{"a", as_bytes("1")}, {"a", as_bytes("2")}};
  const auto outcomes = store_->put(blobs);
  ASSERT_TRUE(outcomes.ok()) << outcomes.error().message;
  EXPECT_THAT(*outcomes, ElementsAre(PutOutcome::kStored, PutOutcome::kExisted));
  EXPECT_TRUE(std::ranges::equal(get("a"), as_bytes("1")));
}

TEST_P(AnyStore, ListsByPrefixInOrder) {
  for (const char* key : {"b/1/z", "b/1/a", "b/10/a", "b/2/a", "r/x", "b"})
    put(key, Bytes(300'000));
  EXPECT_THAT(keys("b/1/"), ElementsAre("b/1/a", "b/1/z"));
  EXPECT_THAT(keys("b/1"), ElementsAre("b/1/a", "b/1/z", "b/10/a"));
  EXPECT_THAT(keys(""), ElementsAre("b", "b/1/a", "b/1/z", "b/10/a", "b/2/a", "r/x"));
  EXPECT_THAT(keys("nothing"), ElementsAre());
  for (const Entry& entry : list("b/")) {
    EXPECT_GE(entry.bytes, 300'000u);
    EXPECT_LE(entry.bytes, GetParam().exact_sizes ? 300'000u : 500'000u);
    EXPECT_LE(entry.idle.value_or(std::chrono::seconds(0)), std::chrono::seconds(60));
  }
}

TEST_P(AnyStore, ListsMoreThanFitsIntoOneAnswer) {
  std::vector<std::string> names;
  for (int i = 0; i < GetParam().more_than_one_answer; ++i)
    names.push_back("many/" + std::to_string(i));
  std::vector<Blob> blobs;
  for (const std::string& name : names) blobs.push_back({name, as_bytes("x")});
  const auto outcomes = store_->put(blobs);
  ASSERT_TRUE(outcomes.ok()) << outcomes.error().message;
  std::ranges::sort(names);
  EXPECT_EQ(keys("many/"), names);
}

TEST_P(AnyStore, LetsTheSinkOfAListingUseTheStore) {
  put("a", {});
  put("b", {});
  const Result<void> done = store_->list("", [&](const Entry& entry) -> Result<void> {
    const Result<bool> removed = store_->remove(entry.key);
    return removed ? Result<void>() : removed.error();
  });
  EXPECT_TRUE(done.ok()) << done.error().message;
  EXPECT_THAT(keys(""), ElementsAre());
}

TEST_P(AnyStore, RemovesWhatIsThereAndSaysSo) {
  put("a", as_bytes("1"));
  EXPECT_TRUE(*store_->remove("a"));
  EXPECT_FALSE(*store_->remove("a"));
  EXPECT_FALSE(*store_->exists("a"));
  EXPECT_THAT(keys(""), ElementsAre());
  EXPECT_EQ(put("a", as_bytes("2")), PutOutcome::kStored);
  EXPECT_TRUE(std::ranges::equal(get("a"), as_bytes("2")));
  EXPECT_THAT(keys(""), ElementsAre("a"));
}

TEST_P(AnyStore, RemovesABadValueOnlyWhileItIsThere) {
  put("a", as_bytes("good"));
  EXPECT_FALSE(*store_->remove_if_same("a", as_bytes("bad!")));
  EXPECT_FALSE(*store_->remove_if_same("a", as_bytes("")));
  EXPECT_FALSE(*store_->remove_if_same("none", as_bytes("good")));
  EXPECT_TRUE(*store_->exists("a"));
  EXPECT_TRUE(*store_->remove_if_same("a", as_bytes("good")));
  EXPECT_FALSE(*store_->exists("a"));
}

TEST_P(AnyStore, TouchesWhatIsThereAndPassesOverTheRest) {
  put("a", as_bytes("value"));
  const Result<void> done = store_->touch(std::vector<std::string>{"none", "a"});
  EXPECT_TRUE(done.ok()) << done.error().message;
  EXPECT_TRUE(std::ranges::equal(get("a"), as_bytes("value")));
  EXPECT_THAT(keys(""), ElementsAre("a"));
}

TEST_P(AnyStore, StoresOneOfManyWritersOfAKey) {
  std::atomic<int> n_stored = 0;
  std::vector<std::thread> writers;
  for (int i = 0; i < 8; ++i) {
    writers.emplace_back([&, i] {
      n_stored += put("one", value_of(std::to_string(i), 200'000)) == PutOutcome::kStored ? 1 : 0;
    });
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_GE(n_stored, 1);
  EXPECT_LE(n_stored, GetParam().one_writer_stores ? 1 : 8);
  const Bytes winner = get("one");
  int n_equal = 0;
  for (int i = 0; i < 8; ++i) n_equal += winner == value_of(std::to_string(i), 200'000) ? 1 : 0;
  EXPECT_EQ(n_equal, 1);
}

// Operations in all; TQCACHE_STORE_TEST_OPS=100000 makes it a long test.
int operations() {
  const char* const asked = std::getenv("TQCACHE_STORE_TEST_OPS");
  return asked == nullptr ? 240 : std::atoi(asked);
}

TEST_P(AnyStore, ShowsNoTornValueToReadersBesideWriters) {
  constexpr int kThreads = 8;
  const int n_each = operations() / (2 * kThreads);
  const auto key_of = [](int i) { return "k/" + std::to_string(i % 97); };
  std::atomic<int> n_wrong = 0;
  std::atomic<int> n_found = 0;
  const auto write = [&](int begin) {
    for (int i = begin; i < begin + n_each; ++i) {
      const std::string key = key_of(i * 31);
      const Bytes value = value_of(key, size_of_value(key, 100'000));
      n_wrong += store_->put(key, value).ok() ? 0 : 1;
      // So that keys keep coming.
      if (i % 3 == 0) n_wrong += store_->remove(key_of(i * 17)).ok() ? 0 : 1;
    }
  };
  std::atomic<int> n_writing = kThreads;
  const auto read = [&](int begin) {
    for (int i = begin; i < begin + n_each || n_writing > 0; ++i) {
      const std::string key = key_of(i * 13);
      const auto value = store_->get(key);
      n_found += value && value->has_value() ? 1 : 0;
      const bool right =
          value && (!value->has_value() || **value == value_of(key, size_of_value(key, 100'000)));
      n_wrong += right ? 0 : 1;
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      write(i * 1000);
      --n_writing;
    });
  }
  for (int i = 0; i < kThreads; ++i) threads.emplace_back(read, i * 1000);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(n_wrong, 0);
  EXPECT_GT(n_found, 0);
}

TEST_P(AnyStore, IsTheSameForEveryoneWhoOpensIt) {
  if (!GetParam().many_processes) return;
  const std::unique_ptr<Backend> other = open();
  put("a", as_bytes("1"));
  EXPECT_EQ(*other->put("a", as_bytes("2")), PutOutcome::kExisted);
  EXPECT_TRUE(*other->remove("a"));
  EXPECT_FALSE(*store_->exists("a"));
}

}  // namespace conformance_test
}  // namespace tqcache::test
