// Blobs with other values than the SHA-256 that they state, all their checksums right: what
// somebody makes who can write to the backend.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "store/altered_backend.h"
#include "support/forged_file.h"
#include "support/matchers.h"
#include "tqcache/format/section_reader.h"
#include "tqcache/store/blobs/blob.h"
#include "tqcache/upkeep.h"

namespace tqcache::test {
namespace forged_test {

using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr const char* kRefusal = "SHA-256 of the content mismatch";

// The blob of a block with a sign turned in its first section, which is then stored uncompressed.
Bytes forged_blob(const std::string& key, const Bytes& blob) {
  auto content = must(store::decode_blob(key, SharedBytes(AlignedBytes(blob.begin(), blob.end()))));
  auto& block = std::get<store::Block>(content);
  format::Manifest manifest;
  manifest.layers = cache::describe(CacheBuilder(1).dense(kHeads).dense(kHeads).build()).layers;
  store::StoredSection& section = block.sections.front();
  AlignedBytes raw(section.stored.view().begin(), section.stored.view().end());
  if (section.info.compression != format::Compression::kNone) {
    must(format::unpack_stored(manifest, section.info, section.stored.view(), {}, raw));
  }
  raw[1] ^= std::byte{0x80};
  section.info.compression = format::Compression::kNone;
  section.info.stored_bytes = raw.size();
  section.info.checksum = xxh3_128(raw);
  section.stored = SharedBytes(std::move(raw));
  return must(store::encode_blob(key, content));
}

class ForgedBlobs : public testing::TestWithParam<format::Compression> {
 protected:
  void SetUp() override {
    put(library_.library, honest_, "book");
    key_ = all_keys(backend_, "b/000001/").front();
    honest_blob_ = backend_.value(key_);
    forged_blob_ = forged_blob(key_, honest_blob_);
  }
  void forge() { backend_.give(key_, forged_blob_); }

  std::vector<std::string> check() {
    std::vector<std::string> findings;
    store::CheckOptions options{.read_data = true};
    options.on_finding = [&](const store::Finding& finding) {
      findings.push_back(finding.key + ": " + finding.error.message);
    };
    const store::CheckReport report = must(store::check(backend_, options));
    EXPECT_EQ(report.is_whole(), findings.empty());
    return findings;
  }

