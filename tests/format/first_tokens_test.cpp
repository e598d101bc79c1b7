// The first tokens of a file, as cutting the whole cache gives them, without reading the rest.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <optional>

#include "file_fixture.h"
#include "support/temp_dir.h"
#include "tqcache/cache.h"
#include "tqcache/tqkv.h"

namespace tqcache::test {
namespace first_tokens_test {

Bytes written(const cache::Cache& cache) { return file_of(cache, Compression::kNone); }

// Of a file of 600 tokens or fewer.
std::vector<std::int64_t> cuts_of(std::int64_t n_tokens) {
  std::vector<std::int64_t> cuts = {0, 1, 3, 255, 256, 257, 511, 512, 513, n_tokens - 1, n_tokens};
  std::erase_if(cuts, [&](std::int64_t n) { return n < 0 || n > n_tokens; });
  return cuts;
}

// Cutting while reading gives, for every cut, the file that cutting the cache gives.
void expect_cut_alike(const cache::Cache& cache, Compression compression = Compression::kNone) {
  const Bytes file = file_of(cache, compression);
  const cache::Cache whole = must(load(file));
  for (const std::int64_t n : cuts_of(cache.n_tokens())) {
    SCOPED_TRACE(n);
    const auto first = load(file, {.n_threads = 1, .first_tokens = n});
    ASSERT_TRUE(first.ok()) << first.error().message;
    EXPECT_EQ(first->n_tokens(), n);
    EXPECT_TRUE(written(*first) == written(must(cache::truncate(whole, n))));
  }
}

class FirstTokens : public testing::TestWithParam<std::string_view> {};

INSTANTIATE_TEST_SUITE_P(Presets, FirstTokens, testing::ValuesIn(cache::preset_names()),
                         [](const auto& instance) {
                           std::string name(instance.param);
                           std::ranges::replace(name, '.', '_');
                           return name;
                         });

TEST_P(FirstTokens, AreThoseOfTheWholeCacheCut) {
  for (const std::int64_t n_tokens : {256, 300, 512, 600}) {
    SCOPED_TRACE(n_tokens);
    expect_cut_alike(CacheBuilder(n_tokens).preset({2, 64}, GetParam()).build());
  }
}

TEST_P(FirstTokens, AreThoseOfTheWholeCacheCutWhenAFullTailIsDense) {
  for (const std::int64_t n_tokens : {256, 512}) {
    SCOPED_TRACE(n_tokens);
    expect_cut_alike(
        CacheBuilder(n_tokens).keep_full_tail().preset({2, 64}, GetParam(), Dtype::kBF16).build());
  }
}

TEST(FirstTokensOf, DenseLayersOfAnyDtypeAndShapeAreThoseOfTheWholeCacheCut) {
  expect_cut_alike(CacheBuilder(600)
                       .dense({3, 8}, Dtype::kF32)
                       .mixed({1, 5}, Dtype::kBF16, 16, Dtype::kF16, 16)
                       .build());
  expect_cut_alike(CacheBuilder(2).dense({2, 4}).build());
  expect_cut_alike(CacheBuilder(0).dense({2, 4}).build());
}

TEST(FirstTokensOf, CompressedSectionsAreThoseOfTheWholeCacheCut) {
  cache::Cache cache = CacheBuilder(600).dense({2, 32}).preset({1, 32}, "turbo4").build();
  for (AlignedBytes& block :
       std::get<cache::DenseTensor>(std::get<cache::AttentionLayer>(cache.layers[0]).k).blocks) {
    std::ranges::fill(std::span(block).first(block.size() / 2), std::byte{});
  }
  ASSERT_EQ(info_of(file_of(cache, Compression::kZstd)).sections[0].compression,
            Compression::kZstd);
  expect_cut_alike(cache, Compression::kZstd);
  ASSERT_EQ(info_of(file_of(cache, Compression::kPlanes)).sections[0].compression,
            Compression::kPlanes);
  expect_cut_alike(cache, Compression::kPlanes);
}

TEST(FirstTokensOf, TensorsWithSinkTokensAreThoseOfTheWholeCacheCut) {
  for (const std::int64_t n_sinks : {1, 4, 256}) {
    cache::ConvertOptions options = must(cache::preset("turbo3"));
    options.keys.n_sinks = options.values.n_sinks = n_sinks;
    expect_cut_alike(CacheBuilder(600)
                         .tensors({2, 64}, Dtype::kF16, options.keys, Dtype::kBF16, options.values)
                         .build());
  }
}

TEST(FirstTokensOf, AMappedFileAreThoseOfTheWholeCacheCut) {
  const cache::Cache cache =
      CacheBuilder(600).preset({2, 64}, "turbo4").dense({1, 32}, Dtype::kF32).build();
  const TempDir dir;
  write_all(dir / "a.tqkv", written(cache));
  for (const std::int64_t n : cuts_of(600)) {
    for (const bool verify : {true, false}) {
      const auto mapped =
          format::map_cache(dir / "a.tqkv", {.first_tokens = n, .verify_checksums = verify});
      ASSERT_TRUE(mapped.ok()) << mapped.error().message;
      EXPECT_TRUE(written(*mapped) == written(must(cache::truncate(cache, n)))) << n;
    }
  }
}

TEST(FirstTokensOf, AConversionGiveTheFileThatConvertingTheCutCacheGives) {
  const TempDir dir;
  const cache::Cache dense = CacheBuilder(600).dense({2, 64}).dense({1, 128}).build();
  const cache::Cache turbo = CacheBuilder(600).preset({2, 64}, "turbo4").build();
  for (const std::string_view preset : {"turbo4", "turbo2.5"}) {
    cache::ConvertOptions options = must(cache::preset(preset));
    options.keys.n_sinks = options.values.n_sinks = 0;  // as those of `turbo`
    for (const cache::Cache* cache : {&dense, &turbo}) {
      if (cache == &turbo && preset != "turbo4") continue;  // packed already, in another form
      const Bytes file = written(*cache);
      for (const std::int64_t n : cuts_of(600)) {
        SCOPED_TRACE(n);
        must(format::convert_file(*memory_source(file), dir / "out", options,
                                  {.overwrite = Overwrite::kAllow}, {}, {.first_tokens = n}));
        const cache::Cache cut = must(cache::truncate(must(load(file)), n));
        EXPECT_TRUE(read_all(dir / "out") ==
                    must(format::write_cache_bytes(must(cache::convert(cut, options)), {})));
      }
    }
  }
}

TEST(FirstTokensOf, AConversionCountAsItsProgress) {
  const Bytes file = written(CacheBuilder(600).dense({1, 32}).build());
  const TempDir dir;
  std::uint64_t done = 0, total = 0;
  const auto watch = [&](std::uint64_t now, std::uint64_t all) {
    done = now;
    total = all;
    return true;
  };
  cache::ConvertOptions options = must(cache::preset("turbo4"));
  options.keys.center = options.values.center = cache::Centering::kNone;
  must(format::convert_file(*memory_source(file), dir / "out", options, {}, watch,
                            {.first_tokens = 257}));
  EXPECT_EQ(total, 2u * 257 * 32 * 2);
  EXPECT_EQ(done, total);
}

// How far into the sections a file is read.
class WatchedSource : public ByteSource {
 public:
  explicit WatchedSource(const Bytes& file)
      : source_(memory_source(file)),
        manifest_offset_(value_at<std::uint64_t>(file, kManifestOffsetAt)) {}

