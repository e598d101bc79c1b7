#include <gtest/gtest.h>

#include "interop/mlx_lm_builder.h"
#include "support/matchers.h"
#include "tqcache/codec/block_layout.h"

namespace tqcache::interop {
namespace mlx_lm_test {

using cache::HeadShape;
using cache::TensorKind;
using test::add_kv;
using test::head_values;
using test::joined;
using test::MlxBuilder;
using test::must_import;
using test::positions;
using test::section_values;

constexpr HeadShape kShape{2, 64};
constexpr MlxLayout kAges[] = {MlxLayout::kMetaState, MlxLayout::kScalars};

void expect_refused(const MlxBuilder& file, ErrorCode code, const std::string& message,
                    const MlxLmImport& options = {}) {
  EXPECT_THAT(test::import_mlx(file.build(), options), test::FailsWith(code, message));
}

// Keys and values of an attention layer of fewer than 257 tokens.
void expect_attention(const ForeignCache& cache, std::int64_t layer, HeadShape shape,
                      const test::Positions& list) {
  EXPECT_EQ(section_values(cache, layer, cache::TensorKind::kKeys), head_values(shape, list, 0));
  EXPECT_EQ(section_values(cache, layer, cache::TensorKind::kValues), head_values(shape, list, 1));
}

void expect_window(const ForeignCache& cache, std::int64_t layer, const test::TestWindow& window,
                   const test::Positions& list) {
  const auto& found =
      std::get<cache::WindowDesc>(cache.layers[static_cast<std::size_t>(layer)].description);
  EXPECT_EQ(found.window, window.window());
  EXPECT_EQ(found.attention.shape, window.shape);
  EXPECT_EQ(section_values(cache, layer, cache::TensorKind::kArray, 0),
            head_values(window.shape, list, 0));
  EXPECT_EQ(section_values(cache, layer, cache::TensorKind::kArray, 1),
            head_values(window.shape, list, 1));
}

// --- full attention

TEST(MlxImport, ReadsKvCaches) {
  for (const MlxLayout age : kAges) {
    MlxBuilder file(age);
    add_kv(add_kv(file, 7), 7, {1, 32});
    const ForeignCache cache = must_import(file);
    EXPECT_EQ(cache.n_tokens, 7);
    EXPECT_FALSE(cache.tokens);
    ASSERT_EQ(cache.layers.size(), 2u);
    expect_attention(cache, 0, kShape, positions(7));
    expect_attention(cache, 1, {1, 32}, positions(7));
  }
}

TEST(MlxImport, ReadsTokenBlockAfterTokenBlock) {
  MlxBuilder file(MlxLayout::kMetaState);
  const ForeignCache cache = must_import(add_kv(file, 300));
  EXPECT_EQ(section_values(cache, 0, cache::TensorKind::kKeys, 0),
            head_values(kShape, positions(256)));
  EXPECT_EQ(section_values(cache, 0, cache::TensorKind::kKeys, 1),
            head_values(kShape, positions(256, 300)));
}

TEST(MlxImport, LeavesOutRoomToSpare) {
  MlxBuilder file(MlxLayout::kScalars);
  file.layer("KVCache").pair(kShape, positions(256)).number("2", 200);
  expect_attention(must_import(file), 0, kShape, positions(200));
}

TEST(MlxImport, KeepsEveryDtype) {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kF16, Dtype::kBF16}) {
    MlxBuilder file(MlxLayout::kMetaState);
    file.layer("KVCache").pair(kShape, positions(5), dtype).no_info();
    const ForeignCache cache = must_import(file);
    EXPECT_EQ(std::get<cache::AttentionDesc>(cache.layers[0].description).k.dtype, dtype);
    expect_attention(cache, 0, kShape, positions(5));
  }
}

TEST(MlxImport, ReadsConcatenateKvCaches) {
  for (const MlxLayout age : kAges) {
    MlxBuilder file(age);
    file.layer("ConcatenateKVCache").pair(kShape, positions(9));
    expect_attention(must_import(file), 0, kShape, positions(9));
  }
}

TEST(MlxImport, ReadsACacheOfNoTokens) {
  MlxBuilder file(MlxLayout::kScalars);
  EXPECT_EQ(must_import(add_kv(file, 0)).n_tokens, 0);
}

TEST(MlxImport, RefusesLayersThatDisagree) {
  MlxBuilder file(MlxLayout::kScalars);
  expect_refused(add_kv(add_kv(file, 7), 8), ErrorCode::kCorrupt,
                 "layer 1: 8 tokens, but layer 0 has 7");
}

