// A compacted file is the one that would have been written anew.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "append_fixture.h"

namespace tqcache::test {
namespace compact_test {

using format::compact_file;
using format::CompactReport;
using testing::IsEmpty;

class Compact : public testing::TestWithParam<Compression> {
 protected:
  format::WriteOptions options() const { return {.compression = GetParam()}; }

  const cache::Cache cache_ = CacheBuilder(500).turbo({1, 32}, 4, 3).dense({1, 4}).arrays().build();
  const cache::Cache longer_ = grown(cache_, 30);
  const CacheOnDisk file_{cache_, options()};
};

TEST_P(Compact, GivesTheFileThatWouldHaveBeenWrittenAnew) {
  must(file_.append(longer_, options()));
  const Bytes before = file_.bytes();
  const CompactReport report = must(compact_file(file_.path(), {.writer = "has no meaning"}));
  EXPECT_TRUE(report.rewritten);
  EXPECT_EQ(report.bytes_before, before.size());
  EXPECT_EQ(report.bytes_after, file_.bytes().size());
  EXPECT_LT(report.bytes_after, report.bytes_before);
  EXPECT_EQ(file_.bytes(), file_of(longer_, GetParam()));
  EXPECT_EQ(info_of(file_.bytes()).content_name, info_of(before).content_name);
  EXPECT_EQ(file_.entry_count(), 1u);
}

TEST_P(Compact, LeavesAFileAloneThatHasNothingToDrop) {
  const Bytes before = file_.bytes();
  for (int i = 0; i < 2; ++i) {
    const CompactReport report = must(compact_file(file_.path(), {}));
    EXPECT_FALSE(report.rewritten);
    EXPECT_EQ(report.bytes_before, before.size());
    EXPECT_EQ(report.bytes_after, before.size());
    EXPECT_EQ(file_.bytes(), before);
  }
}

TEST_P(Compact, TakesWhatAnAppendLeftBehind) {
  const Bytes whole = file_.bytes();
  Bytes announced = whole;
  put_slot(announced, format::announcement(header_of(whole).slot));
  Bytes trailing = announced;
  trailing.resize(whole.size() + 77, std::byte{7});
  Bytes torn = whole;
  torn[format::kSlotBytes + 9] = std::byte{1};
  for (const Bytes& left : {announced, trailing, torn}) {
    const CacheOnDisk file(left);
    const CompactReport report = must(compact_file(file.path(), {}));
    EXPECT_TRUE(report.rewritten);
    EXPECT_EQ(report.bytes_before, left.size());
    EXPECT_EQ(file.bytes(), whole);
  }
}

TEST_P(Compact, RefusesDamageAndLeavesTheFileAsItWas) {
  must(file_.append(longer_, options()));
  Bytes damaged = file_.bytes();
  const SectionInfo section = info_of(damaged).sections[1];
  damaged[section.file_offset + section.stored_bytes / 2] ^= std::byte{1};
  const CacheOnDisk file(damaged);
  expect_error(dropped(compact_file(file.path(), {})), ErrorCode::kCorrupt,
               "section 1 (layer 0 v, block 0): checksum mismatch");
  EXPECT_EQ(file.bytes(), damaged);
  EXPECT_EQ(file.entry_count(), 1u);
}

TEST_P(Compact, RefusesContentThatOnlySha256Knows) {
  must(file_.append(longer_, options()));
  const Bytes damaged = forge(file_.bytes(), [](Manifest& manifest) {
    manifest.sections[0].raw_sha256[0] ^= std::byte{1};
  });
  const CacheOnDisk file(damaged);
  expect_error(dropped(compact_file(file.path(), {})), ErrorCode::kCorrupt,
               "section 0 (layer 0 k, block 0): SHA-256");
  EXPECT_EQ(file.bytes(), damaged);
}

TEST_P(Compact, TellsItsProgressAndCanBeStopped) {
  must(file_.append(longer_, options()));
  const Bytes before = file_.bytes();
  std::uint64_t last = 0, expected = 0;
  for (const SectionInfo& section : info_of(before).sections) expected += section.raw_bytes;
  int calls = 0;
  const auto stop = [&](std::uint64_t, std::uint64_t) { return ++calls < 3; };
  expect_error(dropped(compact_file(file_.path(), {}, stop)), ErrorCode::kInterrupted,
               "interrupted");
  EXPECT_EQ(file_.bytes(), before);
  EXPECT_EQ(file_.entry_count(), 1u);
  must(compact_file(file_.path(), {}, [&](std::uint64_t done, std::uint64_t total) {
    EXPECT_GT(done, last);
    EXPECT_EQ(total, expected);
    last = done;
    return true;
  }));
  EXPECT_EQ(last, expected);
}

TEST_P(Compact, KeepsWhatTheFileIs) {
  format::WriteOptions hidden = options();
  hidden.hide_tokens = true;
  hidden.writer = "someone 1.0";
  const CacheOnDisk file(cache_, hidden);
  must(file.append(longer_, options()));
  must(compact_file(file.path(), {}));
  EXPECT_EQ(file.bytes(), must(format::write_cache_bytes(longer_, hidden)));
  const bool planes = GetParam() == Compression::kPlanes;
  EXPECT_EQ(info_of(file.bytes()).required_features,
            format::kFeatureHiddenTokens | (planes ? format::kFeaturePlanes : 0));
}

INSTANTIATE_TEST_SUITE_P(Of, Compact, testing::ValuesIn(kCompressions),
                         [](const auto& test) { return name_of(test.param); });

// Sections of three kinds, of which none is compressed again.
TEST(CompactedFile, HasTheSectionsAsTheyWereStored) {
  const cache::Cache cache = CacheBuilder(250).turbo({1, 32}, 4, 3).dense({1, 4}).build();
  const cache::Cache longer = grown(cache, 300), longest = grown(longer, 300);
  const CacheOnDisk file(cache);
  must(file.append(longer, {.compression = Compression::kPlanes}));
  must(file.append(longest, {.compression = Compression::kZstd}));
  const auto stored_of = [](const Bytes& bytes) {
    std::vector<std::pair<Compression, Checksum128>> stored;
    for (const SectionInfo& section : info_of(bytes).sections) {
      stored.emplace_back(section.compression, section.checksum);
    }
    return stored;
  };
  const auto before = stored_of(file.bytes());
  EXPECT_TRUE(must(compact_file(file.path(), {})).rewritten);
  EXPECT_EQ(stored_of(file.bytes()), before);
  EXPECT_THAT(damage_of(file.bytes()), IsEmpty());
  EXPECT_EQ(file_of(must(load(file.bytes(), {}))), file_of(longest));
}

TEST(CompactedFile, CanBeAppendedTo) {
  cache::Cache cache = CacheBuilder(250).turbo({1, 32}, 4, 3).build();
  const CacheOnDisk file(cache);
  for (unsigned i = 0; i < 4; ++i) {
    cache = grown(cache, 5, i);
    must(file.append(cache));
    must(compact_file(file.path(), {}));
    EXPECT_EQ(info_of(file.bytes()).generation, 1u);
  }
  EXPECT_EQ(file.bytes(), file_of(cache));
}

TEST(CompactedFile, StaysReadableForProcessesThatHaveItOpen) {
  const cache::Cache cache = CacheBuilder(3).dense({2, 4}).build();
  const CacheOnDisk file(cache);
  const cache::Cache longer = grown(cache, 2);
  must(file.append(longer));
  const auto source = must(open_file(file.path()));
  must(compact_file(file.path(), {}));
  EXPECT_EQ(difference(must(format::read_cache(*source)), longer), "");
}

TEST(CompactedFile, MustBeAnExistingCacheFile) {
  const CacheOnDisk file(Bytes(300));
  expect_error(dropped(compact_file(file.path(), {})), ErrorCode::kCorrupt, "not a .tqkv file");
  const TempDir dir;
  expect_error(dropped(compact_file(dir / "none", {})), ErrorCode::kNotFound, "no such file");
}

}  // namespace compact_test
}  // namespace tqcache::test
