// Encrypted stores: what they hold, what they show, and what somebody without the key can do.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "library_fixture.h"
#include "support/matchers.h"
#include "tqcache/hash.h"
#include "tqcache/store/backends/encrypted_backend.h"
#include "tqcache/store/blobs/blob_keys.h"
#include "tqcache/upkeep.h"

namespace tqcache::test {
namespace store_encryption_test {

KeyRing ring(int n) { return must(KeyRing::parse(Bytes(32, std::byte(n)))); }

cache::Cache prompt_of(std::int64_t n_tokens) {
  return CacheBuilder(n_tokens).dense(kHeads).turbo(kHeads, 4, 3).build();
}

// A store in a folder, seen with a key and without.
class EncryptedStore : public testing::Test {
 protected:
  std::unique_ptr<store::Backend> open(const KeyRing& keys = ring(1)) const {
    return must(store::open_backend("dir:" + (dir_ / "store").string(), {.keys = keys}));
  }
  static store::Library library(store::Backend& backend, const KeyRing& keys = ring(1),
                                const std::string& salt = {}) {
    return {backend, {.salt = store::secret_salt(keys, salt), .n_threads = 1}};
  }
  // Puts a prompt under the name "a".
  store::PutReport put_prompt(const Bytes& file) const {
    const auto backend = open();
    store::Library to = library(*backend);
    return put(to, file, "a", {.access = {ring(1)}});
  }
  std::vector<Bytes> stored_values() const {
    const auto plain = open({});
    std::vector<Bytes> values;
    for (const std::string& key : all_keys(*plain)) values.push_back(*must(plain->get(key)));
    return values;
  }
  TempDir dir_;
};

TEST_F(EncryptedStore, GivesBackWhatWasPut) {
  const cache::Cache cache = prompt_of(600);
  const Bytes file = file_of(cache);
  put_prompt(file);
  const auto backend = open();
  store::Library from = library(*backend);
  const auto prompt = must(from.fetch(record_of(from, "a")));
  EXPECT_EQ(difference(load(*prompt), cache), "");
  EXPECT_EQ(name_of(fetched_file(from, "a")), name_of(file));
  auto prefix = must(from.find(cache.identity, and_more(cache)));
  EXPECT_EQ(prefix.n_tokens, 600);
  EXPECT_EQ(put_prompt(file).new_bytes, 0u);
}

TEST_F(EncryptedStore, TakesEncryptedFilesAndGivesThem) {
  const cache::Cache cache = prompt_of(600);
  for (const auto compression : {format::Compression::kNone, format::Compression::kPlanes}) {
    const Bytes file =
        must(format::write_cache_bytes(cache, {.compression = compression, .keys = ring(1)}));
    put_prompt(file);
    const auto backend = open();
    store::Library from = library(*backend);
    AtomicFile out = must(AtomicFile::create(dir_ / "out.tqkv", Overwrite::kAllow));
    must(from.fetch_to(out, record_of(from, "a"), ring(1)));
    must(out.commit());
    const auto source = must(open_file(dir_ / "out.tqkv"));
    EXPECT_EQ(format::read_cache_info(*source).error().code, ErrorCode::kNoKey);
    EXPECT_EQ(difference(must(format::read_cache(*source, {.access = {ring(1)}})), cache), "");
    std::filesystem::remove_all(dir_ / "store");
  }
}

TEST_F(EncryptedStore, ShowsNothingOfItsContent) {
  const cache::Cache cache = prompt_of(600);
  const Bytes file = file_of(cache);
  put_prompt(file);
  std::vector<ByteView> secrets = {as_bytes(cache.identity.architecture),
                                   object_bytes(cache.tokens).first(64)};
  for (const auto& section : must(format::read_cache_info(*memory_source(file))).sections) {
    secrets.push_back(ByteView(file).subspan(section.file_offset + 64, 32));
  }
  const std::vector<Bytes> values = stored_values();
  EXPECT_GT(values.size(), 3u);
  for (const Bytes& value : values) {
    for (const ByteView secret : secrets) {
      EXPECT_EQ(std::search(value.begin(), value.end(), secret.begin(), secret.end()), value.end());
    }
  }
}

TEST_F(EncryptedStore, NobodyCanAskForAPromptWithoutTheKey) {
  const cache::Cache cache = prompt_of(600);
  put_prompt(file_of(cache));
  const auto backend = open();
  for (const KeyRing& keys : {KeyRing(), ring(2)}) {
    store::Library other = library(*backend, keys);
    EXPECT_EQ(must(other.find(cache.identity, and_more(cache))).n_tokens, 0);
    EXPECT_FALSE(must(other.record("a")));
  }
  store::Library other_tenant = library(*backend, ring(1), "another salt");
  EXPECT_EQ(must(other_tenant.find(cache.identity, and_more(cache))).n_tokens, 0);
  EXPECT_NE(store::secret_salt(ring(1), ""), store::secret_salt(ring(2), ""));
  EXPECT_EQ(store::secret_salt({}, "salt"), "salt");
}

TEST_F(EncryptedStore, IsNotCollectedOrRepairedWithoutItsKey) {
  put_prompt(file_of(prompt_of(600)));
  const std::vector<Bytes> before = stored_values();
  for (const KeyRing& keys : {KeyRing(), ring(2)}) {
    const auto backend = open(keys);
    const auto collected = store::collect(*backend, {.grace = std::chrono::seconds(0)});
    ASSERT_FALSE(collected.ok());
    EXPECT_EQ(collected.error().code, ErrorCode::kNoKey) << collected.error().message;
    const auto checked = store::check(*backend, {.repair = true});
    ASSERT_FALSE(checked.ok());
    EXPECT_EQ(checked.error().code, ErrorCode::kNoKey);
  }
  EXPECT_EQ(stored_values(), before);
  const auto backend = open();
  EXPECT_TRUE(store::collect(*backend, {.grace = std::chrono::seconds(0)}).ok());
  const auto report = must(store::check(*backend, {}));
  EXPECT_EQ(report.damaged, 0u);
  EXPECT_EQ(stored_values(), before);
}

TEST_F(EncryptedStore, RefusesPlainValues) {
  const cache::Cache cache = prompt_of(600);
  {  // What an attacker with access to the backend, and the names, could put.
    const auto plain = open({});
    store::Library to = library(*plain);
    put(to, file_of(cache), "a");
  }
  const auto backend = open();
  store::Library from = library(*backend);
  EXPECT_EQ(must(from.find(cache.identity, and_more(cache))).n_tokens, 0);
  EXPECT_FALSE(store::collect(*backend, {.grace = std::chrono::seconds(0)}).ok());
}

TEST_F(EncryptedStore, AChangedValueIsAMissAndIsReplaced) {
  const cache::Cache cache = prompt_of(300);
  const Bytes file = file_of(cache);
  put_prompt(file);
  const auto plain = open({});
  for (const std::string& key : all_keys(*plain, "b/")) {
    Bytes value = *must(plain->get(key));
    value[value.size() / 2] ^= std::byte{1};
    must(plain->remove(key));
    must(plain->put(key, value));
  }
  const auto backend = open();
  store::Library from = library(*backend);
  auto prefix = must(from.find(cache.identity, and_more(cache)));
  if (prefix.n_tokens > 0) {
    EXPECT_EQ(must(from.fetch(prefix)), nullptr);
  }
  put_prompt(file);
  EXPECT_EQ(difference(load(*must(from.fetch(record_of(from, "a")))), cache), "");
}

TEST_F(EncryptedStore, AValueIsBoundToItsName) {
  const auto plain = must(store::open_backend("memory:", {}));
  const Bytes value(100, std::byte{7});
  const Bytes sealed = must(store::seal_value(ring(1), "b/x", value));
  EXPECT_NE(sealed, must(store::seal_value(ring(1), "b/x", value)));  // another key each time
  const auto opened = [&](const Bytes& bytes, const std::string& key, const KeyRing& keys) {
    auto inner = must(store::open_backend("memory:", {}));
    must(inner->put(key, bytes));
    return *must(store::encrypted_backend(std::move(inner), keys, {})->get(key));
  };
  EXPECT_EQ(opened(sealed, "b/x", ring(1)), value);
  EXPECT_EQ(opened(sealed, "b/x", ring(2).with(ring(1))), value);
  EXPECT_NE(opened(sealed, "b/y", ring(1)), value);
  EXPECT_NE(opened(sealed, "b/x", ring(2)), value);
  for (std::size_t at = 0; at < sealed.size(); ++at) {
    Bytes changed = sealed;
    changed[at] ^= std::byte{4};
    const Bytes found = opened(changed, "b/x", ring(1));
    EXPECT_EQ(found.size(), 64u) << at;
    EXPECT_NE(found, value);
  }
  for (std::size_t size = 1; size < sealed.size(); ++size) {
    EXPECT_EQ(
        opened(Bytes(sealed.begin(), sealed.begin() + std::ptrdiff_t(size)), "b/x", ring(1)).size(),
        64u);
  }
  EXPECT_EQ(opened({}, "b/x", ring(1)).size(), 0u);  // of no kind, as without a key
}

TEST_F(EncryptedStore, ReplacesValues) {
  const auto backend = open();
  must(backend->put("n/x", as_bytes("one")));
  must(backend->replace("n/x", as_bytes("two")));
  EXPECT_EQ(*must(backend->get("n/x")), Bytes(as_bytes("two").begin(), as_bytes("two").end()));
}

TEST_F(EncryptedStore, RemovesOnlyTheValueThatWasSeen) {
  const auto backend = open();
  must(backend->put("b/x", as_bytes("one")));
  EXPECT_FALSE(must(backend->remove_if_same("b/x", as_bytes("two"))));
  EXPECT_EQ(*must(backend->get("b/x")), Bytes(as_bytes("one").begin(), as_bytes("one").end()));
  EXPECT_TRUE(must(backend->remove_if_same("b/x", as_bytes("one"))));
  EXPECT_FALSE(must(backend->exists("b/x")));
}

// Programs from before encryption know version 1: they report a later one, and remove nothing.
TEST_F(EncryptedStore, IsALaterVersionForOlderPrograms) {
  const Bytes sealed = must(store::seal_value(ring(1), "b/x", Bytes(10)));
  EXPECT_EQ(number_at<std::uint32_t>(sealed, 8), 2u);
  EXPECT_EQ(number_at<std::uint64_t>(sealed, 56), xxh3_64(ByteView(sealed).first(56)));
}

TEST_F(EncryptedStore, IsCopiedToAnother) {
  const cache::Cache cache = prompt_of(600);
  put_prompt(file_of(cache));
  const auto from = open();
  const auto to = must(store::open_backend("memory:", {.keys = ring(1)}));
  must(store::copy_store(*from, *to, {}));
  store::Library copied = library(*to);
  EXPECT_EQ(difference(load(*must(copied.fetch(record_of(copied, "a")))), cache), "");
}

// As Redis: a list looks at every key. Several look at one store.
class LooksAtEveryKey : public store::Backend {
 public:
  LooksAtEveryKey(store::Backend& inner, int& n_lists)
      : Backend("store", {}), inner_(inner), n_lists_(n_lists) {}
  bool lists_cheaply() const override { return false; }

