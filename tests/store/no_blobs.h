#pragma once
// What must hold of a store in which something that is no blob has the name of one: a list in
// Redis, a pipe in a folder. It is a damaged blob: a miss for a lookup, found by check, put again
// by a put.

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "store/aged_backend.h"
#include "store/library_fixture.h"
#include "tqcache/upkeep.h"

namespace tqcache::test {

// `spoil` puts something else in the place of the blob of a key. The store is empty before.
inline void expect_no_blob_is_damage(store::Backend& backend,
                                     const std::function<void(const std::string& key)>& spoil) {
  ToldLibrary library(backend);
  const cache::Cache cache = trunk_of(600);
  must(library->put_cache(cache, "kept"));
  const std::vector<std::string> keys = all_keys(backend);
  ASSERT_GE(keys.size(), 4u);  // parameters, blocks, a state, a record
  for (const std::string& key : keys) {
    SCOPED_TRACE(key);
    const Bytes value = must(backend.get(key)).value();
    spoil(key);
    EXPECT_TRUE(must(backend.exists(key)));
    EXPECT_EQ(must(backend.get(key)), Bytes());
    EXPECT_FALSE(must(backend.remove_if_same(key, as_bytes("value"))));
    EXPECT_EQ(must(backend.put(key, as_bytes("value"))), store::PutOutcome::kExisted);
    must(backend.touch(std::span(&key, 1)));
    EXPECT_EQ(all_keys(backend), keys);
    must(store::read_stats(backend));
    must(store::collect(backend, {}));
    EXPECT_EQ(must(store::check(backend, {.read_data = true})).damaged, 1u);
    must(library->find(cache.identity, and_more(cache)));
    must(library->put_cache(cache, "kept"));
    // A put that has no new block does not look at what stands behind a block.
    if (!key.starts_with("c/")) {
      EXPECT_TRUE(must(store::check(backend, {.read_data = true})).is_whole());
    }
    EXPECT_EQ(load(fetched_file(library.library, "kept")).tokens, cache.tokens);

    spoil(key);
    const store::CheckReport mended =
        must(store::check(backend, {.read_data = true, .repair = true}));
    EXPECT_EQ(mended.damaged, 1u);
    EXPECT_GE(mended.repaired, 1u);
    EXPECT_FALSE(must(backend.exists(key)));

    spoil(key);
    must(backend.replace(key, as_bytes("value")));
    EXPECT_EQ(must(backend.get(key))->size(), 5u);
    spoil(key);
    EXPECT_TRUE(must(backend.remove(key)));
    EXPECT_FALSE(must(backend.exists(key)));
    EXPECT_EQ(must(backend.put(key, value)), store::PutOutcome::kStored);
    must(library->put_cache(cache, "kept"));
    EXPECT_TRUE(must(store::check(backend, {.read_data = true})).is_whole());
  }
}

}  // namespace tqcache::test
