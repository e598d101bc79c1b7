// What is written is what is read, whatever the cache holds.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "file_fixture.h"
#include "support/temp_dir.h"

namespace tqcache::test {
namespace {

struct Case {
  std::string name;
  std::function<cache::Cache(std::int64_t n_tokens)> make;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> kCases = {
      {"DenseF16",
       [](auto n) {
         return CacheBuilder(n).dense({2, 32}, Dtype::kF16).build();
       }},
      {"DenseBF16",
       [](auto n) {
         return CacheBuilder(n).dense({3, 5}, Dtype::kBF16).build();
       }},
      {"DenseF32",
       [](auto n) {
         return CacheBuilder(n).dense({1, 1}, Dtype::kF32).build();
       }},
      {"Turbo",
       [](auto n) {
         return CacheBuilder(n).turbo({2, 64}, 4, 3).build();
       }},
      {"TurboFullTail",
       [](auto n) {
         return CacheBuilder(n).keep_full_tail().turbo({1, 36}, 2, 1).build();
       }},
      {"Centred",
       [](auto n) {
         return CacheBuilder(n)
             .center(cache::Centring::kPreRope)
             .turbo({2, 64}, 4, 4)
             .turbo({1, 80}, 3, 16)
             .turbo({1, 32}, 4, 4)  // too small for the RoPE: after RoPE
             .center(cache::Centring::kPostRope)
             .keep_full_tail()
             .turbo({1, 64}, 4, 4)
             .build();
       }},
      {"Mixed",
       [](auto n) {
         return CacheBuilder(n)
             .turbo({1, 32}, 8, 5, Dtype::kF32)
             .mixed({2, 32}, Dtype::kF16, 16, Dtype::kBF16, 4)
             .dense({1, 3}, Dtype::kBF16)
             .build();
       }},
      {"Arrays",
       [](auto n) {
         return CacheBuilder(n).arrays().dense({1, 8}).arrays().turbo({1, 32}, 4, 4).build();
       }},
      {"NoLayers", [](auto n) { return CacheBuilder(n).build(); }},
  };
  return kCases;
}

class RoundTrip
    : public testing::TestWithParam<std::tuple<std::size_t, std::int64_t, Compression>> {};

TEST_P(RoundTrip, GivesTheSameCacheBack) {
  const auto [kind, n_tokens, compression] = GetParam();
  const cache::Cache cache = cases()[kind].make(n_tokens);
  const Bytes file = file_of(cache, compression);
  const auto loaded = load(file);
  ASSERT_TRUE(loaded.ok()) << loaded.error().message;
  EXPECT_EQ(difference(cache, *loaded), "");
  EXPECT_THAT(damage_of(file), testing::IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(
    CacheFile, RoundTrip,
    testing::Combine(testing::Range<std::size_t>(0, cases().size()),
                     testing::Values<std::int64_t>(0, 1, 255, 256, 257, 511, 512, 513),
                     testing::Values(Compression::kNone, Compression::kZstd)),
    [](const auto& test) {
      return cases()[std::get<0>(test.param)].name + std::to_string(std::get<1>(test.param)) +
             (std::get<2>(test.param) == Compression::kZstd ? "Zstd" : "Stored");
    });

TEST(CacheFile, KeepsTheWholeIdentity) {
  CacheBuilder builder(1);
  builder.identity().model_name = "name with \"quotes\", \xc3\xbc and \n";
  builder.identity().adapter_fingerprint = Sha256{std::byte{7}};
  builder.identity().rope = {cache::RopeStyle::kInterleaved, 12, 10000.5};
  builder.identity().source_format = "mlx-lm";
  const cache::Cache cache = builder.dense({1, 4}).build();
  EXPECT_EQ(difference(cache, must(load(file_of(cache)))), "");
}

TEST(CacheFile, KeepsArraysOfNoValueAndOfOneValue) {
  cache::Cache cache = CacheBuilder(2).build();
  cache::ArraysLayer layer;
  layer.arrays.push_back({"none", Dtype::kF16, {4, 0, 3}, {}});
  layer.arrays.push_back({"one", Dtype::kF32, {}, AlignedBytes(4, std::byte{9})});
  layer.arrays.push_back({"", Dtype::kBF16, {1, 1, 1, 1, 1, 1, 1, 2}, AlignedBytes(4)});
  cache.layers.emplace_back(layer);
  const Bytes file = file_of(cache, Compression::kZstd);
  EXPECT_EQ(difference(cache, must(load(file))), "");
  EXPECT_THAT(damage_of(file), testing::IsEmpty());
}

TEST(CacheFile, HasTheSameBytesForAnyNumberOfThreads) {
  const cache::Cache cache = CacheBuilder(700).dense({2, 32}).turbo({2, 64}, 4, 3).arrays().build();
  for (const Compression compression : {Compression::kNone, Compression::kZstd}) {
    const Bytes one =
        must(format::write_cache_bytes(cache, {.compression = compression, .n_threads = 1}));
    const Bytes four =
        must(format::write_cache_bytes(cache, {.compression = compression, .n_threads = 4}));
    EXPECT_TRUE(one == four);
    EXPECT_EQ(difference(must(load(one, {.n_threads = 4})), cache), "");
  }
}

TEST(CacheFile, OnDiskHasTheBytesOfTheFileInMemory) {
  const TempDir dir;
  const cache::Cache cache = CacheBuilder(300).turbo({2, 32}, 4, 4).arrays().build();
  must(format::write_cache_file(cache, dir / "a.tqkv", {}));
  EXPECT_TRUE(read_all(dir / "a.tqkv") == must(format::write_cache_bytes(cache, {})));
  const auto source = must(open_file(dir / "a.tqkv"));
  EXPECT_EQ(difference(must(format::read_cache(*source)), cache), "");
}

TEST(CacheFile, CompressesWhatShrinksAndStoresWhatDoesNot) {
  cache::Cache cache = CacheBuilder(256).turbo({2, 64}, 4, 4).build();
  cache.layers.emplace_back(
      cache::AttentionLayer{{1, 8},
                            cache::DenseSide{Dtype::kF16, {AlignedBytes(256 * 8 * 2)}},
                            cache::DenseSide{Dtype::kF16, {AlignedBytes(256 * 8 * 2)}}});
  const CacheFileInfo info = info_of(file_of(cache, Compression::kZstd));
  ASSERT_EQ(info.sections.size(), 4u);
  EXPECT_EQ(info.sections[2].compression, Compression::kZstd);
  EXPECT_LT(info.sections[2].stored_bytes, 100u);
  const Bytes random = file_of(CacheBuilder(0).arrays().build(), Compression::kZstd);
  EXPECT_EQ(info_of(random).sections[1].compression, Compression::kNone);
}

TEST(CacheFile, IsListedWithoutReadingASection) {
  const Bytes file = mixed_file();
  const CacheFileInfo info = info_of(file);
  EXPECT_EQ(info.version, 2u);
  EXPECT_EQ(info.generation, 1u);
  EXPECT_EQ(info.required_features, 0u);
  EXPECT_EQ(info.file_bytes, file.size());
  EXPECT_EQ(info.tokens.size(), 300u);
  EXPECT_THAT(info.writer, testing::StartsWith("tqcache "));
  ASSERT_EQ(info.layers.size(), 4u);
  EXPECT_EQ(info.layers[0].cache_type_id, "tqcache.attention.v1");
  EXPECT_EQ(info.layers[0].k.cache_type_id, "tqcache.dense.v1");
  EXPECT_EQ(info.layers[1].v.cache_type_id, "tqcache.turbo_mse.v1");
  EXPECT_EQ(info.layers[1].v.codec->bits, 3);
  EXPECT_EQ(info.layers[1].v.layout, "lanes.v1");
  EXPECT_EQ(info.layers[1].v.centroids.size(), 8u);
  EXPECT_EQ(info.layers[2].cache_type_id, "tqcache.arrays.v1");
  EXPECT_EQ(info.layers[2].arrays[1].name, "state");
  std::uint64_t bytes = format::kHeaderBytes + info.padding_bytes + info.manifest_bytes;
  for (const SectionInfo& section : info.sections) bytes += section.stored_bytes;
  EXPECT_EQ(bytes, file.size());
}

TEST(CacheFile, ListsWhatWasTakenOut) {
  const auto list = [](std::int64_t n_tokens, cache::Centring center) {
    const Bytes file =
        file_of(CacheBuilder(n_tokens).center(center).turbo({2, 64}, 4, 4).dense({1, 64}).build());
    const CacheFileInfo info = info_of(file);
    EXPECT_EQ(info.layers[1].k.centring, "");
    EXPECT_EQ(info.layers[0].k.mean.size(), info.layers[0].v.mean.size());
    return info.layers[0].k.centring + " " + info.layers[0].v.centring + " " +
           std::to_string(info.layers[0].k.mean.size());
  };
  EXPECT_EQ(list(300, cache::Centring::kPreRope), "pre_rope.v1 post_rope.v1 128");
  EXPECT_EQ(list(300, cache::Centring::kPostRope), "post_rope.v1 post_rope.v1 128");
  EXPECT_EQ(list(300, cache::Centring::kNone), "none none 0");
  EXPECT_EQ(list(200, cache::Centring::kPreRope), "pre_rope.v1 post_rope.v1 0");
}

TEST(CacheFile, HasItsSectionsBlockByBlockAndArraysLast) {
  std::string order;
  for (const SectionInfo& section : info_of(mixed_file()).sections) {
    constexpr std::string_view kSides = "kva";
    order += std::to_string(section.layer);
    order += kSides[static_cast<std::size_t>(section.side)];
    order += std::to_string(section.block) + (section.packed ? "p " : " ");
  }
  EXPECT_EQ(order, "0k0 0v0 1k0p 1v0p 3k0 3v0p 0k1 0v1 1k1 1v1 3k1 3v1 2a0 2a1 ");
}

TEST(CacheFile, HasOneContentNameHoweverItIsCompressedAndWhoeverWroteIt) {
  const cache::Cache cache = CacheBuilder(300).dense({2, 32}).turbo({1, 64}, 4, 4).build();
  const auto name = [](const Bytes& file) { return to_hex(info_of(file).content_name); };
  const std::string stored = name(file_of(cache, Compression::kNone));
  EXPECT_EQ(name(file_of(cache, Compression::kZstd)), stored);
  EXPECT_EQ(name(must(format::write_cache_bytes(cache, {.writer = "another"}))), stored);
}

TEST(CacheFile, HasAnotherContentNameForAnyOtherContent) {
  const auto name = [](const cache::Cache& cache) {
    return to_hex(info_of(file_of(cache)).content_name);
  };
  const auto make = [] { return CacheBuilder(3).dense({1, 4}).arrays().build(); };
  std::vector<std::string> names = {name(make())};
  const auto add = [&](const std::function<void(cache::Cache&)>& change) {
    cache::Cache cache = make();
    change(cache);
    names.push_back(name(cache));
  };
  add([](auto& c) { c.identity.architecture = "llama"; });
  add([](auto& c) { c.identity.adapter_fingerprint = Sha256{}; });
  add([](auto& c) { c.identity.rope.base = 1; });
  add([](auto& c) { c.tokens[2] ^= 1; });
  add([](auto& c) { std::get<0>(c.layers[0]).k = std::get<0>(c.layers[0]).v; });
  add([](auto& c) { std::get<1>(c.layers[1]).arrays[0].name = "x"; });
  add([](auto& c) { std::get<1>(c.layers[1]).arrays[0].shape = {20, 3}; });
  add([](auto& c) { std::get<1>(c.layers[1]).arrays[0].data[0] ^= std::byte{1}; });
  add([](auto& c) { std::swap(c.layers[0], c.layers[1]); });
  std::ranges::sort(names);
  EXPECT_EQ(std::ranges::adjacent_find(names), names.end());
}

TEST(CacheFile, HasAnotherContentNameForAnotherMeanOfTheSameCodes) {
  cache::Cache cache =
      CacheBuilder(256).center(cache::Centring::kPreRope).turbo({1, 64}, 4, 4).build();
  const auto name = [&] { return to_hex(info_of(file_of(cache)).content_name); };
  std::vector<std::string> names = {name()};
  cache::Mean& mean = std::get<cache::TurboSide>(std::get<0>(cache.layers[0]).k).mean;
  mean.values[3] += 1;
  names.push_back(name());
  mean.kind = cache::Centring::kPostRope;
  names.push_back(name());
  mean = {};
  names.push_back(name());
  std::ranges::sort(names);
  EXPECT_EQ(std::ranges::adjacent_find(names), names.end());
}

TEST(CacheFile, IsToldByItsFirstBytes) {
  const auto looks = [](const Bytes& bytes) {
    return format::looks_like_cache_file(*memory_source(bytes));
  };
  Bytes file = small_file();
  EXPECT_TRUE(looks(file));
  EXPECT_TRUE(looks(Bytes(file.begin(), file.begin() + 4)));
  file[70] ^= std::byte{1};
  file[20] ^= std::byte{1};
  EXPECT_TRUE(looks(file));
  EXPECT_FALSE(looks({}));
  EXPECT_FALSE(looks(Bytes(200)));
  const ByteView text = as_bytes("GGUF, a text of more than four bytes");
  EXPECT_FALSE(looks(Bytes(text.begin(), text.end())));
}

}  // namespace
}  // namespace tqcache::test