// DeepSeek V3, Kimi and GLM: the latent of a token, and its rotated part.
TEST(MlxImport, ReadsLatents) {
  for (const MlxLayout layout : {MlxLayout::kMetaState, MlxLayout::kScalars}) {
    MlxBuilder file(layout);
    file.layer("KVCache")
        .rows("0", {1, 512}, positions(300), 0)
        .rows("1", {1, 64}, positions(300), 1);
    file.has_scalars() ? file.number("2", 300) : file.no_info();
    file.layer("RotatingKVCache")
        .rows("0", {2, 6}, positions(290, 300))
        .rows("1", {2, 4}, positions(290, 300), 1);
    if (file.has_scalars()) {
      file.number("2", 300).number("3", 0).number("4", 10).number("5", 10);
    } else {
      file.infos({0, 10, 300, 10});
    }
    const interop::ForeignCache cache = must_import(file);
    const cache::CacheDesc description = test::must(interop::reader_of(cache))->description();
    const cache::AttentionDesc& latent = std::get<cache::AttentionDesc>(description.layers[0]);
    EXPECT_EQ(latent.shape, (cache::HeadShape{1, 512}));
    EXPECT_EQ(latent.value_shape(), (cache::HeadShape{1, 64}));
    using enum cache::TensorKind;
    EXPECT_EQ(section_values(cache, 0, kKeys, 1), head_values({1, 512}, positions(256, 300), 0));
    EXPECT_EQ(section_values(cache, 0, kValues, 1), head_values({1, 64}, positions(256, 300), 1));
    EXPECT_EQ(section_values(cache, 1, kArray, 0), head_values({2, 6}, positions(290, 300), 0));
    EXPECT_EQ(section_values(cache, 1, kArray, 1), head_values({2, 4}, positions(290, 300), 1));
  }
}

TEST(MlxImport, RefusesKeysAndValuesThatAreNoPair) {
  MlxBuilder heads(MlxLayout::kMetaState);
  heads.layer("KVCache").rows("0", {1, 64}, positions(3)).rows("1", {2, 64}, positions(3));
  expect_refused(heads, ErrorCode::kCorrupt, "layer 0: keys 1 x 3 x 64, but values 2 x 3 x 64");
  MlxBuilder uneven(MlxLayout::kMetaState);
  uneven.layer("KVCache").rows("0", kShape, positions(3)).rows("1", kShape, positions(4));
  expect_refused(uneven, ErrorCode::kCorrupt, "layer 0: keys 2 x 3 x 64, but values 2 x 4 x 64");
}

TEST(MlxImport, RefusesFewerRowsThanTokens) {
  MlxBuilder file(MlxLayout::kScalars);
  file.layer("KVCache").pair(kShape, positions(7)).number("2", 8);
  expect_refused(file, ErrorCode::kCorrupt, "layer 0: keys 2 x 7 x 64 for 8 tokens from row 0 on");
}

TEST(MlxImport, RefusesCachesThatNothingIsIn) {
  MlxBuilder file(MlxLayout::kScalars);
  file.layer("KVCache").none("0").none("1").number("2", 0);
  expect_refused(file, ErrorCode::kUnsupported, "layer 0: an empty cache");
}

TEST(MlxImport, RefusesTensorsOfAnotherForm) {
  MlxBuilder flat(MlxLayout::kMetaState);
  flat.layer("KVCache").tensor("0", "F16", {3, 4}, Bytes(24));
  expect_refused(flat, ErrorCode::kCorrupt, "layer 0: tensor \"0.0\": 2 dimensions");
  MlxBuilder bytes(MlxLayout::kMetaState);
  bytes.layer("KVCache")
      .tensor("0", "U8", {1, 1, 3, 4}, Bytes(12))
      .tensor("1", "U8", {1, 1, 3, 4}, Bytes(12));
  expect_refused(bytes, ErrorCode::kUnsupported, "layer 0: values of dtype \"U8\"");
  MlxBuilder none(MlxLayout::kMetaState);
  none.layer("KVCache").rows("0", kShape, positions(3));
  expect_refused(none, ErrorCode::kCorrupt, "layer 0: no tensor \"0.1\"");
}

TEST(MlxImport, LimitsSizes) {
  MlxBuilder heads(MlxLayout::kMetaState);
  heads.layer("KVCache").pair({1025, 1}, positions(1));
  expect_refused(heads, ErrorCode::kTooLarge, "layer 0: 1025 kv heads");
  MlxBuilder wide(MlxLayout::kMetaState);
  wide.layer("KVCache").pair({1, 1025}, positions(1));
  expect_refused(wide, ErrorCode::kTooLarge, "layer 0: head_dim 1025");
  MlxBuilder empty(MlxLayout::kMetaState);
  empty.layer("KVCache").tensor("0", "F16", {1, 2, 1 << 25, 0}, {});
  expect_refused(empty, ErrorCode::kTooLarge, "layer 0: tensor \"0.0\": a dimension of 33554432");
  MlxBuilder long_ago(MlxLayout::kScalars);
  long_ago.layer("KVCache").pair(kShape, positions(1)).number("2", 16 * 1024 * 1024 + 1);
  expect_refused(long_ago, ErrorCode::kTooLarge, "layer 0: tensor \"0.2\": a number of 16777217");
}

// --- affine groups

