// What is missing or damaged makes a prefix shorter, and is told once. Nothing wrong is used.

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <map>
#include <optional>

#include "store/altered_backend.h"
#include "store/blob_fixture.h"
#include "store/library_fixture.h"
#include "support/file_size_limit.h"
#include "support/matchers.h"
#include "support/temp_dir.h"
#include "tqcache/cache.h"
#include "tqcache/store/blobs/blob_keys.h"
#include "tqcache/store/blobs/chain_layout.h"

namespace tqcache::test {
namespace library_faults_test {

cache::Cache dense(std::int64_t n) { return CacheBuilder(n).dense(kHeads).build(); }
cache::Cache with_window(std::int64_t n) {
  return CacheBuilder(n).dense(kHeads).turbo_rotating({kHeads, 300, 0}, 4, 4).build();
}
cache::Cache with_state(std::int64_t n) { return CacheBuilder(n).dense(kHeads).arrays().build(); }

// Another good blob of the same kind, under the key of this one.
Bytes swapped(AlteredBackend& backend, const std::string& key, const std::string& other) {
  Bytes value = backend.value(other);
  backend.give(key, value);
  return value;
}

class Faults : public testing::Test {
 protected:
  // Of the prompt that was put last.
  std::string key_of_block(std::int64_t block) {
    return all_keys(backend_, "b/00000" + std::to_string(block) + "/").front();
  }
  void put_prompt(const cache::Cache& cache, std::string_view name = "a prompt") {
    put(library_, file_of(cache), name);
  }
  store::Prefix found(const cache::Cache& cache) {
    return must(library_.find(cache.identity, and_more(cache)));
  }
  // Fetches what is found, and holds it against the beginning of `cache`.
  void expect_prefix(const cache::Cache& cache, std::int64_t n_tokens) {
    expect_file(found(cache), cache, n_tokens);
    store::Prefix prefix = found(cache);
    const auto prompt = must(library_.fetch(prefix));
    EXPECT_EQ(prefix.n_tokens, n_tokens);
    EXPECT_EQ(prompt == nullptr, n_tokens == 0);
    if (prompt == nullptr) return;
    EXPECT_EQ(difference(load(*prompt), must(cache::truncate(cache, n_tokens))), "");
  }
  // The same for what is fetched to a file, with bad blobs read together with good ones and alone.
  void expect_file(const store::Prefix& wanted, const cache::Cache& cache, std::int64_t n_tokens) {
    for (const auto& options : {store::LibraryOptions(), one_blob_at_a_time()}) {
      store::Library library(backend_, options);
      store::Prefix prefix = wanted;
      const std::optional<Bytes> file = fetched_file(library, prefix);
      EXPECT_EQ(prefix.n_tokens, n_tokens);
      EXPECT_EQ(file.has_value(), n_tokens > 0);
      if (!file) continue;
      const cache::Cache shorter = must(cache::truncate(cache, n_tokens));
      EXPECT_EQ(difference(load(*file), shorter), "");
    }
  }
  bool is_there(const std::string& key) { return must(backend_.inner().exists(key)); }
  void damage(const std::string& key) {
    Bytes value = backend_.value(key);
    value[value.size() / 2] ^= std::byte{4};
    backend_.give(key, value);
  }

