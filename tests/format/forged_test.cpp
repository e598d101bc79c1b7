// A file with other values than its content digest names: all checksums are right, so only SHA-256
// tells. Nothing that makes a file of a file may accept it.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "append_fixture.h"
#include "archive_fixture.h"
#include "support/forged_file.h"
#include "tqcache/format/section_reader.h"
#include "tqcache/interop.h"
#include "tqcache/quantize.h"

namespace tqcache::test {
namespace forged_test {

constexpr std::string_view kRefusal = "SHA-256 of the content mismatch";

class Forged : public testing::TestWithParam<Compression> {
 protected:
  const cache::Cache cache_ = CacheBuilder(600)
                                  .turbo({1, 32}, 4, 3)
                                  .preset({1, 64}, "turbo2.5")
                                  .arrays()
                                  .dense({1, 32})
                                  .build();
  const format::WriteOptions options_{.compression = GetParam(), .n_threads = 1};
  const Bytes honest_ = file_of(cache_, GetParam());
  const Bytes forged_ = forged_file(cache_, options_);
  const TempDir dir_;

  // The forged file is not converted and leaves nothing; the true one is converted.
  void expect_no_conversion(const Bytes& forged, const Bytes& honest,
                            const cache::ConvertOptions& options) const {
    const auto target = dir_ / "out.tqkv";
    expect_error(format::convert_file(*memory_source(forged), target, options, options_),
                 ErrorCode::kCorrupt, kRefusal);
    EXPECT_EQ(dir_.entry_count(), 0u);
    must(format::convert_file(*memory_source(honest), target, options, options_));
    std::filesystem::remove(target);
  }
};

TEST_P(Forged, HasTheContentDigestOfTheTrueFile) {
  EXPECT_EQ(info_of(forged_).content_name, info_of(honest_).content_name);
  EXPECT_NE(difference(must(load(forged_)), cache_), "") << "a load alone compares checksums";
  EXPECT_EQ(damage_of(forged_).size(), info_of(forged_).sections.size());
}

TEST_P(Forged, IsRefusedByALoadThatComparesDigests) {
  const format::ReadOptions compare{.verify_digests = true};
  EXPECT_EQ(difference(must(load(honest_, compare)), cache_), "");
  expect_error(dropped(load(forged_, compare)), ErrorCode::kCorrupt, kRefusal);
  for (const bool verify_checksums : {true, false}) {
    const format::ReadOptions mapped{.verify_checksums = verify_checksums, .verify_digests = true};
    const CacheOnDisk forged(forged_), honest(honest_);
    expect_error(dropped(format::map_cache(forged.path(), mapped)), ErrorCode::kCorrupt, kRefusal);
    EXPECT_EQ(difference(must(format::map_cache(honest.path(), mapped)), cache_), "");
  }
}

TEST_P(Forged, IsRefusedWhereOneSectionIsForged) {
  for (std::size_t i = 0; i < info_of(honest_).sections.size(); ++i) {
    const cache::BlockKey key = cache::key_of(info_of(honest_).sections[i]);
    const Bytes file =
        forged_file(cache_, options_, [&](const auto& block) { return key_of(block) == key; });
    must(load(file));
    expect_error(dropped(load(file, {.verify_digests = true})), ErrorCode::kCorrupt,
                 fmt::format("section {} ", i));
  }
}

TEST_P(Forged, IsNotConverted) {
  expect_no_conversion(forged_, honest_, {.keep_all = true});
  const cache::Cache dense = CacheBuilder(600).dense({2, 64}).build();
  expect_no_conversion(forged_file(dense, options_), file_of(dense, GetParam()),
                       options_of_bits(4, 4));
}

TEST_P(Forged, IsNotMeasuredForAnArchive) {
  const cache::Cache dense = CacheBuilder(600).dense({2, 64}).build();
  const Bytes file = forged_file(dense, options_);
  const auto source = memory_source(file);
  const auto reader = must(format::SectionReader::open(*source));
  expect_error(
      dropped(format::choose_step(reader, {.keys = archive_plan(0), .values = archive_plan(0)},
                                  {.bits = 4, .mse = {}})),
      ErrorCode::kCorrupt, kRefusal);
}

TEST_P(Forged, SymbolsAreCompared) {
  const cache::Cache cache = archive_cache();
  const auto is_value = [](const cache::BlockInfo& block) {
    return block.tensor == cache::TensorKind::kValues;
  };
  const Bytes file = forged_file(cache, options_, is_value);
  must(load(file));
  expect_error(dropped(load(file, {.verify_digests = true})), ErrorCode::kCorrupt, kRefusal);
}

TEST_P(Forged, IsNotExported) {
  const CacheOnDisk file(forged_);
  const auto opened = must(interop::open_any(file.path()));
  expect_error(format::write_cache_file(*opened.cache, dir_ / "out.tqkv", options_),
               ErrorCode::kCorrupt, kRefusal);
  EXPECT_EQ(dir_.entry_count(), 0u);
}

TEST_P(Forged, IsNotAppendedTo) {
  const cache::Cache longer = grown(cache_, 300);
  const CacheOnDisk honest(honest_);
  must(honest.append(longer, options_));
  const CacheOnDisk forged(forged_);
  // Sections that stay are not written again, so they are read.
  expect_error(dropped(forged.append(longer, options_)), ErrorCode::kCorrupt, kRefusal);
  EXPECT_EQ(forged.bytes(), forged_);
  format::CacheAppender appender = must(format::CacheAppender::open(forged.path()));
  expect_error(dropped(appender.read()), ErrorCode::kCorrupt, kRefusal);
  expect_error(dropped(appender.append(cache_, options_)), ErrorCode::kCorrupt, kRefusal);
  EXPECT_EQ(forged.bytes(), forged_);
}

TEST_P(Forged, IsNotCompacted) {
  Bytes announced = forged_;  // as after an append that did not finish
  put_slot(announced, format::announcement(header_of(announced).slot));
  const CacheOnDisk left(announced);
  expect_error(dropped(format::compact_file(left.path(), {})), ErrorCode::kCorrupt, kRefusal);
  EXPECT_EQ(left.bytes(), announced);
}

TEST_P(Forged, IsNotCalledCompact) {
  const CacheOnDisk file(forged_);
  expect_error(dropped(format::compact_file(file.path(), {})), ErrorCode::kCorrupt, kRefusal);
  EXPECT_EQ(file.bytes(), forged_);
  EXPECT_FALSE(must(format::compact_file(CacheOnDisk(honest_).path(), {})).rewritten);
}

INSTANTIATE_TEST_SUITE_P(All, Forged, testing::ValuesIn(kCompressions),
                         [](const auto& test) { return name_of(test.param); });

}  // namespace forged_test
}  // namespace tqcache::test