  std::uint64_t size() const override { return source_->size(); }
  Result<void> read_at(std::uint64_t offset, std::span<std::byte> out) const override {
    if (offset < manifest_offset_) read_up_to_ = std::max(read_up_to_, offset + out.size());
    return source_->read_at(offset, out);
  }
  std::uint64_t read_up_to() const { return read_up_to_; }

 private:
  std::unique_ptr<ByteSource> source_;
  std::uint64_t manifest_offset_;
  mutable std::uint64_t read_up_to_ = 0;
};

TEST(FirstTokensWork, ReadsNoSectionBehindThem) {
  const cache::Cache cache =
      CacheBuilder(1000).preset({2, 64}, "turbo4").dense({1, 32}, Dtype::kF32).build();
  const Bytes file = written(cache);
  const std::vector<SectionInfo> sections = info_of(file).sections;
  for (const std::int64_t n : {0, 1, 255, 256, 257, 512, 513, 999}) {
    SCOPED_TRACE(n);
    const WatchedSource source(file);
    must(format::read_cache(source, {.n_threads = 1, .first_tokens = n}));
    const auto n_needed = static_cast<std::size_t>(4 * cache::block_count(n));
    const std::uint64_t end = n_needed == sections.size() ? value_at<std::uint64_t>(file, 24)
                                                          : sections[n_needed].file_offset;
    EXPECT_LE(source.read_up_to(), end);
  }
}

TEST(FirstTokensWork, DoesNotMindDamageBehindThem) {
  const cache::Cache cache = CacheBuilder(600).preset({2, 64}, "turbo4").build();
  Bytes file = written(cache);
  const std::vector<SectionInfo> sections = info_of(file).sections;
  file[sections[2].file_offset + 100] ^= std::byte{1};  // keys of token block 1
  EXPECT_TRUE(load(file, {.first_tokens = 256}).ok());
  const auto result = load(file, {.first_tokens = 257});
  expect_error(dropped(result), ErrorCode::kCorrupt, "section 2 (layer 0 k, block 1)");
}

TEST(FirstTokensWork, CountsAsProgressWhatIsKept) {
  const Bytes file = written(CacheBuilder(600).dense({1, 32}).build());
  std::vector<std::uint64_t> seen;
  const auto watch = [&](std::uint64_t done, std::uint64_t total) {
    EXPECT_EQ(total, 2u * 257 * 32 * 2);
    seen.push_back(done);
    return true;
  };
  must(format::read_cache(*memory_source(file), {.n_threads = 1, .first_tokens = 257}, watch));
  ASSERT_EQ(seen.size(), 4u);
  EXPECT_EQ(seen.back(), 2u * 257 * 32 * 2);
}

TEST(FirstTokensWork, NeedsMemoryForThemAlone) {
  const Bytes file = written(CacheBuilder(600).dense({1, 32}, Dtype::kF32).build());
  constexpr std::uint64_t kOneBlock = 2 * 256 * 32 * 4;
  const auto load_first = [&](std::int64_t n) {
    return load(file, {.first_tokens = n, .access = {.memory = MemoryBudget().at_most(kOneBlock)}});
  };
  EXPECT_TRUE(load_first(1).ok());
  EXPECT_TRUE(load_first(256).ok());
  EXPECT_EQ(load_first(257).error().code, ErrorCode::kTooLarge);
}

// Refused alike by reading and by cutting what was read.
void expect_refused_alike(const Bytes& file, std::int64_t n, ErrorCode code) {
  SCOPED_TRACE(n);
  const auto first = load(file, {.first_tokens = n});
  const auto cut = cache::truncate(must(load(file)), n);
  ASSERT_FALSE(first.ok());
  ASSERT_FALSE(cut.ok());
  EXPECT_EQ(first.error().code, code);
  EXPECT_EQ(first.error().code, cut.error().code);
  EXPECT_EQ(first.error().message, cut.error().message);
}

TEST(FirstTokensRefused, AreMoreThanThereAreAndFewerThanNone) {
  const Bytes file = written(CacheBuilder(300).dense({1, 32}).build());
  for (const std::int64_t n :
       {std::int64_t{-1}, std::int64_t{301}, cache::kMaxTokens + 1,
        std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max()}) {
    expect_refused_alike(file, n, ErrorCode::kInvalidArgument);
  }
}

TEST(FirstTokensRefused, AreFewerWhereALayerIsOfArrays) {
  const Bytes file = written(CacheBuilder(300).dense({1, 32}).arrays().build());
  for (const std::int64_t n : {0, 256, 299}) {
    expect_refused_alike(file, n, ErrorCode::kUnsupported);
  }
  EXPECT_EQ(load(file, {.first_tokens = 299}).error().message,
            "layer 1: its state belongs to all of the tokens");
  EXPECT_TRUE(written(must(load(file, {.first_tokens = 300}))) == file);
}

TEST(FirstTokensRefused, AreFewerWhereALayerRotates) {
  cache::Cache cache = CacheBuilder(300).dense({1, 32}).build();
  const cache::NamedArray zeros{"", Dtype::kF16, {1, 16, 8}, AlignedBytes(256)};
  cache.layers.emplace_back(window_layer({{1, 8}, 16, 4}, zeros, zeros, 300));
  const Bytes file = written(cache);
  for (const std::int64_t n : {0, 10, 299}) {
    expect_refused_alike(file, n, ErrorCode::kUnsupported);
  }
  EXPECT_TRUE(written(must(load(file, {.first_tokens = 300}))) == file);
}

TEST(FirstTokensHidden, KeepTheHashesOfTheirTokenBlocks) {
  cache::Cache cache = CacheBuilder(600).preset({2, 64}, "turbo4").build();
  const std::vector<std::int32_t> tokens = cache.tokens;
  cache::hide_tokens(cache);
  const Bytes file = written(cache);
  for (const std::int64_t n : {0, 256, 512, 600}) {
    SCOPED_TRACE(n);
    cache::Cache first = must(load(file, {.first_tokens = n}));
    EXPECT_TRUE(written(first) == written(must(cache::truncate(cache, n))));
    must(cache::reveal_tokens(first, tokens));
    EXPECT_TRUE(
        std::ranges::equal(first.tokens, std::span(tokens).first(static_cast<std::size_t>(n))));
  }
  for (const std::int64_t n : {1, 255, 257, 599}) {
    expect_refused_alike(file, n, ErrorCode::kUnsupported);
  }
}

TEST(FirstTokensHidden, CanBeAnyNumberWhenNobodyKnowsThem) {
  cache::Cache cache = CacheBuilder(600).dense({2, 32}).build();
  cache.tokens.assign(600, cache::kUnknownToken);
  cache.hidden_tokens.emplace();
  expect_cut_alike(cache);
}

}  // namespace first_tokens_test
}  // namespace tqcache::test
