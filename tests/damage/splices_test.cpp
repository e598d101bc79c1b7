// Parts of files in the wrong place. Each is whole in itself, and where a test says "sealed" every
// checksum over it was made right again: only what binds the parts together can show it.

#include <gmock/gmock.h>

#include "damage.h"

namespace tqcache::test {
namespace splices_test {

// Two layers of 600 tokens, whose sections have sizes in common: three token blocks, the last one
// dense.
cache::Cache cache_of(std::uint64_t seed) {
  return CacheBuilder(600, seed).preset({1, 32}, "turbo4").dense({1, 32}).build();
}

class Splice : public testing::TestWithParam<Compression> {
 protected:
  const Bytes a_ = file_of(cache_of(1), GetParam());
  const Bytes b_ = file_of(cache_of(2), GetParam());
  const cache::Cache cache_ = must(load(a_));
  const Manifest manifest_ = info_of(a_);
  const Manifest other_ = info_of(b_);

  // Pairs of sections that have the same size in the file.
  std::vector<std::pair<std::size_t, std::size_t>> equal_sized() const {
    std::vector<std::pair<std::size_t, std::size_t>> pairs;
    const auto& sections = manifest_.sections;
    for (std::size_t i = 0; i < sections.size(); ++i) {
      for (std::size_t j = i + 1; j < sections.size(); ++j) {
        if (sections[i].stored_bytes == sections[j].stored_bytes) pairs.emplace_back(i, j);
      }
    }
    return pairs;
  }

  // A load fails or gives what the file held before; verify tells in any case.
  void expect_spliced_found(const Bytes& file) const { expect_found(file, cache_, "spliced"); }

