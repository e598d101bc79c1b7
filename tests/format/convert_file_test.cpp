// From file to file, what converting in memory gives, in bounded memory.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <mutex>

#include "file_fixture.h"
#include "support/long_file.h"
#include "support/scripted_reader.h"
#include "support/temp_dir.h"
#include "tqcache/cache/memory_blocks.h"
#include "tqcache/quantize.h"
#include "tqcache/tqkv.h"

namespace tqcache::test {
namespace convert_file_test {

using cache::ConvertOptions;

Result<Bytes> converted_in_memory(const Bytes& file, const ConvertOptions& options,
                                  const format::WriteOptions& write = {}) {
  TQC_TRY_ASSIGN(cache::Cache cache, load(file));
  TQC_TRY_ASSIGN(const cache::Cache converted, cache::convert(std::move(cache), options));
  return format::write_cache_bytes(converted, write);
}

// Fails when something is left behind by a conversion that fails.
Result<Bytes> converted_by_file(const Bytes& file, const ConvertOptions& options,
                                const format::WriteOptions& write = {},
                                const Progress& progress = {}) {
  const TempDir dir;
  const auto result =
      format::convert_file(*memory_source(file), dir / "out.tqkv", options, write, progress);
  EXPECT_EQ(dir.entry_count(), result.ok() ? 1u : 0u);
  TQC_TRY(result);
  return read_all(dir / "out.tqkv");
}

// Two layers of attention, of other shapes and dtypes, and one of arrays.
Bytes dense_file(std::int64_t n_tokens, Compression compression = Compression::kNone) {
  return file_of(CacheBuilder(n_tokens)
                     .dense({2, 64}, Dtype::kF16)
                     .arrays()
                     .mixed({1, 128}, Dtype::kF32, 16, Dtype::kBF16, 16)
                     .build(),
                 compression);
}

void expect_same(const Bytes& file, const ConvertOptions& options,
                 const format::WriteOptions& write = {}) {
  const auto expected = converted_in_memory(file, options, write);
  const auto given = converted_by_file(file, options, write);
  ASSERT_TRUE(expected.ok()) << expected.error().message;
  ASSERT_TRUE(given.ok()) << given.error().message;
  EXPECT_TRUE(*given == *expected);
}

// The same refusal, by code and by message.
void expect_same_error(const Bytes& file, const ConvertOptions& options) {
  const auto expected = converted_in_memory(file, options);
  const auto given = converted_by_file(file, options);
  ASSERT_FALSE(expected.ok());
  ASSERT_FALSE(given.ok());
  EXPECT_EQ(given.error().code, expected.error().code);
  EXPECT_EQ(given.error().message, expected.error().message);
}

class ConvertFile : public testing::TestWithParam<std::string_view> {};

INSTANTIATE_TEST_SUITE_P(Presets, ConvertFile, testing::ValuesIn(cache::preset_names()),
                         [](const auto& instance) {
                           std::string name(instance.param);
                           std::ranges::replace(name, '.', '_');
                           return name;
                         });

TEST_P(ConvertFile, GivesTheFileThatConvertingInMemoryGives) {
  ConvertOptions options = must(cache::preset(GetParam()));
  for (const std::int64_t n_tokens : {0, 1, 255, 256, 257, 512, 700}) {
    SCOPED_TRACE(n_tokens);
    const Bytes file = dense_file(n_tokens);
    options.n_threads = static_cast<unsigned>(n_tokens % 3);
    for (const Compression each : kCompressions) expect_same(file, options, {.compression = each});
  }
}

TEST(ConvertFileOptions, GiveTheFileThatConvertingInMemoryGives) {
  const Bytes file = dense_file(600);
  for (const cache::Centering center :
       {cache::Centering::kNone, cache::Centering::kPostRope, cache::Centering::kPreRope}) {
    for (const cache::Fit fit : {cache::Fit::kFirstBlock, cache::Fit::kPrompt}) {
      ConvertOptions options = must(cache::preset("turbo2.5"));
      for (cache::TensorPlan* plan : {&options.keys, &options.values}) {
        plan->center = center;
        plan->n_sinks = 5;
      }
      options.fit = fit;
      expect_same(file, options);
    }
  }
  ConvertOptions options = must(cache::preset("k4v3"));
  options.boundary = {1, 8};
  expect_same(file, options);
  options.keys.n_sinks = cache::kTokenBlock;
  expect_same(file, options);
}

TEST(ConvertFileOptions, DoNotChangeTheBytesByThreadsOrWindow) {
  const Bytes file = dense_file(700, Compression::kZstd);
  ConvertOptions options = must(cache::preset("turbo3.5"));
  options.n_threads = 1;
  const Bytes expected = must(converted_by_file(file, options));
  for (const unsigned n_threads : {0u, 2u, 5u}) {
    for (const std::uint64_t window : {0u, 1u, 100'000u}) {
      options.n_threads = n_threads;
      EXPECT_TRUE(must(converted_by_file(file, options, {.window_bytes = window})) == expected)
          << n_threads << ' ' << window;
    }
  }
}

TEST(ConvertFileOptions, MayHideTheTokens) {
  const Bytes file = dense_file(300);
  const ConvertOptions options = must(cache::preset("turbo4"));
  expect_same(file, options, {.hide_tokens = true});
  const Bytes hidden = must(converted_by_file(file, options, {.hide_tokens = true}));
  EXPECT_TRUE(info_of(hidden).hidden_tokens.has_value());
  EXPECT_EQ(info_of(hidden).tokens.front(), cache::kUnknownToken);
}

// A source that counts how often each section is read.
class CountingSource : public ByteSource {
 public:
  explicit CountingSource(const Bytes& file) : source_(memory_source(file)) {
    for (const SectionInfo& section : info_of(file).sections) {
      sections_[section.file_offset] = section;
    }
  }

  std::uint64_t size() const override { return source_->size(); }

  Result<void> read_at(std::uint64_t offset, std::span<std::byte> out) const override {
    const std::lock_guard lock(mutex_);
    if (out.size() > format::kSectionAlignment) ++reads_[offset];
    return source_->read_at(offset, out);
  }

  // The token blocks of one tensor that were read so often.
  std::vector<std::int64_t> blocks_read(std::int64_t layer, cache::TensorKind tensor,
                                        int times) const {
    std::vector<std::int64_t> blocks;
    for (const auto& [offset, section] : sections_) {
      const auto reads = reads_.find(offset);
      const int n = reads == reads_.end() ? 0 : reads->second;
      if (section.layer == layer && section.tensor == tensor && n == times) {
        blocks.push_back(section.block);
      }
    }
    std::ranges::sort(blocks);
    return blocks;
  }

 private:
  std::unique_ptr<ByteSource> source_;
  std::map<std::uint64_t, SectionInfo> sections_;
  mutable std::mutex mutex_;
  mutable std::map<std::uint64_t, int> reads_;
};

constexpr std::int64_t kLong =
    40 * cache::kTokenBlock + 3;  // more blocks than a mean is taken over

TEST(ConvertFilePasses, ReadABlockOnce) {
  const Bytes file = file_of(CacheBuilder(kLong).dense({1, 32}).build());
  for (const char* const preset : {"turbo4", "turbo2.5", "kfv4"}) {
    SCOPED_TRACE(preset);
    const ConvertOptions options = must(cache::preset(preset));
    const CountingSource source(file);
    const TempDir dir;
    must(format::convert_file(source, dir / "out", options, {}));
    EXPECT_EQ(source.blocks_read(0, cache::TensorKind::kKeys, 1).size(), 41u);
    EXPECT_EQ(source.blocks_read(0, cache::TensorKind::kValues, 1).size(), 41u);
    EXPECT_TRUE(read_all(dir / "out") == must(converted_in_memory(file, options)));
  }
}

TEST(ConvertFilePasses, ReadTwiceWhatCodecsOfAPromptAreFittedTo) {
  const Bytes file = file_of(CacheBuilder(kLong).dense({1, 32}).build());
  const std::vector<std::int64_t> sample = cache::fit_blocks(cache::Fit::kPrompt, kLong);
  ASSERT_EQ(sample.size(), 32u);
  ConvertOptions options = must(cache::preset("kfv4"));
  options.fit = cache::Fit::kPrompt;
  const CountingSource source(file);
  const TempDir dir;
  must(format::convert_file(source, dir / "out", options, {}));
  EXPECT_EQ(source.blocks_read(0, cache::TensorKind::kKeys, 1).size(), 41u);
  EXPECT_EQ(source.blocks_read(0, cache::TensorKind::kValues, 2), sample);
  EXPECT_EQ(source.blocks_read(0, cache::TensorKind::kValues, 1).size(), 41 - sample.size());
  EXPECT_TRUE(read_all(dir / "out") == must(converted_in_memory(file, options)));
}

// One layer that is turbo4 and one that is dense; a full last block is still dense in both.
Bytes half_packed_file(std::int64_t n_tokens) {
  return file_of(
      CacheBuilder(n_tokens).keep_full_tail().preset({2, 64}, "turbo4").dense({1, 64}).build());
}

TEST(ConvertFileOfTurbo, KeepsWhatIsPackedInTheSameFormAndPacksAFullTail) {
  for (const std::int64_t n_tokens : {0, 200, 256, 512, 600}) {
    SCOPED_TRACE(n_tokens);
    const Bytes file = half_packed_file(n_tokens);
    ConvertOptions options = must(cache::preset("turbo4"));
    options.keys.n_sinks = options.values.n_sinks = 0;  // as those of the file
    for (const Compression each : kCompressions) expect_same(file, options, {.compression = each});
  }
}

TEST(ConvertFileOfTurbo, KeepsEveryTensorAsItIsIfToldTo) {
  for (const std::int64_t n_tokens : {0, 200, 256, 600}) {
    SCOPED_TRACE(n_tokens);
    const Bytes file = half_packed_file(n_tokens);
    ConvertOptions options;
    options.keep_all = true;
    expect_same(file, options, {.compression = Compression::kPlanes});
    EXPECT_EQ(must(converted_in_memory(file, options, {.compression = Compression::kPlanes})),
              file_of(must(load(file)), Compression::kPlanes));
  }
}

TEST(ConvertFileOfTurbo, RefusesAnotherForm) {
  const Bytes file = half_packed_file(600);
  expect_same_error(file, must(cache::preset("turbo3")));
  expect_same_error(file, must(cache::preset("kfv4")));
}

TEST(ConvertFileErrors, AreThoseOfConvertingInMemory) {
  const Bytes file = file_of(CacheBuilder(600).dense({2, 64}).build());
  const std::size_t keys_of_block_1 = 2;  // sections: k and v of block 0, k and v of block 1, ...
  const Bytes infinite = change_section(file, keys_of_block_1, true, [](auto bytes) {
    bytes[64 * 2 * 300 + 1] = std::byte{0x7c};  // of head 1, token 44
    bytes[64 * 2 * 300] = std::byte{0};
  });
  expect_same_error(infinite, must(cache::preset("turbo4")));
  ConvertOptions options = must(cache::preset("turbo4"));
  options.keys.codec.bits = 9;
  expect_same_error(file, options);
  options = must(cache::preset("turbo4"));
  options.keys.n_sinks = 257;
  expect_same_error(file, options);
}

TEST(ConvertFileErrors, OfOptionsAreToldBeforeTheWork) {
  int calls = 0;
  const auto count = [&](std::uint64_t, std::uint64_t) { return ++calls > 0; };
  const auto result =
      converted_by_file(dense_file(300), must(cache::preset("turbo4")), {.zstd_level = 20}, count);
  expect_error(dropped(result), ErrorCode::kInvalidArgument, "level 20");
  EXPECT_EQ(calls, 0);
}

TEST(ConvertFileErrors, OfTheSourceAreThoseOfReadingIt) {
  const Bytes file = dense_file(600);
  const ConvertOptions options = must(cache::preset("turbo4"));
  for (std::size_t i = 0; i < info_of(file).sections.size(); ++i) {
    Bytes damaged = file;
    damaged[info_of(file).sections[i].file_offset + 5] ^= std::byte{1};
    expect_same_error(damaged, options);
  }
  Bytes cut = file;
  cut.resize(file.size() - 1);
  expect_same_error(cut, options);
  EXPECT_EQ(converted_by_file({}, options).error().code, load({}).error().code);
}

TEST(ConvertFileWork, TellsItsProgressInBytesOfTheSourceAndStopsWhenAsked) {
  const Bytes file = file_of(CacheBuilder(kLong).dense({1, 32}).arrays().build());
  const ConvertOptions options = must(cache::preset("turbo4"));
  std::uint64_t total = 0;
  for (const SectionInfo& section : info_of(file).sections) total += section.raw_bytes;

  std::vector<std::uint64_t> seen;
  must(converted_by_file(file, options, {}, [&](std::uint64_t done, std::uint64_t whole) {
    EXPECT_EQ(whole, total);
    seen.push_back(done);
    return true;
  }));
  EXPECT_TRUE(std::ranges::is_sorted(seen));
  EXPECT_EQ(seen.back(), total);

  for (const std::size_t stop : {std::size_t{1}, seen.size() / 2, seen.size()}) {
    std::size_t calls = 0;
    const auto result = converted_by_file(
        file, options, {}, [&](std::uint64_t, std::uint64_t) { return ++calls < stop; });
    expect_error(dropped(result), ErrorCode::kInterrupted, "interrupted");
    EXPECT_EQ(calls, stop);
  }
}

TEST(ConvertFileWork, MayReplaceItsSource) {
  const TempDir dir;
  const Bytes file = dense_file(300);
  const ConvertOptions options = must(cache::preset("turbo4"));
  write_all(dir / "a.tqkv", file);
  const auto source = must(open_file(dir / "a.tqkv"));
  expect_error(format::convert_file(*source, dir / "a.tqkv", options, {}),
               ErrorCode::kInvalidArgument, "exists");
  EXPECT_TRUE(read_all(dir / "a.tqkv") == file);
  must(format::convert_file(*source, dir / "a.tqkv", options, {.overwrite = Overwrite::kAllow}));
  EXPECT_TRUE(read_all(dir / "a.tqkv") == must(converted_in_memory(file, options)));
  EXPECT_EQ(dir.entry_count(), 1u);
}

TEST(ConvertFileMemory, DoesNotGrowWithTheFile) {
#ifdef TQCACHE_TEST_SANITIZED
  GTEST_SKIP() << "a sanitizer takes memory of its own";
#endif
  const TempDir dir;
  constexpr std::uint64_t kMiB = 1 << 20;
  constexpr std::int64_t kBlocks = 256;  // of 256 KiB each, keys and values together
  constexpr std::uint64_t kBound = 24 * kMiB;
  ConvertOptions options = must(cache::preset("turbo4"));
  options.n_threads = 2;
  EXPECT_LT(peak_of([&] { must(write_long_file(dir / "in", kBlocks)); }), kBound);
  EXPECT_GT(std::filesystem::file_size(dir / "in"), 64 * kMiB);
  EXPECT_LT(peak_of([&] {
              const auto source = must(open_file(dir / "in"));
              must(format::convert_file(*source, dir / "out", options, {.window_bytes = kMiB}));
            }),
            kBound);
  // What the bound is worth: with the cache in memory it is passed.
  EXPECT_GT(peak_of([&] {
              const cache::Cache cache = must(format::read_cache(*must(open_file(dir / "in"))));
              must(format::write_cache_file(must(cache::convert(cache, options)), dir / "out",
                                            {.overwrite = Overwrite::kAllow}));
            }),
            64 * kMiB);
}

}  // namespace convert_file_test
}  // namespace tqcache::test
