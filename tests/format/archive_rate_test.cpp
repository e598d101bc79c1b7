// The step that makes an archive as large as it is asked to be.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "archive_fixture.h"
#include "support/matchers.h"
#include "support/temp_dir.h"
#include "tqcache/format/section_reader.h"
#include "tqcache/tqkv.h"

namespace tqcache::test {
namespace archive_rate_test {

using format::ArchiveTarget;

const cache::Cache& dense_cache() {
  static const cache::Cache cache =
      CacheBuilder(2304).dense({2, 128}).dense({2, 128}, Dtype::kBF16).build();
  return cache;
}

cache::ConvertOptions options(unsigned n_threads = 2) {
  return {.keys = archive_plan(0), .values = archive_plan(0), .n_threads = n_threads};
}

Result<cache::ConvertOptions> chosen(const cache::Cache& cache, const ArchiveTarget& target,
                                     const cache::ConvertOptions& from = options(),
                                     const Progress& progress = {}) {
  const Bytes file = file_of(cache);
  const auto source = memory_source(file);
  const auto reader = must(format::SectionReader::open(*source));
  return format::choose_step(reader, from, target, progress);
}

double bits_of(const cache::Cache& dense, const cache::ConvertOptions& with) {
  const Bytes file = file_of(must(cache::convert(dense, with)), Compression::kZstd);
  return 8.0 * static_cast<double>(file.size()) / (2 * 2 * 2 * 128.0 * 2304);
}

TEST(ArchiveRate, MeetsTheBitsOfTheWholeFile) {
  for (const double bits : {2.2, 3.0, 4.1}) {
    const double found = bits_of(dense_cache(), must(chosen(dense_cache(), {bits, {}})));
    EXPECT_LE(found, bits * 1.002);
    EXPECT_GT(found, bits * 0.985);
  }
}

TEST(ArchiveRate, IsTheSameForAnyNumberOfThreads) {
  const auto one = must(chosen(dense_cache(), {3.3, {}}, options(1)));
  const auto three = must(chosen(dense_cache(), {3.3, {}}, options(3)));
  EXPECT_EQ(one.keys, three.keys);
  EXPECT_EQ(one.values, three.values);
}

TEST(ArchiveRate, MakesMapsOnlyWhereTheyPay) {
  // Independent values have no directions, so that maps save nothing.
  const auto found = must(chosen(dense_cache(), {3.0, {}}));
  EXPECT_FALSE(found.keys.fit_transforms);
  EXPECT_FALSE(found.values.fit_transforms);
}

TEST(ArchiveRate, MeetsAnError) {
  const auto found = must(chosen(dense_cache(), {{}, 0.0263}));
  EXPECT_NEAR(found.keys.codec.step, 0.312, 0.002);
  EXPECT_EQ(found.keys.codec.step, found.values.codec.step);
}

TEST(ArchiveRate, MeetsTheBitsWithWeights) {
  cache::ConvertOptions with = options();
  with.weights = {{0.5f, 2.0f}, {1.5f, 0.8f}};
  const auto found = must(chosen(dense_cache(), {3.0, {}}, with));
  EXPECT_EQ(found.weights, with.weights);
  const double bits = bits_of(dense_cache(), found);
  EXPECT_LE(bits, 3.0 * 1.002);
  EXPECT_GT(bits, 3.0 * 0.985);
}

// Weights of all tensors move the step by what they multiply it with: the search ends elsewhere,
// and the file is as large as without.
TEST(ArchiveRate, MeetsTheBitsAtBothEndsOfItsSteps) {
  for (const float weight : {0.6f, 0.8f, 1.3f, 1.5f}) {
    cache::ConvertOptions with = options();
    with.weights = {{weight, weight}, {weight, weight}};
    const auto found = must(chosen(dense_cache(), {3.0, {}}, with));
    const double bits = bits_of(dense_cache(), found);
    EXPECT_LE(bits, 3.0 * 1.002) << weight;
    EXPECT_GT(bits, 3.0 * 0.985) << weight;
  }
}

TEST(ArchiveRate, TakesTheFinestStepWhereEvenThatIsSmallEnough) {
  cache::ConvertOptions with = options();
  with.weights = {{8, 8}, {8, 8}};
  const auto found = must(chosen(dense_cache(), {3.0, {}}, with));
  EXPECT_LT(bits_of(dense_cache(), found), 2.9);
  auto finer = with;
  finer.weights = {{6, 6}, {6, 6}};
  EXPECT_EQ(found.keys.codec.step, must(chosen(dense_cache(), {3.0, {}}, finer)).keys.codec.step);
}

TEST(ArchiveRate, ReportsItsProgressAndStopsWhenAskedTo) {
  std::vector<double> parts;
  const auto watch = [&](std::uint64_t done, std::uint64_t total) {
    parts.push_back(static_cast<double>(done) / static_cast<double>(total));
    return true;
  };
  must(chosen(dense_cache(), {3.0, {}}, options(), watch));
  // Four tensors are fitted, and K or V encoded with some of the nine steps in two ways.
  EXPECT_GT(parts.size(), 4u + 4);
  ASSERT_LE(parts.size(), 4u + 8);
  EXPECT_TRUE(std::ranges::is_sorted(parts));
  EXPECT_GT(parts.front(), 0);
  EXPECT_LE(parts.back(), 1);
  for (std::size_t last = 1; last <= parts.size(); ++last) {
    std::size_t n = 0;
    const auto stop = [&](std::uint64_t, std::uint64_t) { return ++n < last; };
    EXPECT_THAT(chosen(dense_cache(), {3.0, {}}, options(), stop),
                test::FailsWith(ErrorCode::kInterrupted, testing::_));
    EXPECT_EQ(n, last);
  }
}

TEST(ArchiveRate, MeetsTheMeanErrorWithWeights) {
  cache::ConvertOptions with = options();
  with.weights = {{0.5f, 2.0f}, {1.0f, 1.0f}};
  // The mean square of the weights is 6.25 / 4.
  const auto found = must(chosen(dense_cache(), {{}, 0.0263}, with));
  EXPECT_NEAR(found.keys.codec.step, 0.312 / 1.25, 0.002);
}

TEST(ArchiveRate, LeavesOutWhatWeightsLeaveDense) {
  cache::ConvertOptions with = options();
  with.weights = {{0, 1}, {0, 1}};
  const auto refused = chosen(dense_cache(), {3.0, {}}, with);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message, testing::HasSubstr("are too few"));
}

TEST(ArchiveRate, TakesAStepAsItIs) {
  const auto found = must(chosen(dense_cache(), {{}, {}, 0.3}));
  EXPECT_NEAR(found.keys.codec.step, 0.3, 0.0002);  // eleven bits
  EXPECT_EQ(found.keys.codec.step, found.values.codec.step);
}

void expect_target_refused(const ArchiveTarget& target, std::string_view part) {
  EXPECT_THAT(chosen(dense_cache(), target),
              test::FailsWith(ErrorCode::kInvalidArgument, testing::HasSubstr(part)));
}

TEST(ArchiveRate, LeavesWindowsAsTheyAre) {
  cache::ConvertOptions from = options();
  from.windows = cache::WindowMode::kTurbo;
  EXPECT_THAT(chosen(dense_cache(), {{}, {}, 0.3}, from),
              test::FailsWith(ErrorCode::kInvalidArgument,
                              testing::HasSubstr("leaves sliding windows as they are")));
}

TEST(ArchiveRate, RefusesTargetsOutOfRange) {
  expect_target_refused({0.5, {}}, "0.5");
  expect_target_refused({9.0, {}}, "bits per value is not between 1 and 8");
  expect_target_refused({{}, 0.9}, "not between 0.0001 and 0.5");
  expect_target_refused({{}, {}}, "one target");
  expect_target_refused({3.0, 0.01}, "one target");
  expect_target_refused({{}, 0.01, 0.3}, "one target");
  expect_target_refused({{}, {}, 0.01}, "a step of 0.01");
  expect_target_refused({{}, {}, 9.0}, "not between 0.015625 and 8");
}

TEST(ArchiveRate, RefusesWhatNoStepMeets) {
  const cache::Cache cache = CacheBuilder(500).dense({2, 64}).build();  // nearly half stays dense
  const auto refused = chosen(cache, {2.0, {}});
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message, testing::HasSubstr("are too few"));
}