 private:
  Result<std::vector<store::PutOutcome>> do_put(std::span<const store::Blob> blobs) override {
    return inner_.put(blobs);
  }
  Result<void> do_get(std::span<const std::string> keys, const store::ValueSink& sink) override {
    return inner_.get(keys, sink);
  }
  Result<std::vector<bool>> do_exists(std::span<const std::string> keys) override {
    return inner_.exists(keys);
  }
  Result<bool> do_remove(const std::string& key, std::optional<ByteView> only) override {
    return only ? inner_.remove_if_same(key, *only) : inner_.remove(key);
  }
  Result<void> do_list(const std::string& prefix, const store::EntrySink& sink) override {
    ++n_lists_;
    return inner_.list(prefix, sink);
  }
  Result<void> do_touch(std::span<const std::string> keys) override { return inner_.touch(keys); }
  Result<void> do_replace(const store::Blob& blob) override {
    return inner_.replace(blob.key, blob.value);
  }

  store::Backend& inner_;
  int& n_lists_;
};

class KeyCheck : public testing::Test {
 protected:
  std::unique_ptr<store::Backend> open(const KeyRing& keys) {
    auto plain = std::make_unique<LooksAtEveryKey>(*inner_, n_lists_);
    return keys.empty() ? std::move(plain) : store::encrypted_backend(std::move(plain), keys, {});
  }
  Result<void> check(const KeyRing& keys, store::BeforePut before_put = store::BeforePut::kYes) {
    n_lists_ = 0;
    return store::check_store_key(*open(keys), before_put);
  }
  void put_prompt(const KeyRing& keys) {
    const auto backend = open(keys);
    store::Library to(*backend, {.salt = store::secret_salt(keys, ""), .n_threads = 1});
    put(to, file_of(prompt_of(600)), "a", {});
  }

