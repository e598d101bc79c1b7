// What is put stays, once, and what a record says is there.

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <thread>

#include "store/altered_backend.h"
#include "store/library_fixture.h"
#include "support/matchers.h"
#include "tqcache/cache.h"
#include "tqcache/store/blobs/blob_keys.h"
#include "tqcache/store/library/chain_writer.h"

namespace tqcache::test {
namespace library_put_test {

cache::Cache dense(std::int64_t n, std::uint64_t seed = 1) {
  return CacheBuilder(n, seed).dense(kHeads).build();
}

// The same tokens, as another machine computed them.
cache::Cache computed_elsewhere(const cache::Cache& cache) {
  cache::Cache other = dense(cache.n_tokens(), 99);
  other.identity = cache.identity;
  other.tokens = cache.tokens;
  return other;
}

class Put : public testing::Test {
 protected:
  Result<store::PutReport> try_put(const cache::Cache& cache, std::string_view name,
                                   const store::PutOptions& options = {}) {
    return library_.put_file(*memory_source(file_of(cache)), name, {}, options);
  }
  ErrorCode refusal(const cache::Cache& cache, std::string_view name) {
    return try_put(cache, name).error().code;
  }
  cache::Cache fetched(std::string_view name) {
    return load(*must(library_.fetch(record_of(library_, name))));
  }
  std::string first_key(const std::string& prefix) { return all_keys(backend_, prefix).front(); }