TEST(ArchiveRate, IsNotNeededWhereNothingIsPacked) {
  const cache::Cache cache = CacheBuilder(100).dense({2, 64}).build();
  EXPECT_TRUE(chosen(cache, {3.0, {}}).ok());
}

// Keys before RoPE lie near a few directions, as in real caches, and values as they are.
cache::Cache narrow_cache() {
  cache::Cache cache = CacheBuilder(4096).dense({1, 64}).build();
  auto& layer = std::get<0>(cache.layers[0]);
  Random random(5);
  std::vector<float> x(64);
  for (const bool is_key : {true, false}) {
    auto& tensor = std::get<cache::DenseTensor>(is_key ? layer.k : layer.v);
    for (std::int64_t t = 0; t < 4096; ++t) {
      for (std::size_t i = 0; i < x.size(); ++i) x[i] = 0.05f * random.bell();
      for (std::size_t k = 1; k < 9; ++k) {
        const float share = random.bell();
        for (std::size_t i = 0; i < x.size(); ++i) {
          x[i] += share * std::sin(static_cast<float>(k * (i + 3)));
        }
      }
      if (is_key) cache::rotate(cache.identity.rope, t, x);
      store_f32(Dtype::kF16, x,
                tensor.blocks[static_cast<std::size_t>(t / 256)].data() + t % 256 * 128);
    }
  }
  return cache;
}

TEST(ArchiveRate, MakesMapsWhereTheyPay) {
  const cache::Cache cache = narrow_cache();
  const auto found = must(chosen(cache, {3.0, {}}));
  EXPECT_TRUE(found.keys.fit_transforms);
  EXPECT_TRUE(found.values.fit_transforms);
  const auto size_of = [&](const cache::ConvertOptions& with) {
    return static_cast<double>(
        file_of(must(cache::convert(cache, with)), Compression::kZstd).size());
  };
  auto plain = found;
  plain.keys.fit_transforms = plain.values.fit_transforms = false;
  EXPECT_LT(size_of(found), 0.8 * size_of(plain));
}

// A file is converted section by section to what converting in memory gives.
TEST(ArchiveRate, GivesTheSameFileSectionBySection) {
  const TempDir dir;
  const cache::Cache cache = narrow_cache();
  const auto with = must(chosen(cache, {3.0, {}}));
  const Bytes file = file_of(cache);
  const auto source = memory_source(file);
  const format::WriteOptions write{.writer = "test"};
  must(format::convert_file(*source, dir / "a.tqkv", with, write));
  const Bytes expected = must(format::write_cache_bytes(must(cache::convert(cache, with)), write));
  EXPECT_EQ(read_all(dir / "a.tqkv"), expected);
}

}  // namespace archive_rate_test
}  // namespace tqcache::test