  AlteredBackend backend_;
  ToldLibrary library_{backend_};
  const cache::Cache cache_ = CacheBuilder(700).dense(kHeads).dense(kHeads).build();
  const Bytes honest_ = file_of(cache_, GetParam());
  std::string key_;
  Bytes honest_blob_, forged_blob_;
};

TEST_P(ForgedBlobs, AForgedFileIsNotPut) {
  const Bytes forged = forged_file(cache_, {.compression = GetParam()});
  ASSERT_EQ(name_of(forged), name_of(honest_));
  AlteredBackend empty;
  ToldLibrary into_empty(empty);
  for (ToldLibrary* library : {&into_empty, &library_}) {
    for (const char* name : {"", "book"}) {
      EXPECT_THAT((*library)->put_file(*memory_source(forged), name, {}, {}),
                  test::FailsWith(ErrorCode::kCorrupt, HasSubstr(kRefusal)));
    }
  }
  EXPECT_THAT(all_keys(empty, "b/"), IsEmpty());
  EXPECT_THAT(check(), IsEmpty());
}

TEST_P(ForgedBlobs, ACheckThatReadsFindsThem) {
  EXPECT_THAT(check(), IsEmpty());
  forge();
  EXPECT_THAT(check(), Contains(HasSubstr(kRefusal)));
  must(store::check(backend_, {.read_data = true, .repair = true}));
  EXPECT_THAT(all_keys(backend_, "b/000001/"), IsEmpty());
}

TEST_P(ForgedBlobs, ANamedPromptWithOneIsNotFetched) {
  forge();
  const auto fetched = library_->fetch(record_of(library_.library, "book"));
  ASSERT_FALSE(fetched);
  EXPECT_EQ(fetched.error().code, ErrorCode::kCorrupt);
  EXPECT_THAT(library_.told, Contains(HasSubstr(kRefusal)));
}

TEST_P(ForgedBlobs, APrefixEndsBeforeThem) {
  forge();
  store::Prefix prefix = must(library_->find(cache_.identity, and_more(cache_)));
  const auto prompt = must(library_->fetch(prefix));
  EXPECT_EQ(prefix.n_tokens, 256);
  EXPECT_EQ(difference(load(*prompt), must(cache::truncate(cache_, 256))), "");
  EXPECT_THAT(library_.told, Contains(HasSubstr(kRefusal)));
  // Without the comparison checksums alone count: docs/reference/store.md, 8.5.
  store::Library trusting(backend_, {.verify_digests = false});
  prefix = must(trusting.find(cache_.identity, and_more(cache_)));
  must(trusting.fetch(prefix));
  EXPECT_EQ(prefix.n_tokens, 700);
}

TEST_P(ForgedBlobs, APutReplacesThem) {
  for (const char* name : {"book", "another name", ""}) {
    forge();
    const store::PutReport report = put(library_.library, honest_, name);
    EXPECT_EQ(report.new_blocks, 1) << name;
    EXPECT_EQ(report.other_blocks, 0);
    EXPECT_THAT(check(), IsEmpty());
    const auto prompt = must(library_->fetch(record_of(library_.library, "book")));
    EXPECT_EQ(name_of(fetched_file(library_.library, "book")), name_of(honest_));
    EXPECT_EQ(difference(load(*prompt), cache_), "");
  }
}

// The blob was put by another after this put had asked what exists.
TEST_P(ForgedBlobs, APutThatFindsOneInItsPlaceReplacesIt) {
  for (const char* name : {"book", ""}) {
    (void)must(backend_.inner().remove(key_));
    bool is_planted = false;
    backend_.before_put = [&](const std::vector<std::string>& keys) {
      if (is_planted || std::ranges::find(keys, key_) == keys.end()) return;
      is_planted = true;
      backend_.give(key_, forged_blob_);
    };
    put(library_.library, honest_, name);
    EXPECT_TRUE(is_planted);
    EXPECT_EQ(backend_.value(key_), honest_blob_);
  }
}

// Others' values that are what they say stay, and the record says so.
TEST_P(ForgedBlobs, APutTellsOfOtherValues) {
  AlteredBackend backend;
  ToldLibrary library(backend);
  const auto reader = cache::reader_of(cache_);
  const TurnedReader turned(*reader,
                            [](const cache::BlockInfo& block) { return block.block == 1; });
  must(library->put(turned, ""));
  for (const char* name : {"", "mine"}) {
    const store::PutReport report = put(library.library, honest_, name);
    EXPECT_EQ(report.other_blocks, 1);
    EXPECT_EQ(report.new_blocks, 0);
  }
  EXPECT_NE(name_of(fetched_file(library.library, "mine")), name_of(honest_));
}

TEST_P(ForgedBlobs, ACopyLeavesThemOut) {
  forge();
  AlteredBackend to;
  std::vector<std::string> told;
  const store::CopyOptions options{
      .on_warning = [&](const std::string& message) { told.push_back(message); }};
  const store::CopyReport report = must(store::copy_store(backend_, to, options));
  EXPECT_EQ(report.prompts_failed, 1u);
  EXPECT_THAT(told, Contains(HasSubstr(kRefusal)));
  EXPECT_THAT(all_keys(to, "b/000001/"), IsEmpty());
}

TEST_P(ForgedBlobs, ACopyReplacesThem) {
  AlteredBackend to;
  must(store::copy_store(backend_, to, {}));
  to.give(key_, forged_blob_);
  must(store::copy_store(backend_, to, {}));
  EXPECT_EQ(to.value(key_), honest_blob_);
}

INSTANTIATE_TEST_SUITE_P(All, ForgedBlobs,
                         testing::Values(format::Compression::kNone, format::Compression::kZstd,
                                         format::Compression::kPlanes),
                         [](const auto& test) {
                           const bool is_stored = test.param == format::Compression::kNone;
                           const bool is_zstd = test.param == format::Compression::kZstd;
                           return is_stored ? "Stored" : is_zstd ? "Zstd" : "Planes";
                         });

}  // namespace forged_test
}  // namespace tqcache::test