// Codes 0, 1, 2, ... of one head vector after another, scale 2 and bias -1.
MlxBuilder& add_groups(MlxBuilder& file, const std::string& slot, int bits, std::int64_t group_size,
                       HeadShape shape, std::uint64_t n_rows) {
  const std::uint64_t n_heads = std::uint64_t(shape.n_kv_heads),
                      dim = std::uint64_t(shape.head_dim);
  std::vector<std::uint8_t> codes(n_heads * n_rows * dim);
  for (std::size_t i = 0; i < codes.size(); ++i)
    codes[i] = std::uint8_t(i % (std::size_t{1} << bits));
  Bytes packed(codec::packed_size(codes.size(), bits));
  codec::pack_codes(codes, bits, packed);
  const std::uint64_t n_groups = dim / std::uint64_t(group_size);
  const std::size_t count = n_heads * n_rows * n_groups;
  const test::Shape groups{1, n_heads, n_rows, n_groups};
  file.tensor(slot + ".0", "U32", {1, n_heads, n_rows, dim * std::uint64_t(bits) / 32}, packed);
  file.tensor(slot + ".1", "F16", groups, test::stored(Dtype::kF16, std::vector(count, 2.0f)));
  return file.tensor(slot + ".2", "F16", groups,
                     test::stored(Dtype::kF16, std::vector(count, -1.0f)));
}

MlxBuilder quantized(MlxLayout age, int bits, std::int64_t group_size, std::int32_t n_tokens,
                     std::uint64_t n_rows) {
  MlxBuilder file(age);
  add_groups(file.layer("QuantizedKVCache"), "0", bits, group_size, {2, 128}, n_rows);
  add_groups(file, "1", bits, group_size, {2, 128}, n_rows);
  if (age == MlxLayout::kMetaState) return file.infos({n_tokens, group_size, bits});
  return file.number("2", n_tokens).number("3", std::int32_t(group_size)).number("4", bits);
}

TEST(MlxImport, DecodesAffineGroups) {
  for (const MlxLayout age : kAges) {
    for (const int bits : {2, 3, 4, 5, 6, 8}) {
      const ForeignCache cache = must_import(quantized(age, bits, 64, 5, 8));
      const std::vector<float> keys = section_values(cache, 0, cache::TensorKind::kKeys);
      ASSERT_EQ(keys.size(), 2u * 5 * 128);
      EXPECT_EQ(std::get<cache::AttentionDesc>(cache.layers[0].description).k.dtype, Dtype::kF32);
      for (std::size_t i = 0; i < keys.size(); ++i) {
        const std::size_t row = i / 128 / 5 * 8 + i / 128 % 5;  // five of eight rows are taken
        const std::size_t code = (row * 128 + i % 128) % (std::size_t{1} << bits);
        ASSERT_EQ(keys[i], 2 * static_cast<float>(code) - 1) << bits << " bits " << i;
      }
      EXPECT_EQ(section_values(cache, 0, cache::TensorKind::kValues), keys);
      EXPECT_EQ(cache.dropped_fields.back(),
                "groups of " + std::to_string(bits) + " bits are decoded to f32");
    }
  }
}

TEST(MlxImport, RefusesGroupsOfAnotherForm) {
  MlxBuilder bits = quantized(MlxLayout::kMetaState, 4, 64, 5, 5);
  expect_refused(bits.info("2", "8"), ErrorCode::kCorrupt,
                 "layer 0: codes 2 x 5 x 16, scales 2 x 5 x 2 and biases 2 x 5 x 2 of 8 bits in "
                 "groups of 64");
  expect_refused(bits.info("2", "7"), ErrorCode::kUnsupported, "layer 0: groups of 7 bits");
  expect_refused(bits.info("1", "60"), ErrorCode::kUnsupported, "layer 0: groups of 7 bits");
  expect_refused(bits.info("2", "4"), ErrorCode::kUnsupported, "layer 0: groups of 60 components");
  expect_refused(bits.info("1", "many"), ErrorCode::kCorrupt,
                 "layer 0: metadata: number 1 is \"many\"");
  expect_refused(quantized(MlxLayout::kMetaState, 4, 64, 6, 5), ErrorCode::kCorrupt,
                 "layer 0: scales 2 x 5 x 2 and 2 x 5 x 2 for 6 tokens");
  MlxBuilder extra = quantized(MlxLayout::kMetaState, 4, 64, 5, 5);
  expect_refused(
      extra.info("3", "1").info("4", "1"), ErrorCode::kUnsupported,
      "layer 0: 5 numbers in the metadata of a QuantizedKVCache: as many as no version of "
      "mlx-lm or mlx-swift-lm that is known writes");
  MlxBuilder uneven(MlxLayout::kMetaState);
  add_groups(uneven.layer("QuantizedKVCache"), "0", 4, 64, {2, 128}, 5);
  add_groups(uneven, "1", 4, 64, {1, 128}, 5).infos({5, 64, 4});
  expect_refused(uneven, ErrorCode::kCorrupt, "layer 0: keys 2 x 5 x 2, but values 1 x 5 x 2");
  MlxBuilder latent(MlxLayout::kMetaState);
  add_groups(latent.layer("QuantizedKVCache"), "0", 4, 64, {1, 128}, 5);
  add_groups(latent, "1", 4, 64, {1, 64}, 5).infos({5, 64, 4});
  EXPECT_EQ(std::get<cache::AttentionDesc>(must_import(latent).layers[0].description).value_dim,
            64);
}

