// Keys and values of different sizes in a file: what is written is read, and other kinds refuse it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "file_fixture.h"
#include "tqcache/format/type_names.h"
#include "tqcache/quantize.h"
#include "tqcache/reader.h"
#include "tqcache/tqkv.h"

namespace tqcache::test {
namespace unequal_test {

using testing::IsEmpty;

// Latents as DeepSeek V3 has them, shorter values, and windows of both.
cache::Cache latents(std::int64_t n_tokens) {
  return CacheBuilder(n_tokens)
      .unequal({1, 512}, 64, Dtype::kBF16, 16, Dtype::kBF16, 16)
      .unequal({2, 96}, 64, Dtype::kF16, 4, Dtype::kF16, 3)
      .unequal({1, 8}, 32, Dtype::kF32, 16, Dtype::kF16, 2)
      .rotating({{2, 6}, 40, 2, 10}, Dtype::kF16, Dtype::kBF16)
      .turbo_rotating({{1, 64}, 300, 0, 32}, 4, 2)
      .dense({2, 4})
      .build();
}

TEST(UnequalFile, GivesBackWhatWasWritten) {
  for (const std::int64_t n_tokens : {0, 1, 255, 256, 300, 600}) {
    SCOPED_TRACE(n_tokens);
    const cache::Cache cache = latents(n_tokens);
    for (const Compression compression : kCompressions) {
      const Bytes file = file_of(cache, compression);
      const cache::Cache read = must(load(file));
      EXPECT_EQ(difference(read, cache), "");
      EXPECT_EQ(file_of(read, compression), file);
      EXPECT_THAT(damage_of(file), IsEmpty());
    }
  }
}

TEST(UnequalFile, NamesTheKindsThatOlderReadersRefuse) {
  const CacheFileInfo info = info_of(file_of(latents(300)));
  std::vector<std::string_view> types;
  for (const cache::LayerDesc& layer : info.layers) types.push_back(format::type_name(layer));
  EXPECT_EQ(types, (std::vector<std::string_view>{"tqcache.attention.v2", "tqcache.attention.v2",
                                                  "tqcache.attention.v2", "tqcache.rotating.v3",
                                                  "tqcache.rotating.v4", "tqcache.attention.v1"}));
  EXPECT_EQ(cache::attention_of(info.layers[0])->value_shape(), (cache::HeadShape{1, 64}));
}

TEST(UnequalFile, IsOfNoOtherKind) {
  const Bytes latent =
      file_of(CacheBuilder(3).unequal({1, 8}, 4, Dtype::kF16, 16, Dtype::kF16, 16).build());
  expect_refused(change_text(latent, "tqcache.attention.v2", "tqcache.attention.v1"),
                 ErrorCode::kCorrupt,
                 "layer 0: value_dim 4 in a layer of type \"tqcache.attention.v1\"");
  expect_refused(change_text(file_of(CacheBuilder(3).dense({1, 8}).build()), "tqcache.attention.v1",
                             "tqcache.attention.v2"),
                 ErrorCode::kCorrupt,
                 "layer 0: value_dim 0 in a layer of type \"tqcache.attention.v2\"");
  const Bytes window = file_of(CacheBuilder(9).rotating({{1, 8}, 4, 0, 6}).build());
  expect_refused(change_text(window, "tqcache.rotating.v3", "tqcache.rotating.v1"),
                 ErrorCode::kCorrupt,
                 "layer 0: value_dim 6 in a layer of type \"tqcache.rotating.v1\"");
}

// There is one way to write a layer whose values have the size of its keys.
TEST(UnequalFile, DoesNotSayTheSizeOfTheKeysTwice) {
  cache::Cache cache = CacheBuilder(3).dense({1, 8}).build();
  std::get<cache::AttentionLayer>(cache.layers[0]).value_dim = 8;
  EXPECT_EQ(cache::validate(cache).error().code, ErrorCode::kCorrupt);
  EXPECT_EQ(cache::value_dim_of(8, 8), 0);
  EXPECT_EQ(cache::value_dim_of(8, 4), 4);
}

TEST(UnequalFile, EachTensorHasItsOwnLimits) {
  const auto error = [](cache::HeadShape shape, std::int64_t value_dim) {
    return cache::validate_shapes(shape, value_dim).error().code;
  };
  EXPECT_EQ(error({1, 8}, -1), ErrorCode::kCorrupt);
  EXPECT_EQ(error({1, 8}, cache::kMaxHeadDim + 1), ErrorCode::kTooLarge);
  EXPECT_TRUE(cache::validate_shapes({1, 8}, cache::kMaxHeadDim).ok());
}

// What is quantized is quantized by its own size: a rotated part of 16 stays dense.
// A layer of keys alone, as mlx-lm 0.31 keeps those of DeepSeek V3.2's indexer, has no values to
// give back: 0 would mean values as wide as the keys.
TEST(UnequalFile, ValuesOfSize0AreRefused) {
  EXPECT_EQ(cache::value_dim_of(64, 64), 0);
  EXPECT_EQ(cache::value_dim_of(64, 32), 32);
  cache::Cache cache =
      CacheBuilder(300).unequal({1, 64}, 32, Dtype::kF16, 16, Dtype::kF16, 16).build();
  EXPECT_TRUE(cache::validate(cache));
  std::get<cache::AttentionLayer>(cache.layers[0]).value_dim = cache::value_dim_of(64, 0);
  EXPECT_FALSE(cache::validate(cache));
}

TEST(UnequalFile, QuantizesKeysAndValuesByTheirOwnSizes) {
  const cache::Cache cache = CacheBuilder(600)
                                 .unequal({1, 512}, 64, Dtype::kBF16, 16, Dtype::kBF16, 16)
                                 .unequal({1, 64}, 16, Dtype::kBF16, 16, Dtype::kBF16, 16)
                                 .build();
  cache::ConvertOptions options = must(cache::preset("turbo4"));
  options.values.keep_small_heads = true;
  const auto packed = must(cache::quantize(cache::reader_of(cache), options));
  const auto& layers = packed->description().layers;
  EXPECT_TRUE(cache::attention_of(layers[0])->k.quant);
  EXPECT_TRUE(cache::attention_of(layers[0])->v.quant);
  EXPECT_TRUE(cache::attention_of(layers[1])->k.quant);
  EXPECT_FALSE(cache::attention_of(layers[1])->v.quant);
  EXPECT_EQ(std::ssize(cache::attention_of(layers[0])->v.quant->mean), 64);
  const cache::Cache loaded = must(cache::load(*must(cache::dequantize(packed))));
  const auto difference = must(cache::diff(cache, loaded, 1));
  ASSERT_EQ(difference.layers.size(), 2u);
  EXPECT_LT(difference.layers[0].v.relative_mse, 0.02);
  EXPECT_LT(difference.layers[0].k.relative_mse, 0.02);
  EXPECT_EQ(difference.layers[1].v.relative_mse, 0);
}

TEST(UnequalFile, IsCutAndGrows) {
  const cache::Cache cache =
      CacheBuilder(600).unequal({2, 96}, 64, Dtype::kF16, 4, Dtype::kF16, 3).build();
  const auto whole = cache::reader_of(cache);
  for (const std::int64_t n_tokens : {1, 256, 300, 599}) {
    const cache::Cache first = must(cache::load(*must(cache::first_tokens(whole, n_tokens))));
    EXPECT_EQ(difference(first, must(cache::truncate(cache, n_tokens))), "");
  }
}

}  // namespace unequal_test
}  // namespace tqcache::test