  // Of sealed files: a load may take the bytes for the section's, verify does not.
  static void expect_reported_as(const Bytes& file, std::string_view part) {
    EXPECT_THAT(damage_of(file), testing::Contains(testing::HasSubstr(std::string(part))));
  }
};

INSTANTIATE_TEST_SUITE_P(Of, Splice, testing::ValuesIn(kCompressions),
                         [](const auto& test) { return name_of(test.param); });

TEST_P(Splice, OfTwoSectionsOfOneFileIsFound) {
  const auto pairs = equal_sized();
  ASSERT_FALSE(pairs.empty());
  for (const auto& [i, j] : pairs) {
    Bytes file = a_;
    std::ranges::swap_ranges(stored_bytes(file, manifest_.sections[i]),
                             stored_bytes(file, manifest_.sections[j]));
    expect_spliced_found(file);
    expect_reported_as(file, "checksum mismatch");

    Manifest sealed = manifest_;
    std::swap(sealed.sections[i].checksum, sealed.sections[j].checksum);
    expect_reported_as(with_sealed_manifest(file, sealed), "SHA-256 of the content mismatch");

    std::swap(sealed.sections[i].raw_sha256, sealed.sections[j].raw_sha256);
    expect_refused(with_sealed_manifest(file, sealed), ErrorCode::kCorrupt, "content name");
  }
}

TEST_P(Splice, OfOneSectionOverAnotherIsFound) {
  ASSERT_FALSE(equal_sized().empty());
  for (const auto& [i, j] : equal_sized()) {
    Bytes file = a_;
    std::ranges::copy(stored_bytes(file, manifest_.sections[i]),
                      stored_bytes(file, manifest_.sections[j]).begin());
    expect_spliced_found(file);
    Manifest sealed = manifest_;
    sealed.sections[j].checksum = sealed.sections[i].checksum;
    expect_reported_as(with_sealed_manifest(file, sealed), "SHA-256 of the content mismatch");
    sealed.sections[j].raw_sha256 = sealed.sections[i].raw_sha256;
    expect_refused(with_sealed_manifest(file, sealed), ErrorCode::kCorrupt, "content name");
  }
}

TEST_P(Splice, OfRowsOfTheSectionTableIsRefused) {
  ASSERT_FALSE(equal_sized().empty());
  for (const auto& [i, j] : equal_sized()) {
    Manifest rows = manifest_;
    std::swap(rows.sections[i], rows.sections[j]);
    expect_refused(with_named_manifest(a_, rows), ErrorCode::kCorrupt,
                   "not the section that follows here");

    Manifest places = manifest_;
    std::swap(places.sections[i].file_offset, places.sections[j].file_offset);
    expect_refused(with_named_manifest(a_, places), ErrorCode::kCorrupt, "file offset");

    Manifest repeated = manifest_;
    repeated.sections[j] = repeated.sections[i];
    expect_refused(with_named_manifest(a_, repeated), ErrorCode::kCorrupt,
                   "not the section that follows here");
    repeated.sections[j].layer = manifest_.sections[j].layer;
    repeated.sections[j].tensor = manifest_.sections[j].tensor;
    repeated.sections[j].block = manifest_.sections[j].block;
    repeated.sections[j].packed = manifest_.sections[j].packed;
    expect_refused(with_named_manifest(a_, repeated), ErrorCode::kCorrupt, "file offset");
  }
}

TEST_P(Splice, OfARowTooManyOrTooFewIsRefused) {
  for (std::size_t i = 0; i < manifest_.sections.size(); ++i) {
    Manifest more = manifest_;
    more.sections.insert(more.sections.begin() + static_cast<std::ptrdiff_t>(i), more.sections[i]);
    expect_refused(with_named_manifest(a_, more), ErrorCode::kCorrupt, "sections where");
    Manifest fewer = manifest_;
    fewer.sections.erase(fewer.sections.begin() + static_cast<std::ptrdiff_t>(i));
    expect_refused(with_named_manifest(a_, fewer), ErrorCode::kCorrupt, "sections where");
  }
}

TEST_P(Splice, OfASectionOfAnotherFileIsFound) {
  std::size_t n_spliced = 0;
  for (std::size_t i = 0; i < manifest_.sections.size(); ++i) {
    if (manifest_.sections[i].stored_bytes != other_.sections[i].stored_bytes) continue;
    ++n_spliced;
    Bytes file = a_;
    Bytes donor = b_;
    std::ranges::copy(stored_bytes(donor, other_.sections[i]),
                      stored_bytes(file, manifest_.sections[i]).begin());
    expect_spliced_found(file);
    expect_reported_as(file, "checksum mismatch");
    Manifest sealed = manifest_;
    sealed.sections[i].checksum = other_.sections[i].checksum;
    expect_reported_as(with_sealed_manifest(file, sealed), "SHA-256 of the content mismatch");
    sealed.sections[i].raw_sha256 = other_.sections[i].raw_sha256;
    expect_refused(with_sealed_manifest(file, sealed), ErrorCode::kCorrupt, "content name");
  }
  // Compressed sections of two files seldom have one size; stored ones always do.
  if (GetParam() == Compression::kNone) {
    EXPECT_GT(n_spliced, 0u);
  }
}

// Stored without compression, so that the sections of both files have the same sizes.
TEST(SpliceOfStoredFiles, OfHeaderManifestAndSectionsIsFound) {
  const Bytes a = file_of(cache_of(1), Compression::kNone);
  const Bytes b = file_of(cache_of(2), Compression::kNone);
  ASSERT_EQ(manifest_offset_of(a), manifest_offset_of(b));
  ASSERT_EQ(a.size(), b.size());
  const auto at = static_cast<std::ptrdiff_t>(manifest_offset_of(a));
  Bytes header = b;  // header of A, everything else of B
  std::copy_n(a.begin(), format::kHeaderBytes, header.begin());
  expect_refused(header, ErrorCode::kCorrupt, "manifest: checksum mismatch");

  Bytes manifest(b.begin(), b.begin() + at);  // manifest and header of A, sections of B
  manifest.insert(manifest.end(), a.begin() + at, a.end());
  std::copy_n(a.begin(), format::kHeaderBytes, manifest.begin());
  expect_refused(manifest, ErrorCode::kCorrupt, "checksum mismatch");
  const std::vector<SectionInfo> sections = info_of(a).sections;
  ASSERT_FALSE(sections.empty());
  for (std::size_t i = 0; i < sections.size(); ++i) {
    EXPECT_THAT(damage_of(manifest),
                testing::Contains(testing::HasSubstr(cache::block_place(i, sections[i]))));
  }
}

TEST(HeaderSlots, InEachOthersPlaceAreNoHeader) {
  Bytes file = small_file();
  std::swap_ranges(file.begin(), file.begin() + format::kSlotBytes,
                   file.begin() + format::kSlotBytes);
  expect_refused(file, ErrorCode::kCorrupt, "wrong slot");
}

TEST(HeaderSlots, OfWhichOneIsACopyOfTheOtherAreReported) {
  Bytes file = small_file();
  const cache::Cache original = must(load(file));
  std::copy_n(file.begin(), format::kSlotBytes, file.begin() + format::kSlotBytes);
  expect_found(file, original, "copied slot");
}

TEST(HeaderSlots, OfAnotherFileAreRefusedWhateverTheirGeneration) {
  Bytes file = small_file();
  const Bytes other = file_of(CacheBuilder(3, 2).dense({2, 4}).build());
  std::copy_n(other.begin(), format::kSlotBytes, file.begin() + format::kSlotBytes);
  patch(file, format::kSlotBytes + kGenerationAt, std::uint32_t{2});
  reseal_slot(file, 1);
  expect_refused(file, ErrorCode::kCorrupt, "manifest: checksum mismatch");
}

}  // namespace splices_test
}  // namespace tqcache::test