// --- windows

MlxBuilder rotating(MlxLayout age, const test::Positions& rows, std::int32_t keep,
                    std::int32_t max_size, std::int32_t offset, std::int32_t next) {
  MlxBuilder file(age);
  file.layer("RotatingKVCache").pair(kShape, rows);
  if (age == MlxLayout::kMetaState) return file.infos({keep, max_size, offset, next});
  return file.number("2", offset).number("3", keep).number("4", max_size).number("5", next);
}

TEST(MlxImport, PutsRingsIntoTheOrderOfPositions) {
  for (const MlxLayout age : kAges) {
    // Positions 0 to 3 stay; 13 to 15 are overwritten by 25, 26 and 27.
    const auto ring = joined(joined(positions(4), positions(25, 28)), positions(16, 25));
    expect_window(must_import(rotating(age, ring, 4, 16, 28, 7)), 0, {kShape, 16, 4},
                  joined(positions(4), positions(16, 28)));
    expect_window(must_import(rotating(age, positions(100), 4, 16, 100, 100)), 0, {kShape, 16, 4},
                  joined(positions(4), positions(88, 100)));
    expect_window(must_import(rotating(age, positions(10), 4, 16, 10, 10)), 0, {kShape, 16, 4},
                  positions(10));
  }
  expect_window(must_import(rotating(MlxLayout::kScalars, positions(16), 0, 512, 10, 10)), 0,
                {kShape, 512, 0}, positions(10));
}

TEST(MlxImport, RefusesRingsThatCannotBe) {
  expect_refused(rotating(MlxLayout::kMetaState, positions(16), 16, 16, 20, 16),
                 ErrorCode::kCorrupt, "layer 0: 16 first tokens kept in a window of 16");
  expect_refused(rotating(MlxLayout::kScalars, positions(16), 4, 16, 20, 2), ErrorCode::kCorrupt,
                 "layer 0: ring: _idx 2 among the 4 rows that stay");
}

MlxBuilder chunked(const test::Positions& rows, std::int32_t offset, std::int32_t start) {
  MlxBuilder file(MlxLayout::kScalars);
  file.layer("ChunkedKVCache").pair(kShape, rows);
  return file.number("2", offset).number("3", 8).number("4", start);
}

TEST(MlxImport, ReadsTheFirstChunkAsFullAttention) {
  const ForeignCache cache = must_import(chunked(positions(16), 6, 0));
  expect_attention(cache, 0, kShape, positions(6));
  EXPECT_EQ(cache.identity.source_layout, "ChunkedKVCache[8]");
  MlxBuilder old(MlxLayout::kMetaState);
  old.layer("ChunkedKVCache").pair(kShape, positions(6)).infos({8, 0});
  expect_attention(must_import(old), 0, kShape, positions(6));
}

TEST(MlxImport, ReadsLaterChunksAsAWindow) {
  // Tokens 12 to 22 and room to spare; those before 15 go with the next step.
  expect_window(must_import(chunked(positions(12, 28), 23, 12)), 0, {kShape, 8, 0},
                positions(15, 23));
  expect_refused(chunked(positions(12, 28), 18, 12), ErrorCode::kCorrupt,
                 "layer 0: keys 2 x 16 x 64 for tokens 12 to 18 in chunks of 8");
  expect_refused(chunked(positions(12, 20), 23, 12), ErrorCode::kCorrupt,
                 "layer 0: keys 2 x 8 x 64 for tokens 12 to 23 in chunks of 8");
}

TEST(MlxImport, TakesTheTokensOfLaterChunksFromOtherLayers) {
  MlxBuilder file(MlxLayout::kMetaState);
  file.layer("ChunkedKVCache").pair(kShape, positions(12, 28)).infos({8, 12});
  expect_refused(file, ErrorCode::kUnsupported, "no layer says how many tokens it has seen");
  add_kv(file, 23);
  expect_window(must_import(file), 0, {kShape, 8, 0}, positions(15, 23));
}

// --- arrays

const std::vector<float> kConv = {1, 2, 3, 4, 5, 6};
const std::vector<float> kState = {7, 8, 9, 10};

MlxBuilder& add_slots(MlxBuilder& file, const std::string& prefix) {
  return file.tensor(prefix + "0", "BF16", {1, 3, 2}, test::stored(Dtype::kBF16, kConv))
      .tensor(prefix + "1", "F32", {1, 2, 2}, test::stored(Dtype::kF32, kState));
}

void expect_slots(const ForeignCache& cache, std::int64_t layer) {
  const auto& arrays =
      std::get<cache::StateDesc>(cache.layers[static_cast<std::size_t>(layer)].description);
  ASSERT_EQ(arrays.arrays.size(), 2u);
  EXPECT_EQ(arrays.arrays[0].name, "0");
  EXPECT_EQ(arrays.arrays[1].name, "1");
  EXPECT_EQ(arrays.arrays[0].dtype, Dtype::kBF16);
  EXPECT_EQ(arrays.arrays[0].shape, (test::Shape{1, 3, 2}));
  EXPECT_EQ(section_values(cache, layer, cache::TensorKind::kArray, 0), kConv);
  EXPECT_EQ(section_values(cache, layer, cache::TensorKind::kArray, 1), kState);
}