  AlteredBackend backend_;
  ToldLibrary told_{backend_};
  store::Library& library_ = told_.library;
};

TEST_F(Put, WritesWhatIsNeededBeforeWhatNeedsIt) {
  CacheBuilder builder(600);
  for (int layer = 0; layer < 5; ++layer) builder.dense({8, 256});  // 5 blobs a block
  must(try_put(builder.build(), "a prompt"));
  std::set<std::string> there;
  for (const auto& keys : backend_.puts) {
    for (const std::string& key : keys) {
      EXPECT_TRUE(key[0] != 'b' || there.contains(first_key("p/")));
      if (!key.ends_with("/0")) continue;
      const std::string block = key.substr(0, key.size() - 1);
      if (key[0] == 'b') {
        for (const char* part : {"1", "2", "3", "4"}) EXPECT_TRUE(there.contains(block + part));
      }
      EXPECT_TRUE(key[0] != 's' || there.contains(first_key("d/")));
    }
    there.insert(keys.begin(), keys.end());
  }
  ASSERT_EQ(backend_.puts.back().size(), 1u);
  EXPECT_EQ(backend_.puts.back()[0][0], 'n');
  EXPECT_EQ(there.size(), all_keys(backend_).size());
}

TEST_F(Put, DoesNotStoreExistingBlobsAgain) {
  const cache::Cache cache = dense(1000);
  must(try_put(cache, "one"));
  const std::size_t n_keys = all_keys(backend_).size();
  const auto report = must(try_put(cache, "two"));
  EXPECT_EQ(report.new_blocks, 0);
  EXPECT_EQ(report.blocks, 3);
  EXPECT_EQ(report.other_blocks, 0);
  EXPECT_EQ(report.new_bytes, 0u);
  EXPECT_EQ(all_keys(backend_).size(), n_keys + 1);
  EXPECT_EQ(record_of(library_, "two").bytes, record_of(library_, "one").bytes);
  EXPECT_EQ(difference(fetched("two"), cache), "");
}

TEST_F(Put, CountsTheBytesOfItsBlobs) {
  const auto report = must(try_put(dense(1000), "one"));
  std::uint64_t bytes = 0, bytes_of_next = 0;
  must(backend_.list("", [&](const store::Entry& entry) -> Result<void> {
    if (entry.key[0] == 'c') bytes_of_next += entry.bytes;
    if (entry.key[0] != 'n' && entry.key[0] != 'c') bytes += entry.bytes;
    return {};
  }));
  EXPECT_GT(bytes_of_next, 0u);
  EXPECT_EQ(report.bytes, bytes + bytes_of_next);
  EXPECT_EQ(report.new_bytes, report.bytes);
  EXPECT_EQ(record_of(library_, "one").bytes, bytes);
}

TEST_F(Put, RefusesWhatNobodyCouldFind) {
  EXPECT_EQ(refusal(CacheBuilder(600).dense(kHeads).hide_tokens().build(), "a"),
            ErrorCode::kUnsupported);
  EXPECT_EQ(refusal(CacheBuilder(600).dense(kHeads).forget_tokens().build(), "a"),
            ErrorCode::kUnsupported);
  cache::Cache unknown = dense(600);
  unknown.identity.architecture.clear();
  EXPECT_EQ(refusal(unknown, "a"), ErrorCode::kUnsupported);
  unknown = dense(600);
  unknown.identity.weights_fingerprint = {};
  EXPECT_EQ(refusal(unknown, "a"), ErrorCode::kUnsupported);
  EXPECT_EQ(refusal(dense(0), "a"), ErrorCode::kInvalidArgument);
  EXPECT_TRUE(all_keys(backend_).empty());
}

TEST_F(Put, TakesNamesOf512Bytes) {
  must(try_put(dense(10), std::string(512, 'n')));
  EXPECT_EQ(refusal(dense(10), std::string(513, 'n')), ErrorCode::kInvalidArgument);
  EXPECT_EQ(must(library_.records()).size(), 1u);
}

TEST_F(Put, KeepsWhatHasTheNameUnlessItIsToBeReplaced) {
  const cache::Cache one = dense(600);
  const cache::Cache two = dense(700, 2);
  must(try_put(one, "a prompt"));
  EXPECT_EQ(refusal(two, "a prompt"), ErrorCode::kInvalidArgument);
  EXPECT_EQ(difference(fetched("a prompt"), one), "");
  must(try_put(one, "a prompt"));
  must(try_put(two, "a prompt", {.replace = true, .created = 77}));
  EXPECT_EQ(difference(fetched("a prompt"), two), "");
  EXPECT_EQ(record_of(library_, "a prompt").created, 77);
}

TEST_F(Put, RefusesAnotherComputationOfTheSameTokensUnderTheName) {
  const cache::Cache cache = dense(200);
  must(try_put(cache, "a prompt"));
  EXPECT_EQ(refusal(computed_elsewhere(cache), "a prompt"), ErrorCode::kInvalidArgument);
}

TEST_F(Put, DamagedFilesAreNotPut) {
  Bytes file = file_of(dense(600));
  file[200] ^= std::byte{1};  // in a section
  const auto done = library_.put_file(*memory_source(file), "a");
  ASSERT_FALSE(done.ok());
  EXPECT_EQ(done.error().code, ErrorCode::kCorrupt);
  EXPECT_TRUE(all_keys(backend_, "n/").empty());
  EXPECT_TRUE(all_keys(backend_, "b/").empty());
}

// What others computed of the same tokens stays, and is what the record then stands for.
TEST_F(Put, TakesTheBlocksThatAreThereAlready) {
  const cache::Cache cache = dense(700);
  const cache::Cache other = computed_elsewhere(cache);
  must(try_put(cache, ""));
  const auto report = must(try_put(other, "a prompt"));
  EXPECT_EQ(report.other_blocks, 2);
  EXPECT_EQ(report.new_blocks, 0);
  EXPECT_NE(report.content_name, name_of(file_of(other)));
  EXPECT_EQ(record_of(library_, "a prompt").snapshot.content_name, report.content_name);
  const cache::Cache back = fetched("a prompt");
  EXPECT_EQ(difference(must(cache::truncate(back, 512)), must(cache::truncate(cache, 512))), "");
  EXPECT_NE(difference(back, cache), "");  // the tail is its own
}

// Whoever asks in between finds the old prompt or the new one.
TEST_F(Put, ReplacesARecordInOneStep) {
  must(try_put(dense(700, 1), "a prompt"));
  bool was_there = true;
  backend_.before_put = [&](const std::vector<std::string>&) {
    was_there = was_there && must(backend_.inner().exists(first_key("n/")));
  };
  const cache::Cache other = dense(700, 2);
  must(try_put(other, "a prompt", {.replace = true}));
  EXPECT_TRUE(was_there);
  EXPECT_EQ(backend_.n_removals, 0u);
  EXPECT_EQ(difference(fetched("a prompt"), other), "");
}

// Both succeed, and the last one stays.
TEST_F(Put, TwoReplaceANameAtOnce) {
  const cache::Cache mine = dense(300, 1);
  const cache::Cache other = dense(300, 2);
  bool done = false;
  backend_.before_put = [&](const std::vector<std::string>& keys) {
    if (keys[0][0] != 'n' || std::exchange(done, true)) return;
    must(try_put(other, "a prompt", {.replace = true}));
  };
  must(try_put(mine, "a prompt", {.replace = true}));
  EXPECT_EQ(difference(fetched("a prompt"), mine), "");
}

TEST_F(Put, ADamagedRecordKeepsNoName) {
  const cache::Cache cache = dense(300);
  must(try_put(cache, "a prompt"));
  Bytes value = backend_.value(first_key("n/"));
  value.back() ^= std::byte{1};
  backend_.give(first_key("n/"), value);
  must(try_put(cache, "a prompt"));
  EXPECT_EQ(difference(fetched("a prompt"), cache), "");
}

TEST_F(Put, ReplacesDamagedBlobs) {
  const cache::Cache cache = dense(700);
  must(try_put(cache, "one"));
  const std::string key = first_key("b/000001/");
  Bytes value = backend_.value(key);
  value.back() ^= std::byte{1};
  backend_.give(key, value);
  EXPECT_EQ(must(try_put(cache, "two")).new_blocks, 1);
  EXPECT_EQ(told_.told.size(), 1u);
  EXPECT_EQ(difference(fetched("one"), cache), "");
}

TEST_F(Put, PutsAgainWhatGoesMeanwhile) {
  const cache::Cache cache = dense(700);
  int left = 2;
  backend_.before_exists = [&](const std::vector<std::string>& keys) {
    const bool is_check = std::ranges::any_of(keys, [](auto& key) { return key[0] == 'p'; });
    if (!is_check || left-- <= 0) return;
    must(backend_.inner().remove(all_keys(backend_, "b/000001/").front()));
  };
  must(try_put(cache, "a prompt"));
  EXPECT_LT(left, 1);
  EXPECT_EQ(difference(fetched("a prompt"), cache), "");
}

TEST_F(Put, GivesUpIfTheBackendDropsEverything) {
  backend_.before_exists = [&](const std::vector<std::string>&) {
    for (const std::string& key : all_keys(backend_, "b/")) must(backend_.inner().remove(key));
  };
  EXPECT_EQ(refusal(dense(700), "a prompt"), ErrorCode::kTooLarge);
  EXPECT_TRUE(all_keys(backend_, "n/").empty());
}

// The blocks stay findable, and the record has its own state; no prefix ends with it.
TEST_F(Put, DoesWithoutASlotWhenAllAreTaken) {
  const cache::Cache first = dense(300);
  for (int i = 0; i <= store::kStateSlots; ++i) {
    cache::Cache cache = first;
    cache.tokens.back() = i;
    must(try_put(cache, "prompt " + std::to_string(i)));
    if (i % 64 != 0) continue;
    EXPECT_EQ(difference(fetched("prompt " + std::to_string(i)), cache), "");
    const auto prefix = must(library_.find(cache.identity, and_more(cache)));
    EXPECT_EQ(prefix.n_tokens, i < store::kStateSlots ? 300 : 256);
  }
  EXPECT_TRUE(record_of(library_, "prompt 256").state_key.empty());
}

TEST_F(Put, RecordsComeInTheOrderOfTheirNames) {
  for (const char* name : {"b", "c", "a"}) must(try_put(dense(100), name));
  std::string names;
  for (const store::PromptRecord& record : must(library_.records())) names += record.name;
  EXPECT_EQ(names, "abc");
  EXPECT_TRUE(must(library_.remove("b")));
  EXPECT_FALSE(must(library_.remove("b")));
  EXPECT_FALSE(must(library_.record("b")));
  EXPECT_EQ(must(library_.records()).size(), 2u);
}

TEST_F(Put, ARecordUnderAnotherNameIsNone) {
  must(try_put(dense(100), "one"));
  const std::string one = first_key("n/");
  const std::string two = store::record_key("", "two");
  must(backend_.put(two, backend_.value(one)));
  EXPECT_FALSE(must(library_.record("two")));
  EXPECT_EQ(told_.told.size(), 1u);
}

TEST_F(Put, NotesUsageUnderAKeyOfItsOwn) {
  must(library_.note_usage({1, 600, 512, 3, 4}));
  must(library_.note_usage({1, 600, 512, 3, 4}));
  EXPECT_EQ(all_keys(backend_, "u/").size(), 2u);
}

// --- Standing: what nobody could make sure of

TEST_F(Put, RefusesAShiftedContext) {
  cache::Cache cache = dense(700);
  cache.identity.standing = cache::Standing::kShifted;
  for (const char* name : {"a", ""}) {
    EXPECT_THAT(
        try_put(cache, name),
        test::FailsWith(ErrorCode::kUnsupported, testing::HasSubstr("its context was shifted")));
  }
  EXPECT_TRUE(all_keys(backend_).empty());
}

TEST_F(Put, GivesBackAnUncheckedPromptByItsNameAlone) {
  cache::Cache cache = dense(700);
  cache.identity.standing = cache::Standing::kUnchecked;
  EXPECT_EQ(refusal(cache, ""), ErrorCode::kUnsupported);
  must(try_put(cache, "a"));
  EXPECT_EQ(record_of(library_, "a").standing, cache::Standing::kUnchecked);
  EXPECT_EQ(must(library_.find(cache.identity, and_more(cache))).n_tokens, 0);
  const cache::Cache again = fetched("a");
  EXPECT_EQ(again.identity.standing, cache::Standing::kUnchecked);
  EXPECT_EQ(difference(again, cache), "");
  EXPECT_EQ(load(fetched_file(library_, "a")).identity.standing, cache::Standing::kUnchecked);
  EXPECT_TRUE(told_.told.empty());
}

// Other values under the same token ids: neither takes the place of the other.
TEST_F(Put, AnUncheckedPromptSharesNothingWithACheckedOne) {
  const cache::Cache checked = dense(700);
  cache::Cache unchecked = computed_elsewhere(checked);
  unchecked.identity.standing = cache::Standing::kUnchecked;
  for (const bool first : {false, true}) {
    const std::string before = first ? "b" : "a", after = first ? "d" : "c";
    const auto one = must(try_put(first ? unchecked : checked, before));
    const auto two = must(try_put(first ? checked : unchecked, after));
    EXPECT_EQ(one.other_blocks + two.other_blocks, 0);
    EXPECT_EQ(difference(fetched(first ? before : after), unchecked), "");
    EXPECT_EQ(difference(fetched(first ? after : before), checked), "");
  }
  store::Prefix prefix = must(library_.find(checked.identity, and_more(checked)));
  EXPECT_EQ(prefix.n_tokens, 700);
  EXPECT_EQ(prefix.parameters.identity.standing, cache::Standing::kNone);
  EXPECT_EQ(difference(load(*must(library_.fetch(prefix))), checked), "");
}

// A record is that of the prompt that it names, so a check finds it whole.
TEST_F(Put, AnUncheckedPromptWithoutAFinalBlockKeepsItsStanding) {
  cache::Cache cache = dense(40);
  cache.identity.standing = cache::Standing::kUnchecked;
  must(try_put(cache, "short"));
  EXPECT_EQ(fetched("short").identity.standing, cache::Standing::kUnchecked);
}

TEST_F(Put, KeepsLatents) {
  const cache::Cache cache = CacheBuilder(700)
                                 .unequal({1, 512}, 64, Dtype::kBF16, 16, Dtype::kBF16, 16)
                                 .unequal({2, 96}, 64, Dtype::kF16, 4, Dtype::kF16, 3)
                                 .rotating({{1, 8}, 100, 0, 6})
                                 .build();
  must(try_put(cache, "a"));
  EXPECT_EQ(difference(fetched("a"), cache), "");
  EXPECT_EQ(must(library_.find(cache.identity, and_more(cache))).n_tokens, 700);
}

TEST_F(Put, StopsWhenItIsAskedTo) {
  const auto stop = [](std::uint64_t, std::uint64_t) { return false; };
  const auto done = library_.put_file(*memory_source(file_of(dense(700))), "a", stop);
  EXPECT_EQ(done.error().code, ErrorCode::kInterrupted);
  EXPECT_TRUE(all_keys(backend_, "n/").empty());
}

// Many may put one prompt at the same time, and prompts that begin alike.
TEST(PutTogether, WritersOfOneChainDoEachOtherNoHarm) {
  for (int round = 0; round < 20; ++round) {
    const auto backend = open_store();
    const cache::Cache cache = dense(1500);
    std::vector<std::thread> writers;
    std::vector<Result<store::PutReport>> done(4, Error{ErrorCode::kIo, ""});
    for (int i = 0; i < 4; ++i) {
      writers.emplace_back([&, i] {
        store::Library library(*backend, {.n_threads = 1});
        const cache::Cache mine = must(cache::truncate(cache, 1500 - 300 * i));
        done[static_cast<std::size_t>(i)] = library.put_cache(mine, "prompt " + std::to_string(i));
      });
    }
    for (std::thread& writer : writers) writer.join();
    store::Library library(*backend, {});
    std::int64_t new_blocks = 0;
    for (int i = 0; i < 4; ++i) {
      new_blocks += must(done[static_cast<std::size_t>(i)]).new_blocks;
      const auto prompt = must(library.fetch(record_of(library, "prompt " + std::to_string(i))));
      EXPECT_EQ(difference(load(*prompt), must(cache::truncate(cache, 1500 - 300 * i))), "");
    }
    EXPECT_EQ(new_blocks, 5);
    EXPECT_EQ(all_keys(*backend, "b/").size(), 5u);
    EXPECT_EQ(all_keys(*backend, "p/").size(), 1u);
  }
}

}  // namespace library_put_test
}  // namespace tqcache::test
