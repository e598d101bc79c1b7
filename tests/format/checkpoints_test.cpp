// Context checkpoints in a file: docs/reference/format.md §4.7.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "append_fixture.h"
#include "support/checkpoint_reader.h"
#include "support/temp_dir.h"
#include "tqcache/cache/checkpoint_views.h"
#include "tqcache/format/section_reader.h"

namespace tqcache::test {
namespace checkpoints_test {

using cache::Checkpoint;
using testing::ElementsAre;

// Attention, recurrent state, a dense window and a quantized one, at 3, 300, 600 or 700 tokens of
// one prompt.
cache::Cache cache_of(std::int64_t n_tokens) {
  cache::Cache cache = CacheBuilder(3)
                           .dense({1, 32})
                           .arrays()
                           .rotating({{1, 16}, 40, 0})
                           .turbo_rotating({{1, 32}, 300, 0}, 4, 3)
                           .build();
  for (const std::int64_t n : {300, 600, 700}) {
    if (n > n_tokens) break;
    const std::int64_t n_more = n - cache.n_tokens();
    cache = grown(std::move(cache), n_more, static_cast<unsigned>(n));
  }
  return cache;
}

// 600 tokens, and checkpoints at 3, 300 and 600.
std::shared_ptr<const cache::CacheReader> reader_with_checkpoints() {
  return std::make_shared<const CheckpointReader>(
      cache_of(600),
      std::vector<Checkpoint>{checkpoint_of(cache_of(3)), checkpoint_of(cache_of(300), 299),
                              checkpoint_of(cache_of(600))});
}

Bytes file_with_checkpoints(Compression compression = Compression::kNone,
                            const KeyRing& keys = {}) {
  return must(format::write_cache_bytes(
      *reader_with_checkpoints(), {.compression = compression, .n_threads = 1, .keys = keys}));
}

format::SectionReader open(const Bytes& file, const KeyRing& keys = {}) {
  return must(
      format::SectionReader::open(std::shared_ptr<const ByteSource>(memory_source(file)), {keys}));
}

std::vector<Bytes> all_values(const cache::CacheReader& reader) {
  std::vector<Bytes> values;
  for (std::size_t i = 0; i < cache::all_blocks(reader).size(); ++i) {
    const SharedBytes bytes = must(cache::share_any(reader, i));
    values.emplace_back(bytes.view().begin(), bytes.view().end());
  }
  return values;
}

std::vector<std::int64_t> counts_of(const cache::CacheReader& reader) {
  std::vector<std::int64_t> counts;
  for (const Checkpoint& checkpoint : reader.checkpoints()) {
    counts.push_back(checkpoint.n_tokens());
  }
  return counts;
}

TEST(Checkpoints, AreReadAsTheyWereWritten) {
  const auto expected = reader_with_checkpoints();
  for (const Compression compression : kCompressions) {
    const Bytes file = file_with_checkpoints(compression);
    const format::SectionReader reader = open(file);
    EXPECT_THAT(counts_of(reader), ElementsAre(3, 300, 600));
    EXPECT_EQ(reader.checkpoints()[1].first_position, 299);
    EXPECT_EQ(all_values(reader), all_values(*expected));
    EXPECT_TRUE(damage_of(file).empty());
    EXPECT_EQ(reader.info().required_features & format::kFeatureCheckpoints,
              format::kFeatureCheckpoints);
    // The cache itself is as without them.
    EXPECT_EQ(file_of(must(load(file))), file_of(cache_of(600)));
  }
}

TEST(Checkpoints, AreCachesOfTheirOwn) {
  const format::SectionReader reader = open(file_with_checkpoints());
  for (const Checkpoint& checkpoint : reader.checkpoints()) {
    const cache::CacheDesc& state = checkpoint.state->description();
    must(cache::validate(state));
    EXPECT_EQ(state.layers.size(), 3u);
    EXPECT_TRUE(state.hidden_tokens.has_value());
    const cache::Cache loaded = must(cache::load(*checkpoint.state));
    EXPECT_EQ(loaded.n_tokens(), checkpoint.n_tokens());
  }
}

// The whole cache at a checkpoint is the cache of as many tokens.
TEST(Checkpoints, AreWhereACacheCanBeCut) {
  const Bytes file = file_with_checkpoints(Compression::kPlanes);
  for (const std::int64_t n : {3, 300}) {
    EXPECT_EQ(file_of(must(load(file, {.first_tokens = n}))), file_of(cache_of(n))) << n;
  }
  EXPECT_EQ(must(load(file, {.first_tokens = 600})).n_tokens(), 600);
  expect_error(dropped(load(file, {.first_tokens = 299})), ErrorCode::kUnsupported,
               "it has checkpoints at 3, 300, 600 tokens");
  const format::SectionReader reader = open(file);
  EXPECT_EQ(cache::last_state_before(reader, 599), 300);
  EXPECT_EQ(cache::last_state_before(reader, 2), 0);
  const auto at_300 = must(cache::first_tokens(cache::borrow(reader), 300));
  EXPECT_THAT(counts_of(*at_300), ElementsAre(3));
}

// --- opaque layers

Checkpoint with_opaque(Checkpoint checkpoint, const std::vector<std::uint64_t>& words) {
  return {std::make_shared<const WithOpaqueLayer>(std::move(checkpoint.state), words),
          checkpoint.first_position};
}

std::shared_ptr<const cache::CacheReader> reader_with_opaque_layers() {
  return std::make_shared<const CheckpointReader>(
      cache_of(600), std::vector<Checkpoint>{with_opaque(checkpoint_of(cache_of(3)), {2, 9}),
                                             with_opaque(checkpoint_of(cache_of(300)), {3, 0})});
}

TEST(Checkpoints, KeepAnOpaqueLayer) {
  const auto expected = reader_with_opaque_layers();
  const KeyRing keys = must(KeyRing::parse(Bytes(32, std::byte{1})));
  for (const Compression compression : kCompressions) {
    const Bytes file =
        must(format::write_cache_bytes(*expected, {.compression = compression, .n_threads = 1}));
    const format::SectionReader reader = open(file);
    EXPECT_EQ(all_values(reader), all_values(*expected));
    EXPECT_TRUE(damage_of(file).empty());
    for (const Checkpoint& checkpoint : reader.checkpoints()) {
      const auto& layers = checkpoint.state->description().layers;
      ASSERT_EQ(layers.size(), 4u);
      EXPECT_EQ(cache::opaque_layer(layers), &std::get<cache::StateDesc>(layers.back()));
    }
    // Where the cache is cut, it is left out.
    EXPECT_EQ(file_of(must(load(file, {.first_tokens = 300}))), file_of(cache_of(300)));
    EXPECT_NE(reader.info().content_name, info_of(file_with_checkpoints()).content_name);
  }
  // Views of other values keep it, too.
  const auto dense = must(cache::dequantize(expected));
  EXPECT_NE(cache::opaque_layer(dense->checkpoints()[1].state->description().layers), nullptr);
}

TEST(Checkpoints, HaveAnOpaqueLayerInAllOfThemOrNone) {
  const CheckpointReader some(
      cache_of(600), {checkpoint_of(cache_of(3)), with_opaque(checkpoint_of(cache_of(300)), {1})});
  const auto file = format::write_cache_bytes(some, {.n_threads = 1});
  // Whether the writer or the reader refuses it.
  const auto info = file ? dropped(format::SectionReader::open(
                               std::shared_ptr<const ByteSource>(memory_source(*file))))
                         : dropped(file);
  expect_error(info, ErrorCode::kCorrupt, "an opaque layer in some checkpoints alone");
}

TEST(Checkpoints, AloneHaveOpaqueLayers) {
  const WithOpaqueLayer cache(cache::reader_of(std::make_shared<const cache::Cache>(cache_of(3))),
                              {2});
  const auto file = format::write_cache_bytes(cache, {.n_threads = 1});
  const auto opened = file ? dropped(format::SectionReader::open(
                                 std::shared_ptr<const ByteSource>(memory_source(*file))))
                           : dropped(file);
  expect_error(opened, ErrorCode::kCorrupt, "an opaque layer of the cache itself");
}

TEST(Checkpoints, ChangeTheContentDigest) {
  const CacheFileInfo plain = info_of(file_of(cache_of(600)));
  const CacheFileInfo with = info_of(file_with_checkpoints());
  EXPECT_NE(plain.content_name, with.content_name);
  EXPECT_EQ(with.content_name, info_of(file_with_checkpoints(Compression::kZstd)).content_name);
}

TEST(Checkpoints, AreEncryptedWithTheFile) {
  const KeyRing keys = must(KeyRing::parse(Bytes(32, std::byte{1})));
  const Bytes file = file_with_checkpoints(Compression::kZstd, keys);
  EXPECT_EQ(all_values(open(file, keys)), all_values(*reader_with_checkpoints()));
  EXPECT_FALSE(format::SectionReader::open(std::shared_ptr<const ByteSource>(memory_source(file))));
}

TEST(Checkpoints, StayWhenAFileGrowsAndIsCompacted) {
  const TempDir dir;
  const auto expected = reader_with_checkpoints();
  write_all(dir / "a", file_with_checkpoints());
  {
    format::CacheAppender appender = must(format::CacheAppender::open(dir / "a"));
    const cache::Cache longer = cache_of(700);
    must(appender.append(longer, {.n_threads = 1}));
    // Nothing changes the second time.
    EXPECT_EQ(must(appender.append(longer, {.n_threads = 1})).bytes_written, 0u);
  }
  const auto check = [&](bool has_gaps) {
    const Bytes file = read_all(dir / "a");
    const format::SectionReader reader = open(file);
    EXPECT_EQ(reader.n_tokens(), 700);
    EXPECT_THAT(counts_of(reader), ElementsAre(3, 300, 600));
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(all_values(*reader.checkpoints()[i].state),
                all_values(*expected->checkpoints()[i].state));
    }
    EXPECT_EQ(reader.info().gaps.empty(), !has_gaps);
    EXPECT_TRUE(damage_of(file).empty());
    return reader.info().content_name;
  };
  const Sha256 grown = check(true);
  must(format::compact_file(dir / "a", {.n_threads = 1}));
  EXPECT_EQ(check(false), grown);
}

TEST(Checkpoints, StayInACacheWithHiddenTokens) {
  const Bytes file = must(
      format::write_cache_bytes(*reader_with_checkpoints(), {.n_threads = 1, .hide_tokens = true}));
  const format::SectionReader reader = open(file);
  EXPECT_THAT(counts_of(reader), ElementsAre(3, 300, 600));
  // Hashes cover whole token blocks.
  EXPECT_EQ(cache::last_state_before(reader, 599), 0);
}

TEST(Checkpoints, OfADamagedSectionAreReported) {
  Bytes file = file_with_checkpoints();
  const CacheFileInfo info = info_of(file);
  file[info.sections.back().file_offset] ^= std::byte{1};
  const std::vector<std::string> damage = damage_of(file);
  ASSERT_EQ(damage.size(), 1u);
  EXPECT_NE(damage[0].find("checksum mismatch"), std::string::npos);
  EXPECT_TRUE(load(file));  // the cache itself is whole
}

class CheckpointRules : public testing::Test {
 protected:
  void expect_corrupt(const std::function<void(Manifest&)>& change, std::string_view part) const {
    expect_refused(change_manifest(file_, change), ErrorCode::kCorrupt, part);
  }
  const Bytes file_ = file_with_checkpoints();
};

TEST_F(CheckpointRules, HoldForNumbersOfTokens) {
  expect_corrupt([](Manifest& m) { m.checkpoints[2].n_tokens = 601; },
                 "checkpoint 2: at 601 tokens of 600");
  expect_corrupt([](Manifest& m) { m.checkpoints[0].n_tokens = 0; },
                 "checkpoint 0: at 0 tokens of 600");
  expect_corrupt([](Manifest& m) { m.checkpoints[1].n_tokens = 3; }, "checkpoint 1");
  expect_corrupt([](Manifest& m) { std::swap(m.checkpoints[1], m.checkpoints[2]); },
                 "checkpoint 2: at 300 tokens, after one at 600");
  expect_corrupt([](Manifest& m) { m.checkpoints[1].first_position = 300; },
                 "checkpoint 1: first position 300 of 300 tokens");
}

TEST_F(CheckpointRules, HoldForLayers) {
  expect_corrupt([](Manifest& m) { m.checkpoints[1].layers.pop_back(); },
                 "checkpoint 1: 2 layers, the cache has 3");
  expect_corrupt(
      [](Manifest& m) { std::swap(m.checkpoints[1].layers[0], m.checkpoints[1].layers[1]); },
      "checkpoint 1: layer 0: not the recurrent state of the cache");
  expect_corrupt([](Manifest& m) { m.checkpoints[1].layers[1] = m.layers[0]; },
                 "checkpoint 1: layer 1: not the sliding window of the cache");
  expect_corrupt(
      [](Manifest& m) {
        std::get<cache::WindowDesc>(m.checkpoints[1].layers[2]).window.size = 299;
      },
      "checkpoint 1: layer 2: not the sliding window of the cache");
  expect_corrupt(
      [](Manifest& m) {
        std::get<cache::StateDesc>(m.checkpoints[1].layers[0]).arrays[0].name = "other";
      },
      "checkpoint 1: layer 0: not the recurrent state of the cache");
}

TEST_F(CheckpointRules, HoldForSections) {
  expect_corrupt([](Manifest& m) { m.checkpoints.pop_back(); }, "section table");
  expect_corrupt([](Manifest& m) { m.sections.back().layer = 3; },
                 "not the section that follows here");
  expect_corrupt([](Manifest& m) { m.sections.back().raw_bytes += 1; }, "raw size");
}

TEST_F(CheckpointRules, HoldForTheFeatureBit) {
  Bytes file = file_;
  patch(file, kRequiredAt, value_at<std::uint32_t>(file, kRequiredAt) & ~32u);
  reseal_slot(file);
  expect_refused(file, ErrorCode::kCorrupt, "required features");
}

TEST_F(CheckpointRules, AreOnlyForCachesThatCannotGoBack) {
  const Bytes file = file_of(CacheBuilder(3).dense({1, 4}).build());
  expect_refused(change_manifest(file,
                                 [](Manifest& m) {
                                   m.checkpoints.push_back({2, 0, {}});
                                 }),
                 ErrorCode::kCorrupt, "checkpoints of a cache whose layers can all go back");
}

TEST_F(CheckpointRules, LimitTokensOfAllTogether) {
  cache::CacheDesc cache = cache::describe(CacheBuilder(1).arrays().build());
  cache.tokens.assign(static_cast<std::size_t>(cache::kMaxTokens), 0);
  std::vector<cache::CheckpointDesc> checkpoints;
  for (std::int64_t i = 0; i < 5; ++i) {
    checkpoints.push_back({cache::kMaxTokens - 5 + i, 0, cache.layers});
  }
  expect_error(cache::validate_checkpoints(cache, checkpoints), ErrorCode::kTooLarge,
               "tokens together");
  checkpoints.pop_back();
  EXPECT_TRUE(cache::validate_checkpoints(cache, checkpoints));
}

}  // namespace checkpoints_test
}  // namespace tqcache::test