TEST(MlxImport, KeepsArraysOfEveryAge) {
  for (const char* name : {"ArraysCache", "MambaCache"}) {
    MlxBuilder old(MlxLayout::kMetaState);
    add_slots(old.layer(name), "").no_info();
    expect_slots(must_import(add_kv(old, 7)), 0);
  }
  MlxBuilder since(MlxLayout::kScalars);
  add_slots(since.layer("ArraysCache"), "0.").none("1").none("2");
  expect_slots(must_import(add_kv(since, 7)), 0);
  // Between 0.31.3 and 0.32.0: the new state with the old metadata.
  MlxBuilder between(MlxLayout::kMetaState);
  add_slots(between.layer("ArraysCache"), "0.").tensor("1", "F32", {0}, {}).no_info();
  expect_slots(must_import(add_kv(between, 7)), 0);
}

TEST(MlxImport, AsksForTheTokensOfArraysAlone) {
  MlxBuilder file(MlxLayout::kScalars);
  add_slots(file.layer("ArraysCache"), "0.").none("1").none("2");
  expect_refused(file, ErrorCode::kUnsupported, "no layer says how many tokens it has seen");
  EXPECT_EQ(must_import(file, {.n_tokens = 9}).n_tokens, 9);
  add_kv(file, 7);
  EXPECT_EQ(must_import(file, {.n_tokens = 7}).n_tokens, 7);
  expect_refused(file, ErrorCode::kInvalidArgument, "9 tokens of a cache of 7", {.n_tokens = 9});
}

TEST(MlxImport, RefusesArraysOfAnUnfinishedBatch) {
  MlxBuilder padded(MlxLayout::kScalars);
  add_slots(padded.layer("ArraysCache"), "0.").integers("1", {2}).none("2");
  expect_refused(add_kv(padded, 7), ErrorCode::kUnsupported,
                 "layer 0: an ArraysCache with left_padding");
  MlxBuilder lengths(MlxLayout::kScalars);
  add_slots(lengths.layer("ArraysCache"), "0.").none("1").integers("2", {2});
  expect_refused(add_kv(lengths, 7), ErrorCode::kUnsupported,
                 "layer 0: an ArraysCache with lengths");
}

TEST(MlxImport, RefusesSlotsThatAreNotThere) {
  MlxBuilder none(MlxLayout::kScalars);
  none.layer("ArraysCache").none("0.0").none("1").none("2");
  expect_refused(add_kv(none, 7), ErrorCode::kUnsupported,
                 "layer 0: an ArraysCache with empty slots alone: no token was computed");
  MlxBuilder half(MlxLayout::kScalars);
  half.layer("ArraysCache").none("0.0").tensor("0.1", "F32", {1, 1}, Bytes(4)).none("1").none("2");
  EXPECT_EQ(
      std::get<cache::StateDesc>(must_import(add_kv(half, 7)).layers[0].description).arrays[0].name,
      "1");
  MlxBuilder words(MlxLayout::kMetaState);
  words.layer("ArraysCache").tensor("0", "I32", {1, 2}, Bytes(8));
  expect_refused(add_kv(words, 7), ErrorCode::kUnsupported,
                 "layer 0: tensor \"0.0\": values of dtype \"I32\"");
  MlxBuilder empty(MlxLayout::kMetaState);
  empty.layer("ArraysCache").no_info();
  expect_refused(add_kv(empty, 7), ErrorCode::kCorrupt, "layer 0: no tensor of its state");
}

// --- lists of caches

TEST(MlxImport, TakesCacheListsApart) {
  MlxBuilder old(MlxLayout::kMetaState);
  add_slots(old.layer("CacheList"), "0.");
  old.rows("1.0", kShape, positions(7)).rows("1.1", kShape, positions(7), 1);
  old.info("0.0", "ArraysCache").info("0.1", "KVCache").info("1.0", "").info("1.1", "");
  MlxBuilder since(MlxLayout::kScalars);
  add_slots(since.layer("CacheList"), "0.0.0.").none("0.0.1").none("0.0.2");
  since.text("0.1", "ArraysCache").rows("1.0.0", kShape, positions(9));
  since.rows("1.0.1", kShape, positions(9), 1).number("1.0.2", 7).text("1.1", "KVCache");
  for (const MlxBuilder& file : {old, since}) {
    const ForeignCache cache = must_import(file);
    ASSERT_EQ(cache.layers.size(), 2u);
    expect_slots(cache, 0);
    expect_attention(cache, 1, kShape, positions(7));
  }
}

