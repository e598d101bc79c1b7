// What check finds in a store, and what it takes away.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "store/aged_backend.h"
#include "store/library_fixture.h"
#include "tqcache/store/blobs/blob_keys.h"
#include "tqcache/upkeep.h"

namespace tqcache::test {
namespace check_test {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class Check : public testing::Test {
 protected:
  store::CheckReport check(store::CheckOptions options = {}) {
    findings_.clear();
    options.on_finding = [&](const store::Finding& finding) { findings_.push_back(finding); };
    return must(store::check(backend_, options));
  }

  // The first key that begins so.
  std::string key_of(const std::string& prefix) const {
    return backend_.values.lower_bound(prefix)->first;
  }

  AgedBackend backend_;
  ToldLibrary library_{backend_};
  cache::Cache trunk_ = trunk_of(700);
  std::vector<store::Finding> findings_;
};

TEST_F(Check, FindsAStoreWhole) {
  must(library_->put_cache(trunk_, "a"));
  must(library_->put_cache(branch(trunk_, 600, 256, 1), "b"));
  must(library_->put_cache(branch(trunk_, 100, 0, 1), "short"));
  must(library_->put_cache(branch(trunk_, 600, 512, 2), ""));
  must(library_->note_usage({1, 2, 1, 0, 0}));
  const store::CheckReport quick = check();
  EXPECT_TRUE(quick.is_whole());
  EXPECT_EQ(quick.prompts, 3u);
  EXPECT_EQ(quick.blobs.blobs, backend_.values.size());
  EXPECT_EQ(quick.blobs.bytes, backend_.bytes());
  EXPECT_LT(quick.read.bytes, backend_.bytes());
  const store::CheckReport all = check({.read_data = true});
  EXPECT_TRUE(all.is_whole());
  EXPECT_EQ(all.read.blobs, backend_.values.size());
  EXPECT_EQ(all.read.bytes, backend_.bytes());
  EXPECT_EQ(all.unfindable.blobs, 0u);
  EXPECT_THAT(findings_, IsEmpty());
}

TEST_F(Check, FindsAnEmptyStoreWhole) { EXPECT_TRUE(check({.read_data = true}).is_whole()); }

// Whatever of a kept prompt is gone is told, with the prompt's name.
TEST_F(Check, ReportsWhatAPromptLacks) {
  must(library_->put_cache(trunk_, "kept"));
  const auto all = backend_.values;
  for (const auto& [key, value] : all) {
    if (key.starts_with("n/") || key.starts_with("c/")) continue;
    SCOPED_TRACE(key);
    backend_.values = all;
    backend_.values.erase(key);
    const store::CheckReport report = check();
    EXPECT_FALSE(report.is_whole());
    EXPECT_EQ(report.prompts_damaged, 1u);
    EXPECT_EQ(report.missing, 1u);
    ASSERT_EQ(findings_.size(), 1u);
    EXPECT_EQ(findings_[0].prompt, "kept");
    EXPECT_EQ(findings_[0].key, key);
    EXPECT_EQ(findings_[0].error.code, ErrorCode::kNotFound);
  }
}

TEST_F(Check, CountsAllThatAPromptLacks) {
  must(library_->put_cache(trunk_, "kept"));
  std::erase_if(backend_.values, [](const auto& each) { return each.first.starts_with("b/"); });
  EXPECT_EQ(check().missing, 2u);
  ASSERT_EQ(findings_.size(), 1u);
  EXPECT_THAT(findings_[0].error.message, HasSubstr("1 more"));
}

TEST_F(Check, IgnoresMissingBlobsThatNoNamedPromptNeeds) {
  must(library_->put_cache(trunk_, ""));
  backend_.values.erase(key_of("b/000001"));
  EXPECT_TRUE(check().is_whole());
}

// One bit of any blob.
TEST_F(Check, ReadingFindsDamage) {
  must(library_->put_cache(trunk_, "kept"));
  must(library_->note_usage({1, 2, 1, 0, 0}));
  const auto all = backend_.values;
  for (const auto& [key, value] : all) {
    SCOPED_TRACE(key);
    backend_.values = all;
    backend_.damage(key);
    const store::CheckReport report = check({.read_data = true});
    EXPECT_EQ(report.damaged, 1u);
    EXPECT_FALSE(report.is_whole());
    ASSERT_FALSE(findings_.empty());
    EXPECT_EQ(findings_[0].key, key);
    EXPECT_FALSE(findings_[0].repaired);
    EXPECT_EQ(backend_.values.size(), all.size());
    const bool is_needed =
        !key.starts_with("n/") && !key.starts_with("u/") && !key.starts_with("c/");
    EXPECT_EQ(report.prompts_damaged, is_needed ? 1u : 0u);
    if (is_needed) {
      EXPECT_EQ(findings_[1].prompt, "kept");
    }
  }
}

TEST_F(Check, ABlobUnderAnotherKeyIsDamage) {
  must(library_->put_cache(trunk_, "kept"));
  const std::string first = key_of("b/000000");
  backend_.values.at(key_of("b/000001")) = backend_.values.at(first);
  EXPECT_EQ(check({.read_data = true}).damaged, 1u);
  EXPECT_EQ(findings_[0].error.code, ErrorCode::kMismatch);
}

TEST_F(Check, RepairRemovesDamagedBlobsSoThatTheyCanBePutAgain) {
  must(library_->put_cache(trunk_, "kept"));
  backend_.damage(key_of("b/000001"));
  backend_.damage(key_of("d/"));
  const store::CheckReport report = check({.read_data = true, .repair = true});
  EXPECT_EQ(report.damaged, 2u);
  EXPECT_EQ(report.repaired, 2u);
  EXPECT_FALSE(report.is_whole());
  EXPECT_EQ(check().missing, 2u);
  must(library_->put_cache(trunk_, "kept"));
  EXPECT_TRUE(check({.read_data = true}).is_whole());
  EXPECT_TRUE(must(library_->fetch(record_of(library_.library, "kept"))));
}

TEST_F(Check, ABlockWithoutOneOfItsPartsIsDamage) {
  const cache::Cache wide = wide_trunk_of(600);
  must(library_->put_cache(wide, "kept"));
  const std::string part_0 = key_of("b/000001");
  const std::string name(store::parse_key(part_0)->name);
  ASSERT_TRUE(backend_.values.contains(store::part_key(name, 1)));
  backend_.values.erase(store::part_key(name, 1));
  EXPECT_EQ(check().missing, 1u);
  EXPECT_EQ(findings_[0].key, store::part_key(name, 1));
  EXPECT_EQ(check({.read_data = true}).missing, 1u);
  const store::CheckReport repaired = check({.read_data = true, .repair = true});
  EXPECT_FALSE(repaired.is_whole());
  EXPECT_EQ(backend_.count(name), 0u);
  must(library_->put_cache(wide, "kept"));
  EXPECT_TRUE(check({.read_data = true}).is_whole());
}

TEST_F(Check, RepairWithoutReadingRemovesIncompleteBlocks) {
  const cache::Cache wide = wide_trunk_of(600);
  must(library_->put_cache(wide, "kept"));
  const std::string name(store::parse_key(key_of("b/000001"))->name);
  backend_.values.erase(store::part_key(name, 1));
  EXPECT_TRUE(check({.repair = true}).repaired > 0);
  EXPECT_EQ(backend_.count(name), 0u);
}

TEST_F(Check, UnfindableBlobsAreNoDamage) {
  must(library_->put_cache(branch(trunk_, 700, 0, 1), ""));
  backend_.values.erase(key_of("b/000000"));  // the second block is cut off
  backend_.values.erase(key_of("s/"));        // and nobody names the data
  const store::CheckReport report = check({.read_data = true});
  EXPECT_TRUE(report.is_whole());
  EXPECT_EQ(report.unfindable.blobs, 1 + backend_.count("d/") + backend_.count("c/"));
  EXPECT_GT(report.unfindable.bytes, 0u);
}

TEST_F(Check, DataOfAPromptWithoutABlockIsNamedByItsRecord) {
  must(library_->put_cache(branch(trunk_, 100, 0, 1), "short"));
  ASSERT_EQ(backend_.count("s/"), 0u);
  EXPECT_EQ(check({.read_data = true}).unfindable.blobs, 0u);
}

TEST_F(Check, CountsForeignKeys) {
  must(backend_.put("other/thing", as_bytes("abc")));
  const store::CheckReport report = check({.read_data = true, .repair = true});
  EXPECT_TRUE(report.is_whole());
  EXPECT_EQ(report.others.blobs, 1u);
  EXPECT_EQ(report.others.bytes, 3u);
  EXPECT_EQ(backend_.values.size(), 1u);
}

TEST_F(Check, BlobsOfALaterVersionAreNoDamageAndStay) {
  must(library_->put_cache(trunk_, "kept"));
  must(library_->put_cache(branch(trunk_, 100, 0, 1), "later"));
  backend_.make_later(key_of("b/000001"));
  backend_.make_later(store::record_key("", "later"));
  const std::size_t before = backend_.values.size();
  const store::CheckReport report = check({.read_data = true, .repair = true});
  EXPECT_TRUE(report.is_whole());
  EXPECT_EQ(report.later, 2u);
  EXPECT_EQ(report.prompts, 1u);
  EXPECT_EQ(report.prompts_damaged, 0u);
  EXPECT_EQ(backend_.values.size(), before);
}

TEST_F(Check, CanBeInterrupted) {
  must(library_->put_cache(trunk_, "kept"));
  const auto never = [](std::uint64_t, std::uint64_t) { return false; };
  const auto report = store::check(backend_, {.read_data = true}, never);
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code, ErrorCode::kInterrupted);
}

}  // namespace check_test
}  // namespace tqcache::test
