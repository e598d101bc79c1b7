// One test a rule of docs/reference/format.md §4.5 for files with gaps.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "append_fixture.h"

namespace tqcache::test {
namespace gaps_test {

using format::GapInfo;
using testing::ElementsAre;
using testing::IsEmpty;

// Gaps: 0 and 1, the values of the first state; 2 and 3, its arrays; 4, its manifest.
class Gaps : public testing::Test {
 protected:
  void expect_corrupt(const std::function<void(Manifest&)>& change, std::string_view part) const {
    expect_refused(forge(file_, change), ErrorCode::kCorrupt, part);
  }

  const Bytes file_ = appended_small_file();
  const CacheFileInfo info_ = info_of(file_);
};

TEST_F(Gaps, AreWhatTheAppendLeftBehind) {
  ASSERT_EQ(info_.gaps.size(), 5u);
  const Bytes first = file_of(CacheBuilder(3).dense({2, 4}).arrays().build());
  const CacheFileInfo before = info_of(first);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(info_.gaps[i].file_offset, before.sections[i].file_offset);
    EXPECT_EQ(info_.gaps[i].bytes, before.sections[i].stored_bytes);
    EXPECT_EQ(info_.gaps[i].checksum, before.sections[i].checksum);
  }
  EXPECT_EQ(info_.gaps[4].file_offset + info_.gaps[4].bytes, first.size());
  EXPECT_EQ(info_.gap_bytes, before.manifest_bytes + 2 * 2 * 3 * 4 * 2 + 120 + 280);
  EXPECT_EQ(info_.required_features, format::kFeatureGaps);
}

TEST_F(Gaps, SectionsAndPaddingCoverTheWholeFile) {
  std::uint64_t stored = 0;
  for (const SectionInfo& section : info_.sections) stored += section.stored_bytes;
  EXPECT_EQ(
      format::kHeaderBytes + stored + info_.gap_bytes + info_.padding_bytes + info_.manifest_bytes,
      file_.size());
}

TEST_F(Gaps, AreReadAfterResealingUnchanged) {
  EXPECT_EQ(forge(file_, [](Manifest&) {}), file_);
}

TEST_F(Gaps, RequireTheirFeatureBit) {
  const auto with_bits = [&](std::uint32_t bits) {
    return forge(
        file_, [](Manifest&) {}, [=](auto& slot) { slot.required_features = bits; });
  };
  expect_refused(with_bits(0), ErrorCode::kCorrupt, "required features 0 where the manifest has 2");
  expect_refused(with_bits(6), ErrorCode::kCorrupt, "required features 6 where the manifest has 2");
}

TEST(FileWithoutGaps, HasNoFeatureBit) {
  const auto set = [](std::uint32_t bits) {
    return [=](format::HeaderSlot& slot) { slot.required_features = bits; };
  };
  const auto keep = [](Manifest&) {};
  expect_refused(forge(small_file(), keep, set(format::kFeatureGaps)), ErrorCode::kCorrupt,
                 "required features 2 where the manifest has 0");
  expect_refused(forge(small_file(), keep, set(format::kFeatureHiddenTokens)), ErrorCode::kCorrupt,
                 "required features 4 where the manifest has 0");
  const Bytes hidden = file_of(CacheBuilder(3).dense({2, 4}).hide_tokens().build());
  expect_refused(forge(hidden, keep, set(0)), ErrorCode::kCorrupt,
                 "required features 0 where the manifest has 4");
}

TEST_F(Gaps, AreNotEmpty) {
  expect_corrupt([](Manifest& manifest) { manifest.gaps[1].bytes = 0; }, "gap 1: of no bytes");
}

TEST_F(Gaps, Ascend) {
  expect_corrupt([](Manifest& manifest) { std::swap(manifest.gaps[1], manifest.gaps[2]); },
                 "gap 2: not behind the one before");
  expect_corrupt(
      [](Manifest& manifest) { manifest.gaps.insert(manifest.gaps.begin(), manifest.gaps[0]); },
      "gap 1: not behind the one before");
}

TEST_F(Gaps, LeaveNothingOut) {
  for (std::size_t i = 0; i < 5; ++i) {
    expect_corrupt(
        [=](Manifest& manifest) {
          manifest.gaps.erase(manifest.gaps.begin() + static_cast<std::ptrdiff_t>(i));
        },
        "follows");
  }
}

TEST_F(Gaps, BeginAtTheEndOfWhatIsBefore) {
  for (const std::uint64_t by : {std::uint64_t{1}, std::uint64_t{64}, ~std::uint64_t{63}}) {
    expect_corrupt([=](Manifest& manifest) { manifest.gaps[3].file_offset += by; }, "follows");
  }
}

TEST_F(Gaps, DoNotOverlapSections) {
  // A section that lies in a gap, which another section then does not fill.
  expect_corrupt(
      [](Manifest& manifest) { manifest.sections[0].file_offset = manifest.gaps[0].file_offset; },
      "follows");
  expect_corrupt(
      [](Manifest& manifest) {
        manifest.sections[1].file_offset = manifest.sections[0].file_offset;
      },
      "follows");
  expect_corrupt([](Manifest& manifest) { manifest.gaps[0].bytes += 64; }, "follows");
}

TEST_F(Gaps, DoNotReachIntoTheManifest) {
  const std::uint64_t manifest = header_of(file_).slot.manifest_offset;
  for (const std::uint64_t bytes : {std::uint64_t{1}, ~std::uint64_t{0}, ~std::uint64_t{0} << 6}) {
    expect_corrupt(
        [=](Manifest& m) {
          m.gaps.push_back({manifest, bytes, {}});
        },
        "reaches into the manifest");
    expect_corrupt([=](Manifest& m) { m.gaps.back().bytes = bytes; },
                   bytes == 1 ? "follows" : "reaches into the manifest");
  }
}

TEST_F(Gaps, MayBeAnywhereAmongSections) {
  // Where two sections stand does not matter, as long as nothing is left over.
  const Bytes file = forge(file_, [&](Manifest& manifest) {
    SectionInfo& k = manifest.sections[0];
    SectionInfo& v = manifest.sections[1];
    std::swap(k.file_offset, v.file_offset);
    std::swap(k.checksum, v.checksum);
    std::swap(k.raw_sha256, v.raw_sha256);
  });
  EXPECT_THAT(damage_of(file), IsEmpty());
  EXPECT_TRUE(load(file).ok());
  // Without gaps sections stand in their order.
  expect_refused(forge(small_file(),
                       [](Manifest& manifest) {
                         std::swap(manifest.sections[0].file_offset,
                                   manifest.sections[1].file_offset);
                       }),
                 ErrorCode::kCorrupt, "section 0 (layer 0 k, block 0): file offset");
}

TEST(GapsAndEmptySections, LieBesideEachOther) {
  const auto with_empty = [](std::int64_t n_tokens) {
    cache::Cache cache = CacheBuilder(n_tokens).dense({1, 4}).build();
    cache::StateLayer layer;
    layer.arrays.push_back({"empty", Dtype::kF32, {3, 0}, {}});
    layer.arrays.push_back({"state", Dtype::kF32, {1}, AlignedBytes(4)});
    layer.arrays.push_back({"empty too", Dtype::kF32, {0}, {}});
    cache.layers.emplace_back(std::move(layer));
    return cache;
  };
  const cache::Cache cache = with_empty(3);
  const CacheOnDisk file(cache);
  cache::Cache longer = cache;
  for (unsigned i = 0; i < 3; ++i) {
    longer = grown(longer, 130, i);
    must(file.append(longer));
    EXPECT_EQ(difference(must(load(file.bytes())), longer), "");
    EXPECT_THAT(damage_of(file.bytes()), IsEmpty());
  }
}

TEST_F(Gaps, AreReadByVerifyAlone) {
  Bytes damaged = file_;
  damaged[info_.gaps[2].file_offset] ^= std::byte{1};
  damaged[info_.gaps[4].file_offset + info_.gaps[4].bytes - 1] ^= std::byte{1};
  EXPECT_TRUE(load(damaged).ok());
  EXPECT_THAT(damage_of(damaged),
              ElementsAre("gap 2: checksum mismatch", "gap 4: checksum mismatch"));
}

TEST_F(Gaps, HaveZerosBehindThem) {
  Bytes damaged = file_;
  const std::uint64_t end = info_.gaps[0].file_offset + info_.gaps[0].bytes;
  ASSERT_NE(end % 64, 0u);
  damaged[format::align_section(end) - 1] = std::byte{1};
  EXPECT_TRUE(load(damaged).ok());
  EXPECT_THAT(damage_of(damaged), ElementsAre("gap 0: padding behind it is not zero"));
}

TEST_F(Gaps, CountForHowMuchVerifyMayHold) {
  std::uint64_t largest = 0;
  for (const GapInfo& gap : info_.gaps) largest = std::max(largest, gap.bytes);
  const auto verify = [&](std::uint64_t max) {
    return dropped(format::verify_cache(*memory_source(file_),
                                        {.access = {.memory = MemoryBudget().at_most(max)}}));
  };
  EXPECT_TRUE(verify(largest).ok());
  expect_error(verify(largest - 1), ErrorCode::kTooLarge, "gap 4: ");
}

}  // namespace gaps_test
}  // namespace tqcache::test