TEST(MlxImport, ReadsNumbersOfCachesInLists) {
  MlxBuilder file(MlxLayout::kMetaState);
  file.layer("CacheList").rows("0.0", kShape, positions(7)).rows("0.1", kShape, positions(7), 1);
  file.info("0.0", "RotatingKVCache").info("1.0.0", "2").info("1.0.1", "4");
  file.info("1.0.2", "7").info("1.0.3", "7");
  expect_window(must_import(file), 0, {kShape, 4, 2}, {0, 1, 5, 6});
}

TEST(MlxImport, ReadsTwoPairsOfACacheListBefore031) {
  MlxBuilder file(MlxLayout::kMetaState);
  file.layer("CacheList").pair(kShape, positions(7)).no_info();
  file.rows("2", {1, 32}, positions(7)).rows("3", {1, 32}, positions(7), 1);
  const ForeignCache cache = must_import(file);
  ASSERT_EQ(cache.layers.size(), 2u);
  expect_attention(cache, 0, kShape, positions(7));
  expect_attention(cache, 1, {1, 32}, positions(7));
}

TEST(MlxImport, RefusesListsOfWhichNobodySaysWhatIsInThem) {
  MlxBuilder file(MlxLayout::kMetaState);
  file.layer("CacheList").pair(kShape, positions(1)).no_info();
  file.rows("2", kShape, positions(7)).rows("3", kShape, positions(7));
  expect_refused(file, ErrorCode::kUnsupported,
                 "layer 0: a CacheList as mlx-lm saved it before 0.31: the file does not say what "
                 "is in it");
  MlxBuilder nested(MlxLayout::kScalars);
  nested.layer("CacheList").text("0.1", "CacheList");
  expect_refused(nested, ErrorCode::kUnsupported, "layer 0: a CacheList within a CacheList");
  MlxBuilder strange(MlxLayout::kScalars);
  strange.layer("CacheList").text("0.1", "Foo").integers("1.1", {7});
  expect_refused(strange, ErrorCode::kCorrupt, "layer 0: tensor \"0.1.1\": not a text");
}

// --- batches

// Rows of 1, 3 and 0 tokens of padding before 6, 4 and 7 tokens.
MlxBuilder batch(MlxLayout age) {
  MlxBuilder file(age);
  file.layer("BatchKVCache");
  const std::uint64_t n_rows = file.has_scalars() ? 8 : 7;
  for (int tensor = 0; tensor < 2; ++tensor) {
    Bytes bytes;
    for (const std::int64_t padding : {1, 3, 0}) {
      auto list = joined(test::Positions(std::size_t(padding), 99), positions(7 - padding));
      list.resize(n_rows, 98);
      const Bytes row = test::stored(Dtype::kF16, head_values(kShape, list, tensor));
      bytes.insert(bytes.end(), row.begin(), row.end());
    }
    file.tensor(std::to_string(tensor), "F16", {3, 2, n_rows, 64}, bytes);
  }
  file.integers("2", {6, 4, 7}).integers("3", {1, 3, 0});
  return file.has_scalars() ? file.number("4", 7) : file.no_info();
}

TEST(MlxImport, TakesOneRowOfABatch) {
  for (const MlxLayout age : kAges) {
    const std::int64_t lengths[] = {6, 4, 7};
    for (std::int64_t row = 0; row < 3; ++row) {
      const ForeignCache cache = must_import(batch(age), {.row = row});
      EXPECT_EQ(cache.n_tokens, lengths[row]);
      expect_attention(cache, 0, kShape, positions(lengths[row]));
      EXPECT_EQ(cache.dropped_fields,
                std::vector<std::string>{"all rows but row " + std::to_string(row) +
                                         " of a batch of 3 are left out"});
    }
  }
}

TEST(MlxImport, RefusesRowsThatABatchDoesNotHave) {
  for (const std::int64_t row : {-1, 3}) {
    expect_refused(batch(MlxLayout::kScalars), ErrorCode::kInvalidArgument,
                   "layer 0: row " + std::to_string(row) + " of a batch of 3", {.row = row});
  }
  MlxBuilder one(MlxLayout::kScalars);
  expect_refused(add_kv(one, 7), ErrorCode::kInvalidArgument,
                 "layer 0: tensor \"0.0\": row 1 of a batch of 1", {.row = 1});
}

TEST(MlxImport, TakesARowOfArraysToo) {
  MlxBuilder file(MlxLayout::kScalars);
  file.layer("ArraysCache").tensor("0.0", "F32", {2, 2}, test::stored(Dtype::kF32, kState));
  const ForeignCache cache = must_import(file, {.row = 1, .n_tokens = 5});
  EXPECT_EQ(section_values(cache, 0, cache::TensorKind::kArray, 0), (std::vector<float>{9, 10}));
}

