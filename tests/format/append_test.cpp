// A file that grew holds what a file written anew would hold.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <new>
#include <optional>

#include "append_fixture.h"
#include "support/file_size_limit.h"
#include "tqcache/cache.h"
#include "tqcache/tqkv.h"

namespace tqcache::test {
namespace append_test {

using format::AppendReport;
using format::CacheAppender;
using testing::IsEmpty;

struct Kind {
  std::string name;
  std::function<void(CacheBuilder&)> add_layers;
};

cache::TensorPlan plan_of_mode(const codec::CodecSpec& codec, std::int64_t n_sinks = 0) {
  cache::TensorPlan plan;
  plan.codec = codec;
  plan.n_sinks = n_sinks;
  return plan;
}

void add_modes(CacheBuilder& cache) {
  const auto prod = plan_of_mode({.mode = codec::Mode::kProd, .bits = 3}, 4);
  const auto mixed = plan_of_mode(
      {.mode = codec::Mode::kMixed, .bits = 2, .outlier_channels = 16, .outlier_bits = 3});
  const auto affine = plan_of_mode({.mode = codec::Mode::kAffine, .bits = 4});
  cache.tensors({1, 64}, Dtype::kF16, prod, Dtype::kBF16, mixed);
  cache.tensors({1, 64}, Dtype::kF16, mixed, Dtype::kF16, affine);
}

const std::vector<Kind>& kinds() {
  static const std::vector<Kind> kKinds = {
      {"DenseF16",
       [](CacheBuilder& cache) {
         cache.dense({2, 6}, Dtype::kF16);
       }},
      {"DenseBF16",
       [](CacheBuilder& cache) {
         cache.dense({1, 5}, Dtype::kBF16);
       }},
      {"DenseF32",
       [](CacheBuilder& cache) {
         cache.dense({1, 3}, Dtype::kF32);
       }},
      {"Turbo",
       [](CacheBuilder& cache) {
         cache.turbo({2, 32}, 4, 3, Dtype::kBF16);
       }},
      {"Centered",
       [](CacheBuilder& cache) {
         cache.center(cache::Centering::kPreRope).turbo({1, 64}, 4, 4);
         cache.center(cache::Centering::kPostRope).turbo({1, 32}, 3, 16);
       }},
      {"Modes", add_modes},
      {"Mixture",
       [](CacheBuilder& cache) {
         cache.turbo({1, 32}, 4, 3).arrays().dense({1, 4}).rotating({{1, 8}, 300, 4});
       }},
      {"Windows",
       [](CacheBuilder& cache) {
         cache.turbo_rotating({{1, 32}, 300, 0}, 4, 3).turbo({1, 32}, 2, 16);
         cache.center(cache::Centering::kPreRope).turbo_rotating({{1, 64}, 40, 0}, 2, 2);
         cache.turbo_rotating({{1, 32}, 100, 0}, 16, 2, Dtype::kBF16, Dtype::kF32);
       }},
      {"NoLayers", [](CacheBuilder&) {}},
  };
  return kKinds;
}

// How a program goes from one append to the next.
enum class Style { kOneAppender, kOpenedAnew, kReadAnew };

struct Way {
  std::string name;
  Style style;
  Compression compression;
};

const std::vector<Way>& ways() {
  static const std::vector<Way> kWays = {
      {"OneAppender", Style::kOneAppender, Compression::kNone},
      {"OpenedAnewZstd", Style::kOpenedAnew, Compression::kZstd},
      {"ReadAnew", Style::kReadAnew, Compression::kNone},
      {"ReadAnewPlanes", Style::kReadAnew, Compression::kPlanes},
  };
  return kWays;
}

class Growing : public testing::TestWithParam<std::tuple<std::size_t, std::size_t>> {
 protected:
  cache::Cache make(std::int64_t n_tokens) const {
    CacheBuilder builder(n_tokens);
    builder.keep_full_tail();
    kinds()[std::get<0>(GetParam())].add_layers(builder);
    return builder.build();
  }

