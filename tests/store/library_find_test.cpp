// Prompts are found by their longest prefix.

#include <gtest/gtest.h>

#include "store/library_fixture.h"
#include "support/checkpoint_reader.h"
#include "tqcache/cache.h"
#include "tqcache/cache/memory_blocks.h"
#include "tqcache/store/blobs/blob_keys.h"
#include "tqcache/store/library/background_put.h"

namespace tqcache::test {
namespace library_find_test {

cache::Cache dense(std::int64_t n) { return CacheBuilder(n).dense(kHeads).build(); }
cache::Cache turbo(std::int64_t n) { return CacheBuilder(n).turbo(kHeads, 4, 4).build(); }
cache::Cache with_state(std::int64_t n) { return CacheBuilder(n).dense(kHeads).arrays().build(); }

// The first `n` tokens of a prompt, and then others.
std::vector<std::int32_t> leaving_after(const cache::Cache& cache, std::size_t n) {
  std::vector<std::int32_t> tokens(cache.tokens.begin(),
                                   cache.tokens.begin() + static_cast<std::ptrdiff_t>(n));
  tokens.resize(tokens.size() + 600, 7);
  return tokens;
}

std::int64_t found(store::Library& library, const cache::Cache& cache,
                   std::span<const std::int32_t> tokens, const store::FindOptions& options = {}) {
  return must(library.find(cache.identity, tokens, options)).n_tokens;
}

class Find : public testing::Test {
 protected:
  std::unique_ptr<store::Backend> backend_ = open_store();
  ToldLibrary told_{*backend_};
  store::Library& library_ = told_.library;
};

TEST_F(Find, EndsAtTheLastCommonTokenBlock) {
  const cache::Cache cache = dense(1000);
  put(library_, file_of(cache), "");
  for (const std::size_t n : {0U, 1U, 255U, 256U, 257U, 511U, 512U, 513U, 767U, 768U, 999U}) {
    EXPECT_EQ(found(library_, cache, leaving_after(cache, n)),
              static_cast<std::int64_t>(n / 256 * 256));
  }
}

TEST_F(Find, TakesATailThatThePromptHasAllOf) {
  const cache::Cache cache = dense(700);
  put(library_, file_of(cache), "");
  EXPECT_EQ(found(library_, cache, leaving_after(cache, 700)), 700);
  EXPECT_EQ(found(library_, cache, leaving_after(cache, 699)), 512);
}

// What a prompt has of a tail, and of a token block that goes on otherwise.
TEST_F(Find, TakesAPartOfABlockOrTailIfThatIsWanted) {
  for (const cache::Cache& cache : {dense(1000), turbo(1000)}) {
    const std::unique_ptr<store::Backend> backend = open_store();
    ToldLibrary told{*backend};
    store::Library& library = told.library;
    must(library.put_cache(cache, ""));
    EXPECT_EQ(all_keys(*backend, "c/").size(), 2u);  // of 3 blocks; the first is found otherwise
    for (const std::size_t n :
         {255U, 256U, 257U, 400U, 511U, 512U, 600U, 767U, 768U, 769U, 999U, 1000U}) {
      const std::vector<std::int32_t> tokens = leaving_after(cache, n);
      store::Prefix prefix = must(library.find(cache.identity, tokens, {.finds_parts = true}));
      const std::size_t expected = n < 256 ? 0 : n;
      ASSERT_EQ(prefix.n_common, static_cast<std::int64_t>(expected)) << n;
      if (expected == 0) continue;
      EXPECT_TRUE(std::equal(prefix.tokens.begin(), prefix.tokens.end(), cache.tokens.begin()));
      EXPECT_EQ(std::ssize(prefix.tokens), prefix.n_tokens);
      const auto fetched = must(library.fetch(prefix));
      ASSERT_NE(fetched, nullptr);
      EXPECT_EQ(prefix.n_common, static_cast<std::int64_t>(expected));
      const auto first = must(cache::first_tokens(cache::borrow(*fetched), prefix.n_common));
      const auto wanted = must(cache::first_tokens(cache::reader_of(cache), prefix.n_common));
      EXPECT_EQ(name_of(file_of(must(cache::load(*first)))),
                name_of(file_of(must(cache::load(*wanted)))))
          << n;
      // Otherwise it is found as ever, up to a whole block or a whole tail.
      const std::int64_t whole = found(library, cache, tokens);
      EXPECT_EQ(whole, n == 1000 || n == 512 ? n : n / 256 * 256) << n;
    }
  }
}

TEST_F(Find, TakesTheBlockThatHasMostOfThePrompt) {
  const cache::Cache first = dense(1000);
  must(library_.put_cache(first, ""));
  for (const std::size_t n : {300U, 450U, 350U}) {
    cache::Cache other = first;
    for (std::size_t i = n; i < other.tokens.size(); ++i) other.tokens[i] = static_cast<int>(n);
    must(library_.put_cache(other, ""));
    must(library_.put_cache(other, ""));  // once more: nothing new
  }
  EXPECT_EQ(all_keys(*backend_, "c/").size(), 2u + 3 * 2);
  const auto common = [&](std::size_t n, std::int32_t next) {
    std::vector<std::int32_t> tokens(first.tokens.begin(),
                                     first.tokens.begin() + static_cast<std::ptrdiff_t>(n));
    tokens.resize(600, next);
    const store::FindOptions options{.max_tokens = 600, .finds_parts = true};
    return must(library_.find(first.identity, tokens, options)).n_common;
  };
  EXPECT_EQ(common(500, 7), 500);
  EXPECT_EQ(common(450, 450), 600);  // goes on with that one
  EXPECT_EQ(common(300, 7), 300);
  // Further ones than there are slots for are in the store, and found by their own tokens.
  for (int i = 0; i < 20; ++i) {
    cache::Cache other = first;
    for (std::size_t at = 400; at < other.tokens.size(); ++at) other.tokens[at] = 1000 + i;
    must(library_.put_cache(other, ""));
    EXPECT_EQ(found(library_, other, other.tokens, {.max_tokens = 1000}), 1000) << i;
  }
  EXPECT_EQ(common(400, 7), 400);
}

// A block may be collected before what names it.
TEST_F(Find, DoesNotRelyOnANamedBlock) {
  const cache::Cache cache = dense(1000);
  must(library_.put_cache(cache, ""));
  const store::Prefix whole = must(library_.find(cache.identity, leaving_after(cache, 768)));
  ASSERT_EQ(whole.chain.size(), 3u);
  must(backend_->remove(store::block_key(whole.chain[1], 1, 0)));
  const std::vector<std::int32_t> tokens = leaving_after(cache, 400);
  EXPECT_EQ(must(library_.find(cache.identity, tokens, {.finds_parts = true})).n_common, 256);
  // And one that names another block is not believed: its hash is that of its tokens.
  for (const std::string& key : all_keys(*backend_, "c/")) {
    must(backend_->remove(key));
    must(backend_->put(key, Bytes(100)));
  }
  EXPECT_EQ(must(library_.find(cache.identity, tokens, {.finds_parts = true})).n_common, 256);
}

TEST_F(Find, ALostTailLeavesTheBlocks) {
  const cache::Cache cache = dense(700);
  must(library_.put_cache(cache, ""));
  store::Prefix prefix =
      must(library_.find(cache.identity, leaving_after(cache, 650), {.finds_parts = true}));
  ASSERT_EQ(prefix.n_common, 650);
  EXPECT_EQ(prefix.tokens, cache.tokens);
  for (const std::string& key : prefix.snapshot->data_keys) must(backend_->remove(key));
  ASSERT_NE(must(library_.fetch(prefix)), nullptr);
  EXPECT_EQ(prefix.n_tokens, 512);
  EXPECT_EQ(prefix.n_common, 512);
}

TEST_F(Find, WhatCannotBeCutHasNoParts) {
  const cache::Cache cache = with_state(1000);
  must(library_.put_cache(cache, ""));
  EXPECT_TRUE(all_keys(*backend_, "c/").empty());
  const store::Prefix prefix =
      must(library_.find(cache.identity, leaving_after(cache, 999), {.finds_parts = true}));
  EXPECT_EQ(prefix.n_tokens, 0);
}

TEST_F(Find, LeavesOneTokenToBeReadUnlessAllAreWanted) {
  const cache::Cache cache = dense(512);
  put(library_, file_of(cache), "");
  EXPECT_EQ(found(library_, cache, cache.tokens), 256);
  EXPECT_EQ(found(library_, cache, cache.tokens, {.max_tokens = 512}), 512);
  EXPECT_EQ(found(library_, cache, cache.tokens, {.max_tokens = 511}), 256);
  EXPECT_EQ(found(library_, cache, cache.tokens, {.max_tokens = 255}), 0);
  EXPECT_EQ(found(library_, cache, cache.tokens, {.max_tokens = 10000}), 512);
}

TEST_F(Find, FindsNothingOfShortPrompts) {
  const cache::Cache cache = dense(256);
  put(library_, file_of(cache), "short");
  EXPECT_EQ(found(library_, cache, and_more(cache, 300)), 0);
  EXPECT_EQ(found(library_, cache, {}), 0);
  EXPECT_TRUE(all_keys(*backend_, "b/").empty());
}

TEST_F(Find, FindsNothingInAnEmptyStore) {
  EXPECT_EQ(found(library_, dense(600), dense(600).tokens), 0);
}

TEST_F(Find, FetchesAPrefixOfAnotherPrompt) {
  const cache::Cache cache = turbo(1000);
  put(library_, file_of(cache), "");
  store::Prefix prefix = must(library_.find(cache.identity, leaving_after(cache, 600)));
  const auto prompt = must(library_.fetch(prefix));
  EXPECT_EQ(prefix.n_tokens, 512);
  EXPECT_EQ(difference(load(*prompt), must(cache::truncate(cache, 512))), "");
}

// State that belongs to a token count is of use there alone.
TEST_F(Find, CutsNoStateThatCannotBeCut) {
  const cache::Cache cache = with_state(700);
  put(library_, file_of(cache), "");
  EXPECT_EQ(found(library_, cache, leaving_after(cache, 699)), 0);
  EXPECT_EQ(found(library_, cache, leaving_after(cache, 700)), 700);
  EXPECT_EQ(found(library_, cache, cache.tokens), 0);
}

TEST_F(Find, TakesTheLongestStateThatFits) {
  const cache::Cache all = dense(1000);
  for (const std::int64_t n : {300, 520, 600, 900}) {
    cache::Cache part = with_state(n);
    part.tokens.assign(all.tokens.begin(), all.tokens.begin() + n);
    put(library_, file_of(part), "");
  }
  EXPECT_EQ(found(library_, all, leaving_after(all, 299)), 0);
  EXPECT_EQ(found(library_, all, leaving_after(all, 300)), 300);
  EXPECT_EQ(found(library_, all, leaving_after(all, 599)), 520);
  EXPECT_EQ(found(library_, all, leaving_after(all, 600)), 600);
  EXPECT_EQ(found(library_, all, all.tokens), 900);
}

TEST_F(Find, KnowsTenantsApart) {
  const cache::Cache cache = dense(600);
  ToldLibrary other(*backend_, "another salt");
  put(other.library, file_of(cache), "a prompt");
  EXPECT_EQ(found(library_, cache, and_more(cache)), 0);
  EXPECT_EQ(found(other.library, cache, and_more(cache)), 600);
  EXPECT_FALSE(must(library_.record("a prompt")));
  EXPECT_TRUE(must(library_.records()).empty());
  EXPECT_FALSE(must(library_.remove("a prompt")));
  EXPECT_EQ(must(other->records()).size(), 1u);
}

TEST_F(Find, KnowsModelsApart) {
  const cache::Cache cache = dense(600);
  put(library_, file_of(cache), "");
  cache::Cache other = cache;
  other.identity.weights_fingerprint[0] ^= std::byte{1};
  EXPECT_EQ(found(library_, other, and_more(cache)), 0);
  other.identity = cache.identity;
  other.identity.model_name = "what people call it does not count";
  EXPECT_EQ(found(library_, other, and_more(cache)), 600);
}

// Of several forms of one length the one with most bytes a token, which is nearest to the model.
TEST_F(Find, PrefersTheLongestAndThenTheNearest) {
  const cache::Cache small = turbo(600);
  const cache::Cache large = dense(600);
  put(library_, file_of(small), "");
  put(library_, file_of(must(cache::truncate(large, 400))), "");
  const auto finds_quantized = [&] {
    const auto found = must(library_.find(small.identity, and_more(small)));
    return cache::is_quantized(std::get<cache::AttentionDesc>(found.parameters.layers[0]).k);
  };
  EXPECT_TRUE(finds_quantized());
  put(library_, file_of(large), "");
  EXPECT_FALSE(finds_quantized());
}

TEST_F(Find, FindsOnlyTheRequestedSettings) {
  const cache::Cache small = turbo(600);
  const cache::Cache large = dense(900);
  put(library_, file_of(small), "");
  cache::Cache longer = large;
  std::ranges::copy(small.tokens, longer.tokens.begin());
  put(library_, file_of(longer), "");
  const auto settings = cache::describe(small).layers;
  EXPECT_EQ(found(library_, small, and_more(longer), {.settings = &settings}), 600);
  EXPECT_EQ(found(library_, small, and_more(longer)), 900);
  const auto other = cache::describe(CacheBuilder(1).turbo(kHeads, 3, 3).build()).layers;
  EXPECT_EQ(found(library_, small, and_more(longer), {.settings = &other}), 0);
}

// Means belong to codes: a prompt converted apart has others, and a chain of its own.
TEST_F(Find, KeepsChainsOfOtherMeansApart) {
  const auto centered = [](std::int64_t n, std::uint64_t seed) {
    cache::Cache cache =
        CacheBuilder(n, seed).center(cache::Centering::kPostRope).turbo(kHeads, 4, 4).build();
    cache.identity = CacheBuilder(1).build().identity;
    cache.tokens.assign(static_cast<std::size_t>(n), 5);
    return cache;
  };
  const cache::Cache one = centered(600, 1);
  const cache::Cache two = centered(800, 2);
  put(library_, file_of(one), "");
  put(library_, file_of(two), "");
  EXPECT_EQ(all_keys(*backend_, "p/").size(), 2u);
  store::Prefix prefix = must(library_.find(one.identity, and_more(two)));
  EXPECT_EQ(prefix.n_tokens, 800);
  const auto prompt = must(library_.fetch(prefix));
  EXPECT_EQ(difference(load(*prompt), two), "");
}

// A prompt of so many tokens, with parameters of its own, and the same first tokens as the others.
cache::Cache conversion(std::int64_t n_tokens, int i, std::size_t n_shared) {
  cache::Cache cache = dense(n_tokens);
  cache.identity.source_format = "program " + std::to_string(i);
  for (std::size_t at = n_shared; at < cache.tokens.size(); ++at) cache.tokens[at] = i;
  return cache;
}

TEST_F(Find, RefusesAPromptWithoutANameThatNobodyCouldFind) {
  for (int i = 0; i <= store::kCandidateSlots; ++i) {
    const auto done = library_.put_file(*memory_source(file_of(conversion(300, i, 300))), "");
    EXPECT_EQ(done.ok(), i < store::kCandidateSlots);
    if (!done) {
      EXPECT_EQ(done.error().code, ErrorCode::kTooLarge);
    }
  }
}

TEST_F(Find, ANamedPromptNeedsNoSlot) {
  for (int i = 0; i < 40; ++i) {
    const cache::Cache cache = conversion(300, i, 300);
    const std::string name = "prompt " + std::to_string(i);
    put(library_, file_of(cache), name);
    EXPECT_EQ(difference(load(*must(library_.fetch(record_of(library_, name)))), cache), "");
  }
  EXPECT_EQ(all_keys(*backend_, "p/").size(), 40u);
  put(library_, file_of(conversion(300, 39, 300)), "again");  // shares them
  EXPECT_EQ(all_keys(*backend_, "p/").size(), 40u);
}

// Context checkpoints are states that a prompt is found by.
TEST_F(Find, EndsAtTheLastCheckpointThatThePromptHas) {
  const auto cache_of = [](std::int64_t n) {
    return CacheBuilder(n).dense(kHeads).arrays().rotating({kHeads, 40, 0}).build();
  };
  const cache::Cache cache = cache_of(1000);
  const CheckpointReader prompt(cache, {checkpoint_of(cache_of(100)), checkpoint_of(cache_of(300)),
                                        checkpoint_of(cache_of(800))});
  const Bytes file = must(format::write_cache_bytes(prompt, {}));
  const auto check = [&](const store::PutReport& report) {
    EXPECT_EQ(report.checkpoints, 2);
    EXPECT_EQ(report.short_checkpoints, 1);
    for (const auto& [n, expected] :
         {std::pair{299, 0}, {300, 300}, {799, 300}, {800, 800}, {999, 800}, {1000, 1000}}) {
      const auto tokens = leaving_after(cache, static_cast<std::size_t>(n));
      store::Prefix prefix = must(library_.find(cache.identity, tokens));
      EXPECT_EQ(prefix.n_tokens, expected) << n;
      if (expected == 0) continue;
      const auto fetched = must(library_.fetch(prefix));
      ASSERT_NE(fetched, nullptr);
      const auto first = must(cache::first_tokens(cache::borrow(prompt), expected));
      EXPECT_EQ(name_of(file_of(load(*fetched))), name_of(file_of(must(cache::load(*first))))) << n;
    }
  };
  check(must(library_.put(prompt, "from a reader")));
  check(put(library_, file, "from a file"));
  // What has a name is the whole cache, without its checkpoints.
  EXPECT_EQ(name_of(fetched_file(library_, "from a file")), name_of(file_of(cache)));
}

}  // namespace library_find_test
}  // namespace tqcache::test