TEST(MlxImport, RefusesBatchesOfDifferentSizes) {
  MlxBuilder layers(MlxLayout::kMetaState);
  layers.layer("ArraysCache").tensor("0", "F32", {2, 2}, Bytes(16)).no_info();
  expect_refused(add_kv(layers, 7), ErrorCode::kCorrupt,
                 "layer 1: a batch of 1, but layer 0 has one of 2");
  MlxBuilder tensors(MlxLayout::kMetaState);
  tensors.layer("KVCache")
      .tensor("0", "F16", {1, 1, 3, 4}, Bytes(24))
      .tensor("1", "F16", {2, 1, 3, 4}, Bytes(48));
  expect_refused(tensors, ErrorCode::kCorrupt, "layer 0: keys of a batch of 1, but values of 2");
  MlxBuilder slots(MlxLayout::kMetaState);
  slots.layer("ArraysCache").tensor("0", "F32", {1, 2}, Bytes(8)).tensor("1", "F32", {2}, Bytes(8));
  expect_refused(add_kv(slots, 7), ErrorCode::kCorrupt, "layer 0: slot 1: not of a batch of 1");
  MlxBuilder scalar(MlxLayout::kMetaState);
  scalar.layer("ArraysCache").tensor("0", "F32", {}, Bytes(4));
  expect_refused(add_kv(scalar, 7), ErrorCode::kCorrupt, "layer 0: slot 0: not of a batch of 1");
}

TEST(MlxImport, RefusesPaddingThatDoesNotFit) {
  MlxBuilder file(MlxLayout::kMetaState);
  file.layer("BatchKVCache").pair(kShape, positions(7)).integers("2", {7}).integers("3", {1});
  expect_refused(file, ErrorCode::kCorrupt, "layer 0: rows 1 to 7 for 7 tokens");
  MlxBuilder few(MlxLayout::kMetaState);
  few.layer("BatchKVCache").pair(kShape, positions(7)).integers("2", {7}).integers("3", {});
  expect_refused(few, ErrorCode::kCorrupt, "layer 0: left_padding of 0 rows");
  MlxBuilder negative(MlxLayout::kMetaState);
  negative.layer("BatchKVCache").pair(kShape, positions(7)).integers("2", {-7});
  expect_refused(negative, ErrorCode::kCorrupt, "layer 0: an offset of -7");
}

MlxBuilder batch_rotating(MlxLayout age, const std::string& rotated) {
  MlxBuilder file(age);
  // Row 2 is the next to be overwritten; of 20 tokens 14 to 19 are there.
  file.layer("BatchRotatingKVCache").pair(kShape, joined({18, 19}, positions(14, 18)));
  file.integers("2", {20}).integers("3", {-4});
  if (age == MlxLayout::kScalars) {
    return file.number("4", 6)
        .number("5", 20)
        .number("6", 2)
        .scalar("7", "scalar")
        .tensor("7", "BOOL", {}, Bytes(1, std::byte{1}));
  }
  return file.infos({6, 20, 2}).info("3", rotated);
}

TEST(MlxImport, ReadsRingsOfBatches) {
  for (const MlxLayout age : kAges) {
    expect_window(must_import(batch_rotating(age, "True")), 0, {kShape, 6, 0}, positions(14, 20));
  }
  expect_refused(batch_rotating(MlxLayout::kMetaState, "False"), ErrorCode::kCorrupt,
                 "layer 0: ring: 2 tokens, expected 6");
  expect_refused(batch_rotating(MlxLayout::kMetaState, "1"), ErrorCode::kCorrupt,
                 "layer 0: metadata: rotated is \"1\"");
}

// --- 2024

MlxBuilder named_pairs(const test::Positions& list) {
  MlxBuilder file(MlxLayout::kNamedPairs);
  const std::uint64_t n = list.size();
  for (const char* layer : {"0", "1"}) {
    for (int tensor = 0; tensor < 2; ++tensor) {
      file.tensor(std::string(layer) + (tensor == 0 ? "_keys" : "_values"), "F16", {1, 2, n, 64},
                  test::stored(Dtype::kF16, head_values(kShape, list, tensor)));
    }
  }
  return file.meta("model", "a/b").meta("chat_template", "None");
}

TEST(MlxImport, ReadsFilesOf2024) {
  const ForeignCache cache = must_import(named_pairs(positions(7)));
  EXPECT_EQ(cache.identity.model_name, "a/b");
  ASSERT_EQ(cache.layers.size(), 2u);
  for (const std::int64_t layer : {0, 1}) expect_attention(cache, layer, kShape, positions(7));
}

TEST(MlxImport, RefusesRingsOf2024) {
  expect_refused(named_pairs(positions(7)).meta("max_kv_size", "7"), ErrorCode::kUnsupported,
                 "a ring of 7 tokens: in files of 2024 nothing says where it begins");
  EXPECT_EQ(must_import(named_pairs(positions(7)).meta("max_kv_size", "8")).n_tokens, 7);
  EXPECT_EQ(must_import(named_pairs(positions(7)).meta("max_kv_size", "None")).n_tokens, 7);
}

TEST(MlxImport, RefusesBuffersOf2024ThatHoldMoreThanTokens) {
  MlxBuilder file(MlxLayout::kNamedPairs);
  file.tensor("0_keys", "F16", {1, 1, 2, 2}, test::stored(Dtype::kF16, {1, 2, 0, 0}));
  file.tensor("0_values", "F16", {1, 1, 2, 2}, test::stored(Dtype::kF16, {1, 2, 0, 0}));
  expect_refused(file, ErrorCode::kUnsupported,
                 "layer 0: its last row is zeros, so it holds more rows than tokens");
}