  // The file holds the cache, as a new one would.
  void expect_holds(const CacheOnDisk& file, const cache::Cache& cache) const {
    const Bytes bytes = file.bytes();
    const cache::Cache read = must(load(bytes));
    EXPECT_EQ(difference(read, cache), "");
    const Bytes fresh = file_of(cache, compression_);
    EXPECT_EQ(file_of(read, compression_), fresh);
    EXPECT_EQ(info_of(bytes).content_name, info_of(fresh).content_name);
    EXPECT_THAT(damage_of(bytes), IsEmpty());
  }

  // Without its dead bytes it is that new one, byte by byte.
  void expect_compacts(const CacheOnDisk& file, const cache::Cache& cache) const {
    const CacheOnDisk copy(file.bytes());
    EXPECT_TRUE(must(format::compact_file(copy.path(), {})).rewritten);
    EXPECT_EQ(copy.bytes(), file_of(cache, compression_));
  }

  const Compression compression_ = ways()[std::get<1>(GetParam())].compression;
  const Style style_ = ways()[std::get<1>(GetParam())].style;
};

TEST_P(Growing, KeepsTheFileWhatANewOneWouldBe) {
  std::mt19937 random(7);
  cache::Cache cache = make(0);
  const CacheOnDisk file(cache, {.compression = compression_});
  std::optional<CacheAppender> appender(must(CacheAppender::open(file.path())));
  for (const std::int64_t n_tokens : {1, 255, 256, 257, 511, 512, 513, 801}) {
    if (style_ != Style::kOneAppender) {
      appender.reset();
      appender.emplace(must(CacheAppender::open(file.path())));
    }
    if (style_ == Style::kReadAnew) cache = must(appender->read());
    const std::int64_t n_before = cache.n_tokens();
    grow(cache, random, n_tokens - n_before);
    const AppendReport report =
        must(appender->append(cache, {.compression = compression_, .n_threads = 2}));
    EXPECT_EQ(report.n_tokens_before, n_before);
    EXPECT_EQ(report.n_tokens, n_tokens);
    EXPECT_EQ(report.file_bytes, file.bytes().size());
    EXPECT_EQ(report.gap_bytes, info_of(file.bytes()).gap_bytes);
    EXPECT_EQ(appender->info().content_name, info_of(file.bytes()).content_name);
    expect_holds(file, cache);
  }
  appender.reset();
  expect_compacts(file, cache);
}

INSTANTIATE_TEST_SUITE_P(Append, Growing,
                         testing::Combine(testing::Range<std::size_t>(0, kinds().size()),
                                          testing::Range<std::size_t>(0, ways().size())),
                         [](const auto& test) {
                           return kinds()[std::get<0>(test.param)].name +
                                  ways()[std::get<1>(test.param)].name;
                         });

TEST(Append, ManyTimesInARowCostsNoMoreThanWhatIsNew) {
  std::mt19937 random(3);
  cache::Cache cache = CacheBuilder(600).turbo({1, 32}, 4, 4).build();
  const CacheOnDisk file(cache);
  CacheAppender appender = must(CacheAppender::open(file.path()));
  for (int turn = 0; turn < 100; ++turn) {
    const std::uint64_t before = file.bytes().size();
    grow(cache, random, 3);
    const AppendReport report = must(appender.append(cache, CacheOnDisk::stored()));
    EXPECT_EQ(report.bytes_written, file.bytes().size() - before + format::kHeaderBytes);
    EXPECT_LT(report.bytes_written, 65000u) << turn;  // two tails of f16, and a manifest
  }
  EXPECT_EQ(appender.info().generation, 101u);
  EXPECT_EQ(difference(must(load(file.bytes())), cache), "");
  EXPECT_THAT(damage_of(file.bytes()), IsEmpty());
}

TEST(Append, WritesNothingOverButAHeaderSlot) {
  const cache::Cache cache = CacheBuilder(300).turbo({1, 32}, 4, 4).arrays().build();
  const CacheOnDisk file(cache);
  const Bytes before = file.bytes();
  must(file.append(grown(cache, 5)));
  const Bytes after = file.bytes();
  EXPECT_TRUE(std::equal(before.begin(), before.begin() + format::kSlotBytes, after.begin()));
  EXPECT_TRUE(std::equal(before.begin() + format::kHeaderBytes, before.end(),
                         after.begin() + format::kHeaderBytes));
  const CacheFileInfo info = info_of(after);
  for (std::size_t i : {0u, 1u}) {
    EXPECT_EQ(info.sections[i].file_offset, info_of(before).sections[i].file_offset);
  }
}

TEST(Append, KeepsArraysThatAreStillTheSame) {
  const cache::Cache cache = CacheBuilder(3).dense({1, 4}).arrays().build();
  cache::Cache longer = grown(cache, 1);
  const auto& old_arrays = std::get<cache::StateLayer>(cache.layers[1]);
  std::get<cache::StateLayer>(longer.layers[1]).arrays[0] = old_arrays.arrays[0];
  const CacheOnDisk file(cache);
  const CacheFileInfo before = info_of(file.bytes());
  must(file.append(longer));
  const CacheFileInfo after = info_of(file.bytes());
  EXPECT_EQ(after.sections[2].file_offset, before.sections[2].file_offset);
  EXPECT_GE(after.sections[3].file_offset, before.file_bytes);
  EXPECT_EQ(difference(must(load(file.bytes())), longer), "");
}

TEST(Append, HasNothingToDoWhenTheFileHoldsAllOfIt) {
  const cache::Cache cache = CacheBuilder(300).turbo({1, 32}, 4, 4).arrays().build();
  const CacheOnDisk file(cache);
  const Bytes before = file.bytes();
  const AppendReport report = must(file.append(cache));
  EXPECT_EQ(report.bytes_written, 0u);
  EXPECT_EQ(report.file_bytes, before.size());
  EXPECT_EQ(report.n_tokens, 300);
  EXPECT_EQ(file.bytes(), before);
}

TEST(Append, NoticesAMeanThatOnlyTheManifestHolds) {
  CacheBuilder builder(300);
  builder.center(cache::Centering::kPostRope).turbo({1, 32}, 4, 4);
  const cache::Cache whole = builder.build();
  cache::Cache cache = must(cache::truncate(whole, 3));  // the mean stays fixed
  cache::Cache without = cache;
  for (cache::Tensor* tensor :
       {&std::get<0>(without.layers[0]).k, &std::get<0>(without.layers[0]).v}) {
    edit_codec(std::get<cache::TurboTensor>(*tensor).codec,
               [](auto& state) { state.mean.values.clear(); });
  }
  const CacheOnDisk file(without);
  EXPECT_GT(must(file.append(cache)).bytes_written, 0u);
  EXPECT_EQ(difference(must(load(file.bytes())), cache), "");
  expect_error(dropped(file.append(without)), ErrorCode::kMismatch, "layer 0: k: another mean");
}

// A cache whose first token block, a packed one, was changed.
cache::Cache with_other_first_block(cache::Cache cache) {
  auto& tensor = std::get<cache::TurboTensor>(std::get<cache::AttentionLayer>(cache.layers[0]).k);
  const ByteView view = tensor.packed[0].bytes.view();
  AlignedBytes bytes(view.size());
  std::ranges::copy(view, bytes.begin());
  bytes[0] ^= std::byte{1};
  tensor.packed[0].bytes = SharedBytes(std::move(bytes));
  return cache;
}

TEST(Append, ComparesTheTokenBlocksOfACacheThatItDidNotReadItself) {
  const cache::Cache cache = CacheBuilder(300).turbo({1, 32}, 4, 4).build();
  const cache::Cache other = with_other_first_block(cache);
  const CacheOnDisk file(cache);
  must(file.append(other));
  EXPECT_EQ(difference(must(load(file.bytes())), other), "");
}

TEST(Append, TakesTokenBlocksForGrantedThatItReadItself) {
  const cache::Cache cache = CacheBuilder(300).turbo({1, 32}, 4, 4).build();
  const CacheOnDisk file(cache);
  CacheAppender appender = must(CacheAppender::open(file.path()));
  const cache::Cache other = with_other_first_block(must(appender.read()));
  EXPECT_EQ(must(appender.append(other, CacheOnDisk::stored())).bytes_written, 0u);
}

TEST(Append, OfSomeOfTheTokensComparesThemAll) {
  const cache::Cache cache = CacheBuilder(600).turbo({1, 32}, 4, 4).build();
  const CacheOnDisk file(cache);
  CacheAppender appender = must(CacheAppender::open(file.path()));
  must(appender.read({.first_tokens = 300}));
  const cache::Cache other = with_other_first_block(cache);
  EXPECT_GT(must(appender.append(other, CacheOnDisk::stored())).bytes_written, 0u);
}

TEST(Append, TellsItsProgressInBytesOfNewSections) {
  const cache::Cache cache = CacheBuilder(300).dense({1, 4}).build();
  const CacheOnDisk file(cache);
  CacheAppender appender = must(CacheAppender::open(file.path()));
  std::vector<std::uint64_t> told;
  const Progress progress = [&](std::uint64_t done, std::uint64_t total) {
    EXPECT_EQ(total, 2 * 60 * 4 * 2u);
    told.push_back(done);
    return true;
  };
  must(appender.append(grown(cache, 16), CacheOnDisk::stored(), progress));
  EXPECT_THAT(told, testing::ElementsAre(60 * 4 * 2u, 2 * 60 * 4 * 2u));
}

TEST(Append, LeavesTheFileAsItWasWhenItIsInterrupted) {
  const cache::Cache cache = CacheBuilder(300).dense({1, 4}).arrays().build();
  const CacheOnDisk file(cache);
  const cache::Cache longer = grown(cache, 500);
  CacheAppender appender = must(CacheAppender::open(file.path()));
  const Bytes before = file.bytes();
  for (int at = 1; at <= 8; ++at) {
    int calls = 0;
    const Progress stop = [&](std::uint64_t, std::uint64_t) { return ++calls < at; };
    expect_error(dropped(appender.append(longer, CacheOnDisk::stored(), stop)),
                 ErrorCode::kInterrupted, "interrupted");
    EXPECT_EQ(file.bytes(), before);
  }
  must(appender.append(longer, CacheOnDisk::stored()));
  EXPECT_EQ(difference(must(load(file.bytes())), longer), "");
}

TEST(Append, LeavesTheFileAsItWasWhenAnExceptionPassesThrough) {
  const cache::Cache cache = CacheBuilder(3).dense({1, 4}).build();
  const CacheOnDisk file(cache);
  const Bytes before = file.bytes();
  CacheAppender appender = must(CacheAppender::open(file.path()));
  const Progress thrower = [](std::uint64_t, std::uint64_t) -> bool { throw std::bad_alloc(); };
  EXPECT_THROW((void)appender.append(grown(cache, 2), {}, thrower), std::bad_alloc);
  EXPECT_EQ(file.bytes(), before);
  EXPECT_TRUE(appender.append(grown(cache, 2), {}).ok());
}

TEST(Append, LeavesTheFileAsItWasWhenThereIsNoRoom) {
  const cache::Cache cache = CacheBuilder(3).dense({1, 4}).build();
  const CacheOnDisk file(cache);
  const cache::Cache longer = grown(cache, 400);
  const Bytes before = file.bytes();
  CacheAppender appender = must(CacheAppender::open(file.path()));
  const std::uint64_t needed =
      must(CacheOnDisk(before).append(longer)).file_bytes;  // in another place
  for (std::uint64_t room = before.size(); room < needed; room += 300) {
    const FileSizeLimit limit(room);
    const auto result = appender.append(longer, CacheOnDisk::stored());
    ASSERT_FALSE(result.ok()) << room;
    EXPECT_EQ(result.error().code, ErrorCode::kIo);
    EXPECT_EQ(file.bytes(), before) << room;
  }
  must(appender.append(longer, CacheOnDisk::stored()));
  EXPECT_EQ(difference(must(load(file.bytes())), longer), "");
}

TEST(Append, PutsTheOlderStateBackWhenItIsInterrupted) {
  const cache::Cache cache = CacheBuilder(3).dense({1, 4}).build();
  const cache::Cache longer = grown(cache, 2);
  const CacheOnDisk file(cache);
  must(file.append(longer));
  const Bytes before = file.bytes();
  CacheAppender appender = must(CacheAppender::open(file.path()));
  const Progress stop = [](std::uint64_t, std::uint64_t) { return false; };
  EXPECT_FALSE(appender.append(grown(longer, 2), {}, stop).ok());
  EXPECT_EQ(file.bytes(), before);
}

TEST(Append, KeepsTheNameOfTheWriter) {
  const cache::Cache cache = CacheBuilder(3).dense({1, 4}).build();
  const CacheOnDisk file(cache, {.writer = "someone 1.0"});
  must(file.append(grown(cache, 1), {.writer = "another 2.0"}));
  EXPECT_EQ(info_of(file.bytes()).writer, "someone 1.0");
}

TEST(Append, RefusesAFileThatIsNoCache) {
  const auto open = [](const CacheOnDisk& file) { return CacheAppender::open(file.path()); };
  expect_error(dropped(open(CacheOnDisk(Bytes(200)))), ErrorCode::kCorrupt, "not a .tqkv file");
  const TempDir dir;
  expect_error(dropped(CacheAppender::open(dir / "none")), ErrorCode::kNotFound, "no such file");
}

TEST(Append, RefusesTheLastGeneration) {
  const cache::Cache cache = CacheBuilder(3).dense({1, 4}).build();
  Bytes bytes = file_of(cache);
  patch(bytes, kGenerationAt, 0xffffffffu);
  reseal_slot(bytes);
  const CacheOnDisk file(bytes);
  expect_error(dropped(file.append(grown(cache, 1))), ErrorCode::kTooLarge, "compacted");
  EXPECT_EQ(file.bytes(), bytes);
}

TEST(Append, RefusesOptionsThatCannotBe) {
  const cache::Cache cache = CacheBuilder(3).dense({1, 4}).build();
  const CacheOnDisk file(cache);
  const Bytes before = file.bytes();
  expect_error(dropped(file.append(grown(cache, 1), {.zstd_level = 99})),
               ErrorCode::kInvalidArgument, "level");
  expect_error(dropped(file.append(grown(cache, 1), {.hide_tokens = true})),
               ErrorCode::kInvalidArgument, "tells its tokens already");
  EXPECT_EQ(file.bytes(), before);
}

TEST(Append, HasTheFileToItself) {
  const cache::Cache cache = CacheBuilder(3).dense({1, 4}).build();
  const CacheOnDisk file(cache);
  std::optional<CacheAppender> first(must(CacheAppender::open(file.path())));
  const auto expect_busy = [&](const Result<void>& result) {
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.error().code, ErrorCode::kBusy);
  };
  expect_busy(dropped(CacheAppender::open(file.path())));
  expect_busy(dropped(format::compact_file(file.path(), {})));
  expect_busy(format::write_cache_file(cache, file.path(), {.overwrite = Overwrite::kAllow}));
  EXPECT_EQ(difference(must(load(file.bytes())), cache), "");
  first.reset();
  EXPECT_TRUE(file.append(grown(cache, 1)).ok());
}

}  // namespace append_test
}  // namespace tqcache::test
