// Prompts that are copied from one store to another.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "store/aged_backend.h"
#include "store/library_fixture.h"
#include "tqcache/store/blobs/blob_keys.h"
#include "tqcache/upkeep.h"

namespace tqcache::test {
namespace copy_test {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

class Copy : public testing::Test {
 protected:
  store::CopyReport copy(store::CopyOptions options = {}) {
    note_troubles(options);
    return must(store::copy_store(from_, to_, options));
  }
  store::CopyReport copy_prompt(const std::string& name, store::CopyOptions options = {}) {
    note_troubles(options);
    return must(store::copy_prompts(from_, to_, {store::record_key("", name)}, options));
  }
  void note_troubles(store::CopyOptions& options) {
    options.on_warning = [&](const std::string& message) { warnings_.push_back(message); };
  }

  bool is_whole() { return must(store::check(to_, {.read_data = true})).is_whole(); }
  // That of the prompt as a file.
  Sha256 content_there(std::string_view name) {
    const auto prompt = must(there_->fetch(record_of(there_.library, name)));
    return prompt->manifest().content_name;
  }

  AgedBackend from_, to_;
  ToldLibrary here_{from_}, there_{to_};
  cache::Cache trunk_ = trunk_of(900);
  std::vector<std::string> warnings_;
};

TEST_F(Copy, CopiesEverythingButHitStatistics) {
  must(here_->put_cache(trunk_, "a"));
  must(here_->put_cache(branch(trunk_, 600, 256, 1), ""));
  must(here_->put_cache(branch(trunk_, 100, 0, 1), "short"));
  must(here_->note_usage({1, 2, 1, 0, 0}));
  const store::CopyReport report = copy();
  EXPECT_TRUE(report.is_whole());
  EXPECT_EQ(report.prompts, 2u);
  EXPECT_EQ(report.blobs, to_.values.size());
  EXPECT_EQ(report.bytes, to_.bytes());
  EXPECT_EQ(to_.values.size(), from_.values.size() - 1);
  EXPECT_EQ(to_.count("u/"), 0u);
  for (const auto& [key, value] : to_.values) EXPECT_EQ(value.bytes, from_.values.at(key).bytes);
  EXPECT_TRUE(is_whole());
}

TEST_F(Copy, OfOnePromptCopiesExactlyWhatItNeeds) {
  const Sha256 content = must(here_->put_cache(trunk_, "a")).content_name;
  const std::size_t needed = from_.values.size();
  must(here_->put_cache(branch(trunk_, 900, 512, 1), "b"));
  const store::CopyReport report = copy_prompt("a");
  EXPECT_EQ(report.prompts, 1u);
  EXPECT_EQ(to_.values.size(), needed);
  EXPECT_TRUE(is_whole());
  EXPECT_EQ(content_there("a"), content);
}

TEST_F(Copy, OfWideBlocksBringsAllTheirParts) {
  const cache::Cache wide = wide_trunk_of(600);
  must(here_->put_cache(wide, "wide"));
  ASSERT_GT(from_.count("b/"), 2u);
  copy_prompt("wide");
  EXPECT_EQ(to_.count("b/"), from_.count("b/"));
  EXPECT_TRUE(is_whole());
}

TEST_F(Copy, SendsNoExistingBlobs) {
  must(here_->put_cache(trunk_, "a"));
  copy();
  const store::CopyReport again = copy();
  EXPECT_EQ(again.blobs, 0u);
  EXPECT_EQ(again.bytes, 0u);
  EXPECT_EQ(again.prompts, 0u);
  EXPECT_EQ(again.prompts_existed, 1u);
  EXPECT_TRUE(again.is_whole());
}

TEST_F(Copy, AddsWhatIsMissingInTheTarget) {
  must(here_->put_cache(trunk_, "a"));
  copy();
  to_.values.erase(to_.values.lower_bound("b/000001"));
  to_.values.erase(to_.values.lower_bound("d/"));
  EXPECT_EQ(copy().blobs, 2u);
  EXPECT_TRUE(is_whole());
}

// The same first token block in two stores, each with means of its own in slot 0.
TEST_F(Copy, FindsOtherSlotsForParametersAndStates) {
  const auto coded = [](int bits) {
    return CacheBuilder(600).center(cache::Centering::kPostRope).turbo({2, 64}, bits, bits).build();
  };
  const Sha256 content = must(here_->put_cache(coded(4), "four")).content_name;
  must(there_->put_cache(coded(3), "three"));
  EXPECT_TRUE(copy().is_whole());
  EXPECT_EQ(to_.count("p/"), 2u);
  EXPECT_EQ(record_of(there_.library, "four").parameters_key.back(), '1');
  EXPECT_TRUE(is_whole());
  EXPECT_EQ(content_there("four"), content);
  EXPECT_TRUE(must(there_->fetch(record_of(there_.library, "three"))));
}

TEST_F(Copy, StatesBehindOneBlockStandTensorByTensor) {
  must(here_->put_cache(branch(trunk_, 600, 512, 1), "one"));
  must(there_->put_cache(branch(trunk_, 600, 512, 2), "two"));
  EXPECT_TRUE(copy().is_whole());
  EXPECT_EQ(to_.count("s/"), 2u);
  EXPECT_TRUE(is_whole());
  for (const char* const name : {"one", "two"}) {
    EXPECT_TRUE(must(there_->fetch(record_of(there_.library, name))));
  }
}

TEST_F(Copy, ReplacesNamesOnlyIfAllowed) {
  const Sha256 here = must(here_->put_cache(branch(trunk_, 600, 0, 1), "name")).content_name;
  const Sha256 there = must(there_->put_cache(branch(trunk_, 600, 0, 2), "name")).content_name;
  const store::CopyReport report = copy_prompt("name");
  EXPECT_EQ(report.prompts_failed, 1u);
  EXPECT_FALSE(report.is_whole());
  ASSERT_THAT(warnings_, SizeIs(1));
  EXPECT_THAT(warnings_[0], HasSubstr("another prompt has that name"));
  EXPECT_EQ(content_there("name"), there);
  EXPECT_TRUE(copy_prompt("name", {.replace = true}).is_whole());
  EXPECT_EQ(content_there("name"), here);
}

// Whatever is missing or damaged: the prompt that needs it is left out, and the rest is copied.
TEST_F(Copy, LeavesOutWhatIsBad) {
  must(here_->put_cache(branch(trunk_, 600, 0, 1), "bad"));
  must(here_->put_cache(trunk_of(600, 2), "good"));
  const store::PromptRecord bad = record_of(here_.library, "bad");
  const auto all = from_.values;
  std::vector<std::string> keys = {bad.parameters_key, bad.state_key,
                                   store::block_key(bad.chain[1], 1, 0), bad.snapshot.data_keys[0],
                                   store::record_key("", "bad")};
  for (const std::string& key : keys) {
    for (const bool is_missing : {false, true}) {
      if (is_missing && key.starts_with("n/")) continue;
      SCOPED_TRACE(key);
      from_.values = all;
      to_.values.clear();
      warnings_.clear();
      is_missing ? void(from_.values.erase(key)) : from_.damage(key);
      const store::CopyReport report = copy();
      EXPECT_FALSE(report.is_whole());
      EXPECT_EQ(report.prompts, 1u);
      EXPECT_THAT(warnings_, testing::Not(IsEmpty()));
      EXPECT_TRUE(is_whole());
      EXPECT_FALSE(must(there_->record("bad")));
      EXPECT_TRUE(must(there_->fetch(record_of(there_.library, "good"))));
      EXPECT_EQ(from_.values.size(), all.size() - (is_missing ? 1 : 0));  // nothing is removed here
    }
  }
}

TEST_F(Copy, AMissingPromptIsReported) {
  const store::CopyReport report = copy_prompt("nobody");
  EXPECT_FALSE(report.is_whole());
  EXPECT_THAT(warnings_, SizeIs(1));
  EXPECT_THAT(to_.values, IsEmpty());
}

TEST_F(Copy, PutsRecordsLast) {
  must(here_->put_cache(trunk_, "a"));
  const auto all = from_.values;
  // Interrupted wherever: what is there by then is whole.
  for (std::uint64_t limit = 0;; ++limit) {
    to_.values.clear();
    std::uint64_t n_calls = 0;
    const auto until = [&](std::uint64_t, std::uint64_t) { return n_calls++ < limit; };
    const auto report = store::copy_store(from_, to_, {}, until);
    EXPECT_TRUE(is_whole()) << limit;
    if (report) break;
    EXPECT_EQ(report.error().code, ErrorCode::kInterrupted);
    ASSERT_LT(limit, 1000u);
  }
  EXPECT_EQ(to_.count("n/"), 1u);
}

}  // namespace copy_test
}  // namespace tqcache::test
