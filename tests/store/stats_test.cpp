// What is told of a store.

#include <gtest/gtest.h>

#include "store/aged_backend.h"
#include "store/library_fixture.h"
#include "tqcache/store/blobs/blob_keys.h"
#include "tqcache/store/upkeep/inventory.h"

namespace tqcache::test {
namespace stats_test {

std::uint64_t blobs_of(const store::StoreStats& stats, store::BlobKind kind) {
  return stats.kinds[static_cast<std::size_t>(kind)].blobs;
}

TEST(StoreStats, OfAnEmptyStoreAreZero) {
  AgedBackend backend;
  const store::StoreStats stats = must(store::read_stats(backend));
  EXPECT_EQ(stats.prompts, 0u);
  EXPECT_EQ(stats.bytes_alone, 0u);
  EXPECT_EQ(stats.bytes_saved(), 0u);
  EXPECT_EQ(stats.runs, 0u);
}

TEST(StoreStats, CountsBlobsOfEachKind) {
  AgedBackend backend;
  ToldLibrary library(backend);
  must(library->put_cache(trunk_of(600), "a"));
  must(backend.put("other/thing", as_bytes("abc")));
  const store::StoreStats stats = must(store::read_stats(backend));
  EXPECT_EQ(blobs_of(stats, store::BlobKind::kBlock), 2u);
  EXPECT_EQ(blobs_of(stats, store::BlobKind::kRecord), 1u);
  EXPECT_EQ(blobs_of(stats, store::BlobKind::kParameters), 1u);
  EXPECT_EQ(stats.others.bytes, 3u);
  std::uint64_t sum = stats.others.bytes;
  for (const store::KindTotal& total : stats.kinds) sum += total.bytes;
  EXPECT_EQ(sum, backend.bytes());
}

TEST(StoreStats, SharingSavesWhatTwoPromptsNeed) {
  AgedBackend backend;
  ToldLibrary library(backend);
  const cache::Cache trunk = trunk_of(900);
  must(library->put_cache(branch(trunk, 900, 768, 1), "a"));
  const store::StoreStats one = must(store::read_stats(backend));
  EXPECT_EQ(one.bytes_saved(), 0u);
  const auto bytes_of_next = [&] {
    std::uint64_t bytes = 0;
    for (const auto& [key, value] : backend.values) {
      if (key.starts_with("c/")) bytes += value.bytes.size();
    }
    return bytes;
  };
  EXPECT_EQ(one.bytes_needed, backend.bytes() - bytes_of_next());
  must(library->put_cache(branch(trunk, 900, 768, 2), "b"));
  const store::StoreStats both = must(store::read_stats(backend));
  EXPECT_EQ(both.prompts, 2u);
  EXPECT_EQ(both.prompt_tokens, 1800u);
  EXPECT_EQ(both.bytes_needed, backend.bytes() - bytes_of_next());
  EXPECT_EQ(both.bytes_unneeded, 0u);
  std::uint64_t shared = 0;  // parameters, three blocks, and a tail of the same values
  for (const auto& [key, value] : backend.values) {
    const bool is_own = key.starts_with("n/") || key.starts_with("s/") || key.starts_with("c/");
    if (!is_own) shared += value.bytes.size();
  }
  EXPECT_EQ(both.bytes_saved(), shared);
}

TEST(StoreStats, WhatNoNamedPromptNeedsIsUnneeded) {
  AgedBackend backend;
  ToldLibrary library(backend);
  must(library->put_cache(trunk_of(600), ""));
  const store::StoreStats stats = must(store::read_stats(backend));
  EXPECT_EQ(stats.bytes_unneeded, backend.bytes());
  EXPECT_EQ(stats.bytes_needed, 0u);
}

TEST(StoreStats, SumUpWhatRunsFound) {
  AgedBackend backend;
  ToldLibrary library(backend);
  must(library->note_usage({1, 1000, 512, 20, 30}));
  must(library->note_usage({2, 500, 0, 1, 2}));
  backend.values["u/" + std::string(64, '0')] = {Bytes(10)};  // a damaged one counts for nothing
  const store::StoreStats stats = must(store::read_stats(backend));
  EXPECT_EQ(stats.runs, 2u);
  EXPECT_EQ(stats.runs_that_found, 1u);
  EXPECT_EQ(stats.wanted_tokens, 1500u);
  EXPECT_EQ(stats.found_tokens, 512u);
  EXPECT_EQ(stats.read_bytes, 21u);
  EXPECT_EQ(stats.stored_bytes, 32u);
}

TEST(StoreStats, NeedRecordsThatAreWhole) {
  AgedBackend backend;
  ToldLibrary library(backend);
  must(library->put_cache(trunk_of(600), "a"));
  backend.damage(store::record_key("", "a"));
  const auto stats = store::read_stats(backend);
  ASSERT_FALSE(stats);
  EXPECT_EQ(stats.error().code, ErrorCode::kCorrupt);
}

}  // namespace stats_test
}  // namespace tqcache::test
