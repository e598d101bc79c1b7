// One test a rule of docs/reference/format.md §3.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "file_fixture.h"

namespace tqcache::test {
namespace header_test {

Bytes with_header(std::size_t at, auto value) {
  Bytes file = small_file();
  patch(file, at, value);
  reseal_slot(file);
  return file;
}

// Puts a copy of slot 0 with another generation into slot 1.
Bytes with_second_slot(std::uint32_t generation, std::uint64_t file_bytes_off_by = 0) {
  Bytes file = small_file();
  std::copy(file.begin(), file.begin() + format::kSlotBytes, file.begin() + format::kSlotBytes);
  const std::size_t slot = format::kSlotBytes;
  patch(file, slot + kGenerationAt, generation);
  patch(file, slot + kFileBytesAt, file.size() - file_bytes_off_by);
  reseal_slot(file, 1);
  return file;
}

TEST(Header, RefusesWhatIsNoCacheFile) {
  for (const std::size_t size : {1u, 7u, 8u, 127u, 128u, 5000u}) {
    expect_refused(Bytes(size, std::byte{'x'}), ErrorCode::kCorrupt, "not a .tqkv file");
  }
  expect_refused(Bytes(128), ErrorCode::kCorrupt, "not a .tqkv file");
}

TEST(Header, RefusesAnEmptyFileAsTruncated) {
  expect_refused({}, ErrorCode::kTruncated, "0 bytes");
}

TEST(Header, NamesATransferAsTextAsTheLikelyCause) {
  Bytes file = small_file();
  file.erase(file.begin() + 4);  // CR LF became LF
  expect_refused(file, ErrorCode::kCorrupt, "transfer as text");
}

TEST(Header, RefusesAWrongChecksum) {
  Bytes file = small_file();
  file[kOptionalAt] ^= std::byte{1};
  expect_refused(file, ErrorCode::kCorrupt, "header slot 0: checksum mismatch");
}

TEST(Header, RefusesANewerVersion) {
  expect_refused(with_header(kVersionAt, 3u), ErrorCode::kUnsupported, "version 3 is newer");
}

TEST(Header, RefusesAVersionThatNeverHadThisHeader) {
  expect_refused(with_header(kVersionAt, 1u), ErrorCode::kCorrupt, "version 1");
}

TEST(Header, ReportsDamageBeforeAVersionThatDamageMayHaveMade) {
  Bytes file = small_file();
  file[kVersionAt] = std::byte{3};
  expect_refused(file, ErrorCode::kCorrupt, "checksum mismatch");
}

TEST(Header, RefusesAnUnknownRequiredFeature) {
  for (const std::uint32_t bits : {format::kKnownRequiredFeatures + 1, 0x80000000u}) {
    expect_refused(with_header(kRequiredAt, bits), ErrorCode::kUnsupported, "required features");
  }
}

TEST(Header, IgnoresAnUnknownOptionalFeature) {
  const Bytes file = with_header(kOptionalAt, 0xffffffffu);
  EXPECT_TRUE(load(file).ok());
  EXPECT_THAT(damage_of(file), testing::IsEmpty());
  EXPECT_EQ(info_of(file).optional_features, 0xffffffffu);
}

TEST(Header, RefusesGenerationZeroAndOneOfTheOtherSlot) {
  for (const std::uint32_t generation : {0u, 2u}) {
    expect_refused(with_header(kGenerationAt, generation), ErrorCode::kCorrupt, "wrong slot");
  }
}

TEST(Header, UsesTheWholeSlotWithTheHighestGeneration) {
  Bytes file = with_second_slot(2);
  EXPECT_EQ(info_of(file).generation, 2u);
  EXPECT_THAT(damage_of(file), testing::IsEmpty());
  patch(file, kGenerationAt, 3u);
  reseal_slot(file);
  EXPECT_EQ(info_of(file).generation, 3u);
}

TEST(Header, LoadsBesideADamagedSlotThatVerifyReports) {
  Bytes file = with_second_slot(2);
  file[kManifestOffsetAt] ^= std::byte{1};
  EXPECT_TRUE(load(file).ok());
  EXPECT_THAT(damage_of(file), testing::ElementsAre("header slot 0: checksum mismatch"));
}

TEST(Header, ReportsAnyByteOfTheUnusedSlotThatIsNotZero) {
  Bytes file = small_file();
  file[100] = std::byte{1};
  EXPECT_TRUE(load(file).ok());
  EXPECT_THAT(damage_of(file), testing::ElementsAre("header slot 1: not a .tqkv file"));
}

// A second slot that announces an append to the state of small_file(), changed in one way.
Bytes with_announcement(const std::function<void(format::HeaderSlot&)>& change = {}) {
  Bytes file = small_file();
  format::HeaderSlot slot =
      format::announcement(must(format::read_header(*memory_source(file))).slot);
  if (change) change(slot);
  std::ranges::copy(format::encode_slot(slot), file.begin() + format::kSlotBytes);
  return file;
}

TEST(Header, TakesAnAnnouncementForWhatItIs) {
  Bytes file = with_announcement();
  EXPECT_EQ(info_of(file).generation, 1u);
  EXPECT_THAT(damage_of(file), testing::IsEmpty());
  file.resize(file.size() + 5, std::byte{9});
  EXPECT_TRUE(load(file).ok());
  EXPECT_EQ(info_of(file).trailing_bytes, 5u);
  EXPECT_THAT(damage_of(file), testing::IsEmpty());
}

TEST(Header, ReportsAnAnnouncementOfAnythingElse) {
  const std::vector<std::function<void(format::HeaderSlot&)>> changes = {
      [](auto& slot) { slot.generation = 4; },
      [](auto& slot) { slot.required_features |= format::kFeatureGaps; },
      [](auto& slot) { slot.required_features |= 0x80; },
      [](auto& slot) { slot.optional_features = 1; },
      [](auto& slot) { slot.manifest_offset = 128; },
      [](auto& slot) { slot.file_bytes += 1; },
      [](auto& slot) { slot.manifest_checksum.low = 1; },
  };
  for (const auto& change : changes) {
    const Bytes file = with_announcement(change);
    EXPECT_TRUE(load(file).ok());
    EXPECT_THAT(damage_of(file),
                testing::ElementsAre("header slot 1: announces an append, but not to the state of "
                                     "the other slot"));
  }
}

TEST(Header, ReportsAnAnnouncementThatNoGenerationFollows) {
  Bytes file = with_announcement([](auto& slot) { slot.generation = 0xfffffffe; });
  patch(file, kGenerationAt, 0xffffffffu);
  reseal_slot(file);
  EXPECT_TRUE(load(file).ok());
  EXPECT_EQ(damage_of(file).size(), 1u);
}

TEST(Header, RefusesAnAnnouncementWithoutAState) {
  expect_refused(with_header(kRequiredAt, format::kFeatureGrowing), ErrorCode::kCorrupt,
                 "header slot 0: announces an append to a state that is not there");
  Bytes both = with_announcement();
  patch(both, kRequiredAt, format::kFeatureGrowing);
  reseal_slot(both);
  expect_refused(both, ErrorCode::kCorrupt, "announces an append to a state that is not there");
  Bytes damaged = with_announcement();
  damaged[kManifestOffsetAt] ^= std::byte{1};
  expect_refused(damaged, ErrorCode::kCorrupt, "header slot 0: checksum mismatch");
}

TEST(Header, DoesNotTakeASlotOfANewerVersionForAnAnnouncement) {
  expect_refused(with_announcement([](auto& slot) { slot.version = 3; }), ErrorCode::kUnsupported,
                 "version 3 is newer");
}

TEST(Header, AllowsBytesBehindTheEndBesideADamagedSlotThatVerifyReports) {
  Bytes file = with_announcement();
  file[format::kSlotBytes + kFileBytesAt] ^= std::byte{1};
  file.resize(file.size() + 3);
  EXPECT_TRUE(load(file).ok());
  const CacheFileInfo info = info_of(file);
  EXPECT_EQ(info.trailing_bytes, 3u);
  EXPECT_THAT(info.damage, testing::ElementsAre("header slot 1: checksum mismatch"));
  EXPECT_THAT(damage_of(file), testing::ElementsAre("header slot 1: checksum mismatch"));
}

TEST(Header, DoesNotFallBackToAnOlderSlotWhenTheFileDoesNotFitTheNewer) {
  expect_refused(with_second_slot(2, 1), ErrorCode::kCorrupt, "1 bytes behind the end");
}

TEST(Header, RefusesAFileShorterOrLongerThanItSays) {
  Bytes file = small_file();
  file.push_back(std::byte{0});
  expect_refused(file, ErrorCode::kCorrupt, "1 bytes behind the end");
  file.pop_back();
  file.pop_back();
  expect_refused(file, ErrorCode::kTruncated, "the file ends after");
}

TEST(Header, RefusesAManifestOffsetOutOfPlace) {
  const Bytes file = small_file();
  const auto offset = value_at<std::uint64_t>(file, kManifestOffsetAt);
  for (const std::uint64_t bad :
       {std::uint64_t{0}, std::uint64_t{64}, offset + 1, offset - 8, std::uint64_t{file.size()},
        align_up(file.size(), 64).value(), ~std::uint64_t{0}, ~std::uint64_t{63}}) {
    expect_refused(with_header(kManifestOffsetAt, bad), ErrorCode::kCorrupt, "manifest offset");
  }
}

TEST(Header, RefusesAManifestThatEndsWhereTheFileDoesNot) {
  for (const std::uint64_t bad : {std::uint64_t{0}, std::uint64_t{1}}) {
    expect_refused(with_header(kFileBytesAt, bad), ErrorCode::kCorrupt, "behind the end");
  }
  for (const std::uint64_t bad : {~std::uint64_t{0}, std::uint64_t{1} << 63}) {
    expect_refused(with_header(kFileBytesAt, bad), ErrorCode::kTruncated, "the file ends after");
  }
}

TEST(Header, RefusesAWrongManifestChecksum) {
  Bytes file = small_file();
  file.back() ^= std::byte{1};
  expect_refused(file, ErrorCode::kCorrupt, "manifest: checksum mismatch");
}

}  // namespace header_test
}  // namespace tqcache::test
