// What goes when a store is to become smaller, and what does not.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "store/aged_backend.h"
#include "store/library_fixture.h"
#include "support/matchers.h"
#include "tqcache/store/blobs/blob_keys.h"
#include "tqcache/upkeep.h"

namespace tqcache::test {
namespace collect_test {

using namespace std::chrono_literals;
using testing::ElementsAre;
using testing::IsEmpty;

class Collect : public testing::Test {
 protected:
  Collect() : trunk_(trunk_of(1300)) {}

  // Keeps it under a name, or under none.
  void put(const cache::Cache& cache, std::string_view name) {
    must(library_->put_cache(cache, name));
  }
  std::int64_t found(const cache::Cache& cache) {
    return must(library_->find(cache.identity, and_more(cache))).n_tokens;
  }

  store::CollectReport collect(store::CollectOptions options = {}) {
    options.on_prompt = [&](const std::string& name) { gone_.push_back(name); };
    options.on_loss = [&](const std::string& name) { lost_.push_back(name); };
    return must(store::collect(backend_, options));
  }

  AgedBackend backend_;
  ToldLibrary library_{backend_};
  cache::Cache trunk_;
  std::vector<std::string> gone_, lost_;
};

constexpr std::uint64_t kNothing = 0;

TEST_F(Collect, WithoutALimitKeepsEverythingFindable) {
  put(trunk_, "");
  put(branch(trunk_, 600, 256, 1), "kept");
  backend_.age_all(1000h);
  const auto before = backend_.values.size();
  const store::CollectReport report = collect();
  EXPECT_EQ(backend_.values.size(), before);
  EXPECT_EQ(report.bytes_before, backend_.bytes());
  EXPECT_EQ(report.bytes_after, backend_.bytes());
  EXPECT_FALSE(report.above_limit);
}

TEST_F(Collect, NeverRemovesWhatANamedPromptNeeds) {
  put(trunk_, "kept");
  backend_.age_all(1000h);
  const auto before = backend_.values.size();
  const store::CollectReport report = collect({.max_bytes = kNothing});
  EXPECT_EQ(backend_.values.size(), before);
  EXPECT_TRUE(report.above_limit);
  EXPECT_EQ(report.bytes_needed, backend_.bytes());
  EXPECT_TRUE(must(library_->fetch(record_of(library_.library, "kept"))));
}

TEST_F(Collect, RemovesWhatNoNamedPromptNeeds) {
  put(branch(trunk_, 600, 256, 1), "kept");
  put(branch(trunk_, 900, 256, 2), "");
  backend_.age_all(2h);
  const store::CollectReport report = collect({.max_bytes = kNothing});
  EXPECT_EQ(found(branch(trunk_, 600, 256, 1)), 600);
  EXPECT_EQ(found(branch(trunk_, 900, 256, 2)), 256);  // the block that both begin with
  EXPECT_EQ(report.bytes_after, backend_.bytes());
  EXPECT_EQ(report.bytes_after, report.bytes_needed);
}

TEST_F(Collect, RemovesNoMoreThanNecessary) {
  put(branch(trunk_, 600, 0, 1), "");
  put(branch(trunk_, 600, 0, 2), "");
  backend_.age_all(2h);
  collect({.max_bytes = backend_.bytes()});
  EXPECT_EQ(found(branch(trunk_, 600, 0, 1)), 600);
  EXPECT_EQ(found(branch(trunk_, 600, 0, 2)), 600);
  const std::uint64_t limit = backend_.bytes() - 1;
  const store::CollectReport report = collect({.max_bytes = limit});
  EXPECT_LE(backend_.bytes(), limit);
  EXPECT_FALSE(report.above_limit);
  EXPECT_GT(found(branch(trunk_, 600, 0, 1)) + found(branch(trunk_, 600, 0, 2)), 1000);
}

TEST_F(Collect, RemovesTheLeastRecentlyUsedFirst) {
  put(branch(trunk_, 600, 0, 1), "");
  backend_.age_all(10h);
  put(branch(trunk_, 600, 0, 2), "");
  backend_.age_all(2h);
  collect({.max_bytes = backend_.bytes() / 2});
  EXPECT_EQ(found(branch(trunk_, 600, 0, 1)), 0);
  EXPECT_EQ(found(branch(trunk_, 600, 0, 2)), 600);
}

TEST_F(Collect, KeepsOldBlobsThatAreUsed) {
  put(branch(trunk_, 600, 0, 1), "");
  backend_.age_all(10h);
  put(branch(trunk_, 600, 0, 2), "");
  backend_.age_all(2h);
  store::Prefix prefix = must(library_->find(trunk_.identity, and_more(branch(trunk_, 600, 0, 1))));
  must(library_->fetch(prefix));
  collect({.max_bytes = backend_.bytes() / 2});
  EXPECT_EQ(found(branch(trunk_, 600, 0, 1)), 600);
  EXPECT_EQ(found(branch(trunk_, 600, 0, 2)), 0);
}

TEST_F(Collect, RemovesTheDeepestBlocksOfAChainFirst) {
  put(trunk_, "");
  backend_.age_all(2h);
  std::vector<std::string> order;
  backend_.on_remove = [&](const std::string& key) { order.push_back(key.substr(0, 8)); };
  collect({.max_bytes = kNothing});
  std::vector<std::string> blocks;
  for (const std::string& key : order) {
    if (key.starts_with("b/")) blocks.push_back(key);
  }
  EXPECT_THAT(blocks, ElementsAre("b/000004", "b/000003", "b/000002", "b/000001", "b/000000"));
  EXPECT_TRUE(order.front().starts_with("s/"));  // the end of the prompt
  EXPECT_TRUE(order.back().starts_with("p/"));   // what all of it is found by
  EXPECT_THAT(backend_.values, IsEmpty());
}

TEST_F(Collect, WithinAMinuteDepthDecidesAndNotTheOrderOfReading) {
  put(trunk_, "");
  for (auto& [key, value] : backend_.values) {
    // As a get of the whole chain leaves it: its first blocks were read first.
    const auto parts = store::parse_key(key);
    value.idle = 2h + (parts->kind == store::BlobKind::kBlock ? 20s - parts->index * 1s : 0s);
  }
  collect({.max_bytes = backend_.bytes() / 2});
  const std::int64_t n = found(trunk_);
  EXPECT_GE(n, 256);
  EXPECT_EQ(static_cast<std::size_t>(n / 256), backend_.count("b/"));  // no block is cut off
}

TEST_F(Collect, RemovesPartZeroOfABlockFirst) {
  put(wide_trunk_of(300), "");
  ASSERT_GT(backend_.count("b/"), 1u);
  backend_.age_all(2h);
  std::vector<int> order;
  backend_.on_remove = [&](const std::string& key) {
    const auto parts = store::parse_key(key);
    if (parts->kind == store::BlobKind::kBlock) order.push_back(parts->number);
  };
  collect({.max_bytes = kNothing});
  ASSERT_GT(order.size(), 1u);
  EXPECT_EQ(order.front(), 0);
}

TEST_F(Collect, KeepsWhatWasUsedWithinGrace) {
  put(trunk_, "");
  backend_.age_all(59min);
  const store::CollectReport report = collect({.max_bytes = kNothing, .max_age = 1s});
  EXPECT_EQ(found(trunk_), 1300);
  EXPECT_TRUE(report.above_limit);
  EXPECT_EQ(report.bytes_in_grace, backend_.bytes());
  collect({.max_bytes = kNothing, .grace = 10min});
  EXPECT_EQ(found(trunk_), 0);
}

TEST_F(Collect, GraceCoversAllThatAPutReliesOn) {
  put(trunk_, "");
  backend_.age_all(1000h);
  put(trunk_, "kept");
  for (const auto& [key, value] : backend_.values) {
    // A name of a block is as old as the one before it.
    if (key.starts_with("c/")) continue;
    EXPECT_EQ(value.idle, 0s) << key;
  }
}

TEST_F(Collect, RemovesWhatIsTooOldAtAnySize) {
  put(branch(trunk_, 600, 0, 1), "");
  backend_.age_all(48h);
  put(branch(trunk_, 600, 0, 2), "");
  backend_.age_all(2h);
  collect({.max_age = 24h});
  EXPECT_EQ(found(branch(trunk_, 600, 0, 1)), 0);
  EXPECT_EQ(found(branch(trunk_, 600, 0, 2)), 600);
}

TEST_F(Collect, PromptsThatAreTooOldGoWithWhatTheyAloneNeed) {
  put(branch(trunk_, 600, 256, 1), "old");
  backend_.age_all(48h);
  put(branch(trunk_, 600, 256, 2), "new");
  backend_.age_all(2h);
  const store::CollectReport report = collect({.max_age = 24h});
  EXPECT_THAT(gone_, ElementsAre("old"));
  EXPECT_EQ(report.prompts, 2u);
  EXPECT_EQ(report.prompts_removed, 1u);
  EXPECT_FALSE(must(library_->record("old")));
  EXPECT_TRUE(must(library_->fetch(record_of(library_.library, "new"))));
  EXPECT_EQ(found(branch(trunk_, 600, 256, 1)), 256);
}

TEST_F(Collect, ABlockThatANamedPromptNeedsIsNeverTooOld) {
  put(branch(trunk_, 600, 256, 1), "kept");
  backend_.age_all(48h);
  must(library_->fetch(record_of(library_.library, "kept")));
  backend_.age("b/", 48h);  // as in a backend where blocks are not touched
  collect({.max_age = 24h});
  EXPECT_TRUE(must(library_->fetch(record_of(library_.library, "kept"))));
}

TEST_F(Collect, PromptsStayForALimitUnlessTheyMayBeDropped) {
  put(branch(trunk_, 600, 0, 1), "older");
  backend_.age_all(10h);
  put(branch(trunk_, 600, 0, 2), "newer");
  backend_.age_all(2h);
  const std::uint64_t limit = backend_.bytes() * 2 / 3;
  EXPECT_TRUE(collect({.max_bytes = limit}).above_limit);
  EXPECT_THAT(gone_, IsEmpty());
  const store::CollectReport report = collect({.max_bytes = limit, .drop_prompts = true});
  EXPECT_FALSE(report.above_limit);
  EXPECT_LE(backend_.bytes(), limit);
  EXPECT_EQ(backend_.bytes(), report.bytes_after);
  EXPECT_THAT(gone_, ElementsAre("older"));
  EXPECT_TRUE(must(library_->fetch(record_of(library_.library, "newer"))));
}

TEST_F(Collect, WhatNoPromptNeedsGoesBeforeAnyPrompt) {
  put(branch(trunk_, 600, 0, 1), "kept");
  backend_.age_all(10h);
  put(branch(trunk_, 600, 0, 2), "");
  backend_.age_all(2h);
  collect({.max_bytes = backend_.bytes() - 1000, .drop_prompts = true});
  EXPECT_THAT(gone_, IsEmpty());
}

TEST_F(Collect, PromptsGoBeforeTheirBlobs) {
  put(trunk_, "kept");
  backend_.age_all(2h);
  std::vector<std::string> order;
  backend_.on_remove = [&](const std::string& key) { order.push_back(key); };
  collect({.max_bytes = kNothing, .drop_prompts = true});
  EXPECT_TRUE(order.front().starts_with("n/"));
  EXPECT_THAT(backend_.values, IsEmpty());
}

// Where reading counts as use, gc itself reads every record: that must not make prompts young.
TEST_F(Collect, ItsOwnReadingMakesNoPromptYoung) {
  backend_.reading_is_use = true;
  put(trunk_, "kept");
  for (int i = 0; i < 30; ++i) {
    backend_.age_all(1h);
    collect({.max_age = 24h});
  }
  EXPECT_THAT(gone_, ElementsAre("kept"));
}

TEST_F(Collect, RemovesUnfindableBlobs) {
  put(wide_trunk_of(600), "");
  backend_.age_all(2h);
  std::string gone;
  for (const auto& [key, value] : backend_.values) {
    if (key.starts_with("b/000001") && key.ends_with("/0")) gone = key;
  }
  ASSERT_FALSE(gone.empty());
  backend_.values.erase(gone);
  ASSERT_GT(backend_.count("b/000001"), 0u);
  const store::CollectReport report = collect();
  EXPECT_EQ(backend_.count("b/000001"), 0u);
  EXPECT_GT(report.removed[static_cast<std::size_t>(store::BlobKind::kBlock)].blobs, 0u);
  EXPECT_EQ(report.bytes_after, backend_.bytes());
}

TEST_F(Collect, SnapshotsOfALostBlockAreUnfindable) {
  put(branch(trunk_, 300, 0, 1), "");
  backend_.age_all(2h);
  ASSERT_EQ(backend_.count("s/"), 1u);
  std::erase_if(backend_.values, [](const auto& each) { return each.first.starts_with("b/"); });
  collect();
  EXPECT_EQ(backend_.count("s/"), 0u);
}

TEST_F(Collect, KeepsForeignKeys) {
  must(backend_.put("other/thing", as_bytes("abc")));
  backend_.age_all(1000h);
  const store::CollectReport report = collect({.max_bytes = kNothing, .max_age = 1s});
  EXPECT_EQ(backend_.count("other/"), 1u);
  EXPECT_TRUE(report.above_limit);
}

TEST_F(Collect, DryRunReportsTheSameAndRemovesNothing) {
  put(branch(trunk_, 600, 256, 1), "old");
  put(branch(trunk_, 900, 256, 2), "");
  backend_.age_all(48h);
  put(branch(trunk_, 600, 256, 3), "new");
  const std::size_t before = backend_.values.size();
  const store::CollectReport dry = collect({.max_age = 24h, .dry_run = true});
  EXPECT_EQ(backend_.values.size(), before);
  const store::CollectReport wet = collect({.max_age = 24h});
  EXPECT_THAT(gone_, ElementsAre("old", "old"));
  EXPECT_EQ(dry.bytes_after, wet.bytes_after);
  EXPECT_EQ(wet.bytes_after, backend_.bytes());
  for (std::size_t kind = 0; kind < store::kBlobKinds; ++kind) {
    EXPECT_EQ(dry.removed[kind].blobs, wet.removed[kind].blobs) << kind;
    EXPECT_EQ(dry.removed[kind].bytes, wet.removed[kind].bytes) << kind;
  }
}

TEST_F(Collect, RefusesWhileARecordIsDamaged) {
  put(trunk_, "kept");
  backend_.damage(store::record_key("", "kept"));
  backend_.age_all(1000h);
  const std::size_t before = backend_.values.size();
  EXPECT_THAT(store::collect(backend_, {.max_bytes = kNothing}),
              test::FailsWith(ErrorCode::kCorrupt, testing::StartsWith("n/")));
  EXPECT_EQ(backend_.values.size(), before);
}

TEST_F(Collect, RefusesWhileARecordIsOfALaterVersion) {
  put(trunk_, "kept");
  backend_.make_later(store::record_key("", "kept"));
  backend_.age_all(1000h);
  const std::size_t before = backend_.values.size();
  const auto report = store::collect(backend_, {.max_bytes = kNothing});
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(backend_.values.size(), before);
}

TEST_F(Collect, CanBeInterrupted) {
  put(trunk_, "");
  backend_.age_all(2h);
  const auto never = [](std::uint64_t, std::uint64_t) { return false; };
  const auto report = store::collect(backend_, {.max_bytes = kNothing}, never);
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code, ErrorCode::kInterrupted);
}

// Somebody keeps a prompt while gc is at work, and relies on blocks that gc has chosen.
TEST_F(Collect, ReportsAPromptThatLostBlocksWhileItWasPut) {
  put(trunk_, "");
  backend_.age_all(2h);
  bool done = false;
  backend_.on_remove = [&](const std::string&) {
    if (std::exchange(done, true)) return;
    put(trunk_, "meanwhile");
  };
  collect({.max_bytes = kNothing});
  EXPECT_THAT(lost_, ElementsAre("meanwhile"));
}

TEST_F(Collect, UsageNotesGoAsTheyGetOld) {
  must(library_->note_usage({1, 100, 50, 0, 0}));
  backend_.age_all(48h);
  must(library_->note_usage({2, 100, 50, 0, 0}));
  collect({.max_age = 24h, .grace = 0s});
  EXPECT_EQ(backend_.count("u/"), 1u);
}

// Prompts come and go at random; whatever gc does, those that are kept are whole.
TEST_F(Collect, NamedPromptsNeverLoseABlob) {
  std::mt19937 random(1);
  const auto below = [&](std::uint32_t n) { return random() % n; };
  std::set<std::string> kept;
  for (int step = 0; step < 60; ++step) {
    const std::string name = "prompt" + std::to_string(below(12));
    if (below(3) == 0) {
      must(library_->remove(name));
      kept.erase(name);
    } else {
      const auto n_shared = static_cast<std::int64_t>(256 * below(4));
      const auto way = static_cast<std::int32_t>(1 + below(5));
      const auto n_tokens = static_cast<std::int64_t>(200 + below(1000));
      must(library_->put_cache(branch(trunk_, n_tokens, n_shared, way), name, {},
                               {.replace = true}));
      kept.insert(name);
    }
    backend_.age_all(std::chrono::minutes(below(40)));
    if (below(3) > 0) continue;
    gone_.clear();
    store::CollectOptions options{.grace = 0s};
    if (below(2) == 0) options.max_bytes = backend_.bytes() * below(100) / 100;
    if (below(2) == 0) options.max_age = std::chrono::minutes(below(300));
    options.drop_prompts = below(2) == 0;
    const store::CollectReport report = collect(options);
    EXPECT_EQ(report.bytes_after, backend_.bytes());
    for (const std::string& name_gone : gone_) kept.erase(name_gone);
    const store::CheckReport checked = must(store::check(backend_, {.read_data = true}));
    ASSERT_TRUE(checked.is_whole()) << "step " << step;
    ASSERT_EQ(checked.prompts, kept.size());
    if (options.max_bytes && options.drop_prompts) {
      EXPECT_FALSE(report.above_limit);
    }
  }
}

}  // namespace collect_test
}  // namespace tqcache::test