  AlteredBackend backend_;
  ToldLibrary told_{backend_};
  store::Library& library_ = told_.library;
};

TEST_F(Faults, ABlockThatIsGoneMakesThePrefixShorter) {
  const cache::Cache cache = dense(1100);
  put_prompt(cache);
  must(backend_.remove(key_of_block(2)));
  expect_prefix(cache, 512);
  EXPECT_TRUE(told_.told.empty());  // it was never promised
}

TEST_F(Faults, ABlockThatGoesMeanwhileMakesThePrefixShorter) {
  const cache::Cache cache = dense(1100);
  put_prompt(cache);
  store::Prefix prefix = found(cache);
  must(backend_.remove(key_of_block(3)));
  expect_file(prefix, cache, 768);
  const auto prompt = must(library_.fetch(prefix));
  EXPECT_EQ(prefix.n_tokens, 768);
  EXPECT_EQ(prefix.chain.size(), 3u);
  EXPECT_FALSE(prefix.snapshot);
  EXPECT_EQ(difference(load(*prompt), must(cache::truncate(cache, 768))), "");
  EXPECT_EQ(told_.told.size(), 1u);
}

TEST_F(Faults, NothingIsLeftWithoutTheFirstBlock) {
  const cache::Cache cache = dense(600);
  put_prompt(cache);
  store::Prefix prefix = found(cache);
  must(backend_.remove(key_of_block(0)));
  expect_file(prefix, cache, 0);
  EXPECT_EQ(must(library_.fetch(prefix)), nullptr);
  EXPECT_EQ(prefix.n_tokens, 0);
  EXPECT_EQ(must(library_.fetch(prefix)), nullptr);
}

TEST_F(Faults, ADamagedBlockIsReportedAndStays) {
  const cache::Cache cache = dense(1100);
  put_prompt(cache);
  const std::string key = key_of_block(1);
  damage(key);
  expect_prefix(cache, 256);
  ASSERT_EQ(told_.told.size(), 1u);
  EXPECT_NE(told_.told[0].find(key), std::string::npos);
  EXPECT_FALSE(library_.fetch(record_of(library_, "a prompt")).ok());
  EXPECT_TRUE(is_there(key));
  EXPECT_EQ(backend_.n_removals, 0u);
}

TEST_F(Faults, NoReaderRemovesADamagedRecordOrParameters) {
  const cache::Cache cache = dense(600);
  put_prompt(cache);
  for (const char* const kind : {"n/", "p/", "s/", "d/"}) damage(all_keys(backend_, kind).front());
  EXPECT_FALSE(must(library_.record("a prompt")));
  EXPECT_TRUE(must(library_.records()).empty());
  EXPECT_EQ(found(cache).n_tokens, 0);
  EXPECT_EQ(backend_.n_removals, 0u);
}

TEST_F(Faults, AReaderThatWillPutRemovesDamage) {
  const cache::Cache cache = dense(1100);
  put_prompt(cache);
  const std::string key = key_of_block(1);
  damage(key);
  store::Library library(backend_, {.remove_damaged = true});
  store::Prefix prefix = must(library.find(cache.identity, and_more(cache)));
  EXPECT_TRUE(must(library.fetch(prefix)));
  EXPECT_EQ(prefix.n_tokens, 256);
  EXPECT_FALSE(is_there(key));
}

// As with keys of S3 that may only read.
TEST_F(Faults, ARemovalThatFailsIsAWarning) {
  const cache::Cache cache = dense(1100);
  put_prompt(cache);
  damage(key_of_block(1));
  backend_.removals_fail = Error{ErrorCode::kInvalidArgument, "refused: HTTP 403"};
  std::vector<std::string> told;
  store::Library library(
      backend_, {.on_warning = [&](const std::string& message) { told.push_back(message); },
                 .remove_damaged = true});
  store::Prefix prefix = must(library.find(cache.identity, and_more(cache)));
  EXPECT_TRUE(must(library.fetch(prefix)));
  EXPECT_EQ(prefix.n_tokens, 256);
  ASSERT_EQ(told.size(), 2u);
  EXPECT_NE(told[1].find("cannot be removed: refused: HTTP 403"), std::string::npos);
}

// A record of a few KB can claim millions of blobs.
TEST_F(Faults, ARecordReadsNoMoreThanIsThere) {
  const cache::Cache cache = dense(600);
  put_prompt(cache);
  store::PromptRecord record = record_of(library_, "a prompt");
  record.chain.resize(200'000, record.chain.front());
  record.snapshot.n_tokens = 200'001 * 256;
  record.bytes = 0;
  backend_.n_gets = 0;
  EXPECT_EQ(library_.fetch(record).error().code, ErrorCode::kCorrupt);
  record.bytes = std::uint64_t{1} << 60;
  std::atomic<std::size_t> n_keys = 0;  // of any thread
  backend_.before_get = [&](const std::vector<std::string>& keys) { n_keys += keys.size(); };
  EXPECT_FALSE(library_.fetch(record).ok());
  EXPECT_LT(n_keys, 10'000u);
}

TEST_F(Faults, ABlockOfAnotherKeyIsReported) {
  const cache::Cache cache = dense(1100);
  put_prompt(cache);
  const std::string key = key_of_block(1);
  swapped(backend_, key, key_of_block(2));
  expect_prefix(cache, 256);
  EXPECT_EQ(told_.told.size(), 1u);
}

// As the block of a prompt would look that was made of another form with the same key.
TEST_F(Faults, ABlockOfOtherLayersIsReported) {
  const cache::Cache cache = dense(600);
  put_prompt(cache);
  const std::string key = key_of_block(1);
  const Bytes value = backend_.value(key);
  const SharedBytes blob(AlignedBytes(value.begin(), value.end()));
  auto block = std::get<store::Block>(must(store::decode_blob(key, blob)));
  block.sections.pop_back();
  backend_.give(key, must(store::encode_blob(key, store::Content(block))));
  expect_prefix(cache, 256);
  EXPECT_EQ(told_.told.size(), 1u);
}

// Somebody may have put a good one in the place of a bad one meanwhile.
TEST_F(Faults, OnlyWhatWasSeenToBeBadIsRemoved) {
  const cache::Cache cache = dense(600);
  put_prompt(cache);
  const std::string key = key_of_block(1);
  const Bytes good = backend_.value(key);
  Bytes bad = good;
  bad.back() ^= std::byte{1};
  backend_.give(key, bad);
  store::Prefix prefix = found(cache);
  // The backend returns the bad one, and then has the good one.
  class Late : public store::Backend {
   public:
    Late(AlteredBackend& inner, std::string key, Bytes good)
        : Backend("memory:", {}), inner_(inner), key_(std::move(key)), good_(std::move(good)) {}

   private:
    Result<std::vector<store::PutOutcome>> do_put(std::span<const store::Blob> b) override {
      return inner_.put(b);
    }
    Result<void> do_get(std::span<const std::string> k, const store::ValueSink& s) override {
      TQC_TRY(inner_.get(k, s));
      inner_.give(key_, good_);
      return {};
    }
    Result<std::vector<bool>> do_exists(std::span<const std::string> k) override {
      return inner_.exists(k);
    }
    Result<bool> do_remove(const std::string& k, std::optional<ByteView> only) override {
      return only ? inner_.remove_if_same(k, *only) : inner_.remove(k);
    }
    Result<void> do_list(const std::string& p, const store::EntrySink& s) override {
      return inner_.list(p, s);
    }
    Result<void> do_touch(std::span<const std::string> k) override { return inner_.touch(k); }

    AlteredBackend& inner_;
    std::string key_;
    Bytes good_;
  } late(backend_, key, good);
  store::Library library(late, {.remove_damaged = true});
  (void)must(library.fetch(prefix));
  EXPECT_EQ(prefix.n_tokens, 256);
  EXPECT_EQ(backend_.value(key), good);
}

TEST_F(Faults, LostDataOfATailLeavesTheBlocks) {
  const cache::Cache cache = dense(600);
  put_prompt(cache);
  must(backend_.remove(all_keys(backend_, "d/").front()));
  expect_prefix(cache, 512);
  EXPECT_EQ(told_.told.size(), 1u);
}

TEST_F(Faults, LostDataOfStateThatCannotBeCutLeavesNothing) {
  const cache::Cache cache = with_state(600);
  put_prompt(cache);
  must(backend_.remove(all_keys(backend_, "d/").front()));
  expect_prefix(cache, 0);
}

TEST_F(Faults, ALostBlockLeavesNothingOfStateThatCannotBeCut) {
  const cache::Cache cache = with_state(1100);
  put_prompt(cache);
  store::Prefix prefix = found(cache);
  EXPECT_EQ(prefix.n_tokens, 1100);
  must(backend_.remove(key_of_block(3)));
  EXPECT_EQ(must(library_.fetch(prefix)), nullptr);
}

TEST_F(Faults, DamagedDataOfATurboWindowLeavesNothingAndIsToldOnce) {
  const cache::Cache cache = with_window(700);
  put_prompt(cache);
  const std::string key = all_keys(backend_, "d/").front();
  Bytes value = backend_.value(key);
  value[value.size() / 2] ^= std::byte{1};
  backend_.give(key, value);
  expect_prefix(cache, 0);
  EXPECT_EQ(told_.told.size(), 1u);
}

// Its data is whole, but not all that the window has.
TEST_F(Faults, ATurboWindowThatLacksABlockIsNotUsed) {
  const cache::Cache cache = with_window(700);
  put_prompt(cache);
  const std::string key = all_keys(backend_, "s/").front();
  auto snapshot = decode_as<store::Snapshot>(key, backend_.value(key));
  const std::string data_key = snapshot.data_keys.front();
  auto data = decode_as<store::Data>(data_key, backend_.value(data_key));
  data.sections.erase(data.sections.begin(), data.sections.begin() + 2);  // token block 1
  snapshot.data_keys = {store::data_key(store::hash_namespace({cache.identity, ""}),
                                        store::data_content(data.sections))};
  backend_.give(snapshot.data_keys.front(),
                must(store::encode_blob(snapshot.data_keys.front(), data)));
  backend_.give(key, must(store::encode_blob(key, snapshot)));
  expect_prefix(cache, 0);
  EXPECT_EQ(told_.told.size(), 1u);
}

TEST_F(Faults, DataOfAnotherPromptIsNotUsed) {
  put_prompt(dense(600), "one");
  const std::string key = all_keys(backend_, "d/").front();
  const cache::Cache two = CacheBuilder(600, 2).dense(kHeads).build();
  put_prompt(two, "two");
  for (const std::string& other : all_keys(backend_, "d/")) {
    if (other != key) swapped(backend_, key, other);
  }
  expect_prefix(dense(600), 512);
}

TEST_F(Faults, DamagedParametersAreAMiss) {
  const cache::Cache cache = dense(600);
  put_prompt(cache);
  const std::string key = all_keys(backend_, "p/").front();
  Bytes value = backend_.value(key);
  value[100] ^= std::byte{1};
  backend_.give(key, value);
  EXPECT_EQ(found(cache).n_tokens, 0);
  put_prompt(cache, "again");  // and the next one to come puts them again
  EXPECT_EQ(found(cache).n_tokens, 600);
}

TEST_F(Faults, WhatALaterVersionPutIsAMissAndStays) {
  const cache::Cache cache = dense(600);
  put_prompt(cache);
  const std::string key = key_of_block(1);
  Bytes value = backend_.value(key);
  value[8] = std::byte{99};
  // The checksum of the header is that of the version before, unless somebody makes it anew.
  backend_.give(key, value);
  expect_prefix(cache, 256);
}

TEST_F(Faults, AFailingBackendIsAnError) {
  const cache::Cache cache = dense(600);
  put_prompt(cache);
  store::Prefix prefix = found(cache);
  backend_.all_fail = Error{ErrorCode::kIo, "gone"};
  EXPECT_EQ(library_.find(cache.identity, cache.tokens).error().code, ErrorCode::kIo);
  EXPECT_EQ(library_.fetch(prefix).error().code, ErrorCode::kIo);
  EXPECT_EQ(library_.record("a prompt").error().code, ErrorCode::kIo);
  EXPECT_EQ(library_.put_cache(cache, "b").error().code, ErrorCode::kIo);
  EXPECT_EQ(library_.records().error().code, ErrorCode::kIo);
  EXPECT_EQ(library_.remove("a").error().code, ErrorCode::kIo);
  EXPECT_EQ(library_.note_usage({}).error().code, ErrorCode::kIo);
}

TEST_F(Faults, FetchStopsWhenItIsAskedTo) {
  const cache::Cache cache = dense(600);
  put_prompt(cache);
  store::Prefix prefix = found(cache);
  const auto stop = [](std::uint64_t, std::uint64_t) { return false; };
  EXPECT_EQ(library_.fetch(prefix, stop).error().code, ErrorCode::kInterrupted);
  EXPECT_EQ(library_.put_cache(cache, "b", stop).error().code, ErrorCode::kInterrupted);
}

TEST_F(Faults, ARecordIsAllOrAnError) {
  const cache::Cache cache = dense(900);
  put_prompt(cache);
  const store::PromptRecord record = record_of(library_, "a prompt");
  const std::string key = key_of_block(1);
  const Bytes value = backend_.value(key);
  must(backend_.remove(key));
  EXPECT_THAT(library_.fetch(record),
              test::FailsWith(ErrorCode::kNotFound, testing::HasSubstr(key)));
  Bytes bad = value;
  bad.back() ^= std::byte{1};
  backend_.give(key, bad);
  EXPECT_EQ(library_.fetch(record).error().code, ErrorCode::kCorrupt);
}

// Parameters may have gone, and come back in another slot.
TEST_F(Faults, ARecordFindsItsParametersInAnySlot) {
  const cache::Cache cache = dense(600);
  put_prompt(cache);
  store::PromptRecord record = record_of(library_, "a prompt");
  record.parameters_key.back() = '5';
  EXPECT_EQ(difference(load(*must(library_.fetch(record))), cache), "");
  must(backend_.remove(all_keys(backend_, "p/").front()));
  EXPECT_EQ(library_.fetch(record).error().code, ErrorCode::kNotFound);
}

// Blocks of the same tokens, computed elsewhere, have other values.
TEST_F(Faults, ARecordTellsThatOtherBlocksCame) {
  const cache::Cache cache = dense(600);
  put_prompt(cache);
  const store::PromptRecord record = record_of(library_, "a prompt");
  must(backend_.remove(key_of_block(0)));
  cache::Cache other = CacheBuilder(600, 9).dense(kHeads).build();
  other.identity = cache.identity;
  other.tokens = cache.tokens;
  put(library_, file_of(other), "");
  EXPECT_EQ(library_.fetch(record).error().code, ErrorCode::kCorrupt);
}

// Its checksum fits: only decompressing and its SHA-256 show that it is no frame.
TEST_F(Faults, ASectionThatIsNoFrameIsAMiss) {
  const cache::Cache cache = dense(600);
  put(library_, file_of(cache, format::Compression::kPlanes), "a prompt");
  const std::string key = key_of_block(1);
  const Bytes value = backend_.value(key);
  const SharedBytes blob(AlignedBytes(value.begin(), value.end()));
  auto block = std::get<store::Block>(must(store::decode_blob(key, blob)));
  store::StoredSection& section = block.sections[0];
  ASSERT_EQ(section.info.compression, format::Compression::kPlanes);
  const ByteView stored = section.stored.view();
  AlignedBytes bad(stored.begin(), stored.end());
  std::fill_n(bad.begin() + 16, 64, std::byte{0xff});
  section.info.checksum = xxh3_128(bad);
  section.stored = SharedBytes(std::move(bad));
  backend_.give(key, must(store::encode_blob(key, store::Content(block))));

  store::Prefix prefix = found(cache);
  const auto prompt = must(library_.fetch(prefix));
  EXPECT_EQ(prefix.n_tokens, cache::kTokenBlock);
  EXPECT_EQ(must(cache::load(*prompt)).n_tokens(), cache::kTokenBlock);
}

// A layer of so many bytes that a block stands in several blobs, the first of which is good.
TEST_F(Faults, AFileEndsBeforeABlockWithABadPart) {
  CacheBuilder builder(600);
  for (int layer = 0; layer < 5; ++layer) builder.dense({8, 256});
  const cache::Cache cache = builder.build();
  put_prompt(cache);
  damage(all_keys(backend_, "b/000001/").back());
  expect_file(found(cache), cache, 256);
}

TEST_F(Faults, AFailureOfTheFileIsNoMiss) {
  const cache::Cache cache = dense(600);
  put_prompt(cache);
  const TempDir folder;
  for (const auto& options : {store::LibraryOptions(), one_blob_at_a_time()}) {
    for (const auto& path : {folder / "x.tqkv", std::filesystem::path("/dev/full")}) {
      store::Library library(backend_, options);
      store::Prefix prefix = found(cache);
      AtomicFile file = must(AtomicFile::create(path, Overwrite::kRefuse));
      const FileSizeLimit limit(1000);
      EXPECT_EQ(library.fetch_to(file, prefix).error().code, ErrorCode::kIo);
      EXPECT_EQ(prefix.n_tokens, 600);
      EXPECT_EQ(file.write({}).error().code, ErrorCode::kIo);
    }
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

// So that the backend drops used blobs last; where a touch is a copy, only small blobs are touched.
TEST_F(Faults, TouchesUsedBlobs) {
  const cache::Cache cache = dense(600);
  put_prompt(cache);
  const auto touched = [&] {
    backend_.touched.clear();
    store::Prefix prefix = found(cache);
    (void)must(library_.fetch(prefix));
    std::ranges::sort(backend_.touched);
    return backend_.touched;
  };
  std::vector<std::string> all = all_keys(backend_);
  // What stands behind a block is as old as the block: gc.
  std::erase_if(all, [](const std::string& key) { return key[0] == 'n' || key[0] == 'c'; });
  EXPECT_EQ(touched(), all);
  backend_.is_touched_cheaply = false;
  EXPECT_EQ(touched(), all_keys(backend_, "s/"));
  backend_.touched.clear();
  (void)must(library_.fetch(record_of(library_, "a prompt")));
  EXPECT_EQ(backend_.touched.front(), all_keys(backend_, "n/").front());
}

TEST_F(Faults, FindsInThreeBatches) {
  const cache::Cache cache = dense(5000);
  put_prompt(cache);
  backend_.n_gets = 0;
  backend_.n_exists = 0;
  EXPECT_EQ(found(cache).n_tokens, 5000);
  EXPECT_EQ(backend_.n_gets, 2u);
  EXPECT_EQ(backend_.n_exists, 1u);
}

}  // namespace library_faults_test
}  // namespace tqcache::test