// --- the file as a whole

TEST(MlxImport, TellsWhatTheFileSaysOfItself) {
  MlxBuilder file(MlxLayout::kScalars);
  add_kv(add_kv(file, 7), 7).user("model", "org/m\x1b[2J").user("tokenizer_config", "{}");
  const ForeignCache cache = must_import(file);
  EXPECT_EQ(cache.identity.source_format, "mlx-lm");
  EXPECT_EQ(cache.identity.model_name, "org/m?[2J");
  EXPECT_EQ(cache.metadata, (std::vector<std::pair<std::string, std::string>>{
                                {"format", "mlx-lm prompt cache"},
                                {"written by", "mlx-lm 0.32.0 or later"},
                                {"model", "org/m?[2J"},
                                {"classes", "2 KVCache"},
                                {"metadata", "\"tokenizer_config\""}}));
  EXPECT_EQ(cache.dropped_fields,
            std::vector<std::string>{"the metadata \"tokenizer_config\" is not kept"});
}

TEST(MlxImport, BoundsWhatItTells) {
  MlxBuilder file(MlxLayout::kMetaState);
  add_kv(file, 7).user("model", std::string(5000, 'm'));
  for (int i = 0; i < 100; ++i) file.user(std::string(200, 'k') + std::to_string(i), "v");
  const ForeignCache cache = must_import(file);
  EXPECT_EQ(cache.identity.model_name.size(), 1024u);
  for (const auto& [name, text] : cache.metadata) EXPECT_LT(text.size(), 3000u) << name;
  for (const std::string& loss : cache.dropped_fields) EXPECT_LT(loss.size(), 3000u);
}

TEST(MlxImport, RefusesOtherFiles) {
  const Bytes other = tensors::make_safetensors_header({}, {{"format", "pt"}});
  EXPECT_THAT(test::import_mlx(other),
              test::FailsWith(ErrorCode::kCorrupt, "not a prompt cache of mlx-lm"));
  EXPECT_FALSE(is_mlx_lm(test::must(tensors::index_safetensors(*memory_source(other)))));
  MlxBuilder file(MlxLayout::kScalars);
  EXPECT_TRUE(
      is_mlx_lm(test::must(tensors::index_safetensors(*memory_source(add_kv(file, 7).build())))));
}

TEST(MlxImport, RefusesClassesThatItDoesNotKnow) {
  MlxBuilder file(MlxLayout::kScalars);
  file.layer("TurboCache\x1b").pair(kShape, positions(7));
  expect_refused(file, ErrorCode::kUnsupported, "layer 0: class \"TurboCache?\" is unknown");
}

TEST(MlxImport, RefusesTensorsThatBelongToNothing) {
  MlxBuilder file(MlxLayout::kScalars);
  add_kv(file, 7).number("3", 5);
  expect_refused(file, ErrorCode::kUnsupported, "tensor \"0.3\": part of no state that is known");
}

TEST(MlxImport, RefusesNumbersThatAreNone) {
  MlxBuilder text(MlxLayout::kScalars);
  text.layer("KVCache").pair(kShape, positions(7)).text("2", "7");
  expect_refused(text, ErrorCode::kCorrupt, "layer 0: tensor \"0.2\": not a number");
  MlxBuilder real(MlxLayout::kScalars);
  real.layer("KVCache").pair(kShape, positions(7)).tensor("2", "F32", {}, Bytes(4));
  expect_refused(real, ErrorCode::kCorrupt, "layer 0: tensor \"0.2\": \"F32\", expected integers");
  MlxBuilder negative(MlxLayout::kScalars);
  negative.layer("KVCache").pair(kShape, positions(7)).number("2", -7);
  expect_refused(negative, ErrorCode::kCorrupt, "layer 0: tensor \"0.2\": a number below 0");
  MlxBuilder list(MlxLayout::kMetaState);
  list.layer("BatchKVCache").pair(kShape, positions(7)).tensor("2", "I32", {1, 1}, Bytes(4));
  expect_refused(list, ErrorCode::kCorrupt, "layer 0: tensor \"0.2\": not a list of numbers");
}

TEST(MlxImport, ReadsIntegersOfEveryWidth) {
  const std::pair<const char*, Bytes> numbers[] = {
      {"I64", test::bytes_of(std::vector<std::int64_t>{7})},
      {"U32", test::bytes_of(std::vector<std::uint32_t>{7})},
      {"I32", test::bytes_of(std::vector<std::int32_t>{7})}};
  for (const auto& [type, bytes] : numbers) {
    MlxBuilder file(MlxLayout::kScalars);
    file.layer("KVCache").pair(kShape, positions(9)).tensor("2", type, {}, bytes);
    EXPECT_EQ(must_import(file).n_tokens, 7) << type;
  }
}

}  // namespace mlx_lm_test
}  // namespace tqcache::interop