  const std::string key_ = "k/check";
  std::unique_ptr<store::Backend> inner_ = must(store::open_backend("memory:", {}));
  int n_lists_ = 0;
};

TEST_F(KeyCheck, IsPutOnceAndThenNoListIsNeeded) {
  for (const KeyRing& keys : {ring(1), KeyRing{}}) {
    inner_ = must(store::open_backend("memory:", {}));
    must(check(keys, store::BeforePut::kNo));
    EXPECT_FALSE(must(inner_->exists(key_)));  // who only looks writes nothing
    must(check(keys));
    EXPECT_EQ(n_lists_, 1);
    const Bytes value = *must(inner_->get(key_));
    EXPECT_EQ(value.size(), keys.empty() ? 64u : 192u);  // store.md, 19
    put_prompt(keys);
    must(check(keys));
    EXPECT_EQ(n_lists_, 0);
    EXPECT_EQ(*must(inner_->get(key_)), value);
  }
}

TEST_F(KeyCheck, OfAnotherKeyIsAnError) {
  const std::vector<KeyRing> all = {KeyRing{}, ring(1), ring(2)};
  for (std::size_t owner = 0; owner < all.size(); ++owner) {
    inner_ = must(store::open_backend("memory:", {}));
    must(check(all[owner]));
    put_prompt(all[owner]);
    for (std::size_t other = 0; other < all.size(); ++other) {
      for (const auto before_put : {store::BeforePut::kNo, store::BeforePut::kYes}) {
        const Result<void> checked = check(all[other], before_put);
        if (other == owner) {
          EXPECT_TRUE(checked.ok());
        } else {
          EXPECT_THAT(checked, FailsWith(ErrorCode::kNoKey, testing::StartsWith(key_)));
        }
      }
    }
  }
}

// A store that programs before it made, one that dropped it, and one where it was damaged.
TEST_F(KeyCheck, MayBeMissingOrDamaged) {
  put_prompt(ring(1));
  EXPECT_THAT(check(ring(2)), FailsWith(ErrorCode::kNoKey, testing::StartsWith("p/")));
  EXPECT_FALSE(must(inner_->exists(key_)));
  for (const Bytes& damaged :
       {Bytes{}, Bytes(64), store::seal_value(ring(1), "k/other", {}).value()}) {
    must(check(ring(1)));
    must(inner_->replace(key_, damaged));
    EXPECT_THAT(check(ring(2)), FailsWith(ErrorCode::kNoKey, testing::_));
    must(check(ring(1)));
    EXPECT_EQ(n_lists_, 1);
    must(check(ring(1)));
    EXPECT_EQ(n_lists_, 0);
  }
}

TEST_F(KeyCheck, OfAStoreThatWasEmptiedIsReplaced) {
  must(check(ring(1)));
  must(check(ring(2)));
  put_prompt(ring(2));
  must(check(ring(2)));
  EXPECT_EQ(n_lists_, 0);
  EXPECT_THAT(check(ring(1)), FailsWith(ErrorCode::kNoKey, testing::StartsWith(key_)));
}

TEST_F(KeyCheck, IsNoBlobOfAPrompt) {
  must(check(ring(1)));
  put_prompt(ring(1));
  const auto backend = open(ring(1));
  EXPECT_EQ(must(store::read_stats(*backend)).others.blobs, 0u);
  const auto report = must(store::check(*backend, {.read_data = true}));
  EXPECT_EQ(report.others.blobs, 0u);
  (void)must(store::collect(*backend, {.max_bytes = 0, .grace = {}, .drop_prompts = true}));
  EXPECT_TRUE(must(inner_->exists(key_)));
}

}  // namespace store_encryption_test
}  // namespace tqcache::test
