#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "capi/capi_handles.h"
#include "support/cache_builder.h"
#include "tqcache/tqcache.h"

namespace tqcache::test::growing_codec {
namespace {

constexpr std::int64_t kHeads = 2, kTokens = 600, kDim = 64, kBlock = 256;
using CodecHandle = std::unique_ptr<tqcache_codec, Freed<tqcache_codec_free>>;

std::vector<float> numbers(std::uint64_t seed) {
  Random random(seed);
  std::vector<float> values(static_cast<std::size_t>(kHeads * kTokens * kDim));
  for (float& value : values) value = random.bell() + 1;
  return values;
}

// Tokens [first, first + n) of [kHeads, kTokens, kDim].
tqcache_tensor tokens_of(std::vector<float>& values, std::int64_t first, std::int64_t n) {
  tqcache_tensor tensor = TQCACHE_INIT(tqcache_tensor);
  tensor.data = values.data() + first * kDim;
  tensor.dtype = TQCACHE_F32;
  tensor.n_heads = kHeads;
  tensor.n_tokens = n;
  tensor.head_dim = kDim;
  tensor.head_stride = kTokens * kDim;
  tensor.token_stride = kDim;
  tensor.component_stride = 1;
  return tensor;
}

tqcache_identity identity_with_rope() {
  tqcache_identity identity = TQCACHE_INIT(tqcache_identity);
  identity.rope_style = TQCACHE_ROPE_HALF_SPLIT;
  identity.rope_dims = kDim;
  identity.rope_base = 10000;
  return identity;
}

CodecHandle codec(int which, const char* config) {
  std::vector<float> none;
  const tqcache_tensor shape = tensor_of(none, kHeads, 0, kDim);
  const tqcache_identity rope = identity_with_rope();
  return made<CodecHandle>([&](auto out, auto error) {
    return tqcache_codec_new(&shape, which, config, &rope, 0, out, error);
  });
}

// The packed blocks of two of them, encoded one by one.
std::vector<char> packed_blocks(tqcache_codec* codec, std::vector<float>& values) {
  const tqcache_tensor first = tokens_of(values, 0, kBlock);
  EXPECT_EQ(tqcache_codec_fit(codec, &first, 1, 1, nullptr), TQCACHE_OK);
  std::vector<char> all;
  for (std::int64_t block = 0; block < 2; ++block) {
    const tqcache_tensor from = tokens_of(values, block * kBlock, kBlock);
    std::vector<char> one(tqcache_codec_block_bytes(codec, block));
    EXPECT_EQ(tqcache_codec_encode(codec, &from, block, one.data(), one.size(), 1, nullptr),
              TQCACHE_OK);
    all.insert(all.end(), one.begin(), one.end());
  }
  return all;
}

WriterHandle writer() {
  const tqcache_identity identity = identity_with_rope();
  return made<WriterHandle>([&](auto out, auto error) {
    return tqcache_writer_new(nullptr, kTokens, &identity, out, error);
  });
}

std::string file_of(const WriterHandle& writer, const char* config) {
  const auto cache = made<CacheHandle>(
      [&](auto out, auto error) { return tqcache_writer_cache(writer.get(), out, error); });
  tqcache_convert_options options = TQCACHE_INIT(tqcache_convert_options);
  options.config = config;
  options.threads = 2;
  return text_of(made<BytesHandle>([&](auto out, auto error) {
                   return tqcache_convert_bytes(cache.get(), &options, out, error);
                 }).get());
}

TEST(CInterfaceCodec, PackedLayersGiveTheFileOfTheConversion) {
  std::vector<float> keys = numbers(1), values = numbers(2);
  const tqcache_tensor all_keys = tokens_of(keys, 0, kTokens);
  const tqcache_tensor all_values = tokens_of(values, 0, kTokens);
  const WriterHandle dense = writer();
  ASSERT_EQ(tqcache_writer_attention(dense.get(), &all_keys, &all_values, nullptr), TQCACHE_OK);
  for (const auto& [config, preset] :
       {std::pair{"mse:4,sink=4", "turbo4"}, {"mse:2,sink=4", "turbo2"}}) {
    const CodecHandle k = codec(TQCACHE_KEYS, config), v = codec(TQCACHE_VALUES, config);
    const std::vector<char> packed_keys = packed_blocks(k.get(), keys);
    const std::vector<char> packed_values = packed_blocks(v.get(), values);
    const tqcache_tensor key_tail = tokens_of(keys, 512, 88);
    const tqcache_tensor value_tail = tokens_of(values, 512, 88);
    const WriterHandle packed = writer();
    ASSERT_EQ(tqcache_writer_packed(packed.get(), k.get(), packed_keys.data(), packed_keys.size(),
                                    v.get(), packed_values.data(), packed_values.size(), &key_tail,
                                    &value_tail, nullptr),
              TQCACHE_OK);
    EXPECT_EQ(file_of(packed, nullptr), file_of(dense, preset)) << preset;
    EXPECT_EQ(file_of(packed, preset), file_of(dense, preset)) << preset;
  }
}

TEST(CInterfaceCodec, BlocksDecodeAsTheFileReads) {
  std::vector<float> keys = numbers(3), read, decoded;
  const CodecHandle k = codec(TQCACHE_KEYS, "mse:4,sink=4");
  const std::vector<char> packed = packed_blocks(k.get(), keys);
  const tqcache_tensor to = tensor_of(decoded, kHeads, 2 * kBlock, kDim);
  ASSERT_EQ(tqcache_codec_decode(k.get(), packed.data(), packed.size(), 0, &to, 2, nullptr),
            TQCACHE_OK);

  const tqcache_tensor all = tokens_of(keys, 0, kTokens);
  const WriterHandle dense = writer();
  ASSERT_EQ(tqcache_writer_attention(dense.get(), &all, &all, nullptr), TQCACHE_OK);
  const std::string file = file_of(dense, "turbo4");
  const auto cache = made<CacheHandle>([&](auto out, auto error) {
    return tqcache_open_bytes(file.data(), file.size(), nullptr, out, error);
  });
  const tqcache_tensor whole = tensor_of(read, kHeads, kTokens, kDim);
  ASSERT_EQ(tqcache_read(cache.get(), 0, TQCACHE_KEYS, 0, &whole, 1, nullptr), TQCACHE_OK);
  for (std::int64_t head = 0; head < kHeads; ++head) {
    for (std::int64_t i = 0; i < 2 * kBlock * kDim; ++i) {
      ASSERT_EQ(decoded[static_cast<std::size_t>(head * 2 * kBlock * kDim + i)],
                read[static_cast<std::size_t>(head * kTokens * kDim + i)]);
    }
  }
}

TEST(CInterfaceCodec, TablesAreThoseOfTheCodec) {
  std::vector<float> keys = numbers(4);
  const CodecHandle k = codec(TQCACHE_KEYS, "mse:3,sink=4,rounds=2,seed=9");
  tqcache_codec_tables tables = TQCACHE_INIT(tqcache_codec_tables);
  ASSERT_EQ(tqcache_codec_read_tables(k.get(), &tables, nullptr), TQCACHE_OK);
  EXPECT_EQ(tables.mean, nullptr);
  EXPECT_EQ(tables.bits, 3);
  EXPECT_EQ(tables.rounds, 2);
  EXPECT_EQ(tables.seed, 9u);
  EXPECT_EQ(tables.scale, 1);  // below 4 bits a scale keeps the length
  EXPECT_EQ(tables.n_sinks, 4);
  EXPECT_EQ(tables.n_pairs, kDim / 2);
  packed_blocks(k.get(), keys);
  ASSERT_EQ(tqcache_codec_read_tables(k.get(), &tables, nullptr), TQCACHE_OK);
  ASSERT_NE(tables.mean, nullptr);
  EXPECT_NEAR(tables.turns[0] * 6.283185307179586, 1, 1e-15);  // the first pair turns by a radian
  EXPECT_NEAR(tables.cos[kDim / 2], 0.5403023f, 1e-7);
  EXPECT_NEAR(tables.sin[kDim / 2], 0.8414710f, 1e-7);
  EXPECT_EQ(tables.factors, nullptr);
}

TEST(CInterfaceCodec, WhatDoesNotFitIsRefused) {
  std::vector<float> keys = numbers(5);
  const CodecHandle k = codec(TQCACHE_KEYS, "mse:4"), v = codec(TQCACHE_VALUES, "mse:4");
  const tqcache_tensor block = tokens_of(keys, 0, kBlock), part = tokens_of(keys, 0, 100);
  std::vector<char> room(tqcache_codec_block_bytes(k.get(), 0));
  const auto encode = [&](const tqcache_tensor& from, std::int64_t number, std::size_t size) {
    return failure_of([&](auto error) {
      return tqcache_codec_encode(k.get(), &from, number, room.data(), size, 1, error);
    });
  };
  EXPECT_NE(encode(block, 0, room.size()).message.find("not fitted"), std::string::npos);
  EXPECT_NE(failure_of([&](auto error) {
              return tqcache_codec_fit(k.get(), &part, 1, 1, error);
            }).message.find("100 tokens"),
            std::string::npos);
  ASSERT_EQ(tqcache_codec_fit(k.get(), &block, 1, 1, nullptr), TQCACHE_OK);
  ASSERT_EQ(tqcache_codec_fit(v.get(), &block, 1, 1, nullptr), TQCACHE_OK);
  EXPECT_EQ(encode(block, 0, room.size()).code, TQCACHE_OK);
  EXPECT_EQ(encode(block, 0, room.size() - 1).code, TQCACHE_USAGE);
  EXPECT_EQ(encode(block, -1, room.size()).code, TQCACHE_USAGE);
  EXPECT_EQ(encode(block, std::int64_t{1} << 62, room.size()).code, TQCACHE_USAGE);

  const WriterHandle to = writer();
  const auto write = [&](const CodecHandle& first, std::size_t size, const tqcache_tensor& tail) {
    std::vector<char> two(2 * room.size());
    return failure_of([&](auto error) {
      return tqcache_writer_packed(to.get(), first.get(), two.data(), size, v.get(), two.data(),
                                   two.size(), &tail, &tail, error);
    });
  };
  const tqcache_tensor tail = tokens_of(keys, 512, 88);
  EXPECT_NE(write(v, 2 * room.size(), tail).message.find("in this order"), std::string::npos);
  EXPECT_NE(write(k, room.size(), tail).message.find("bytes of packed"), std::string::npos);
  EXPECT_NE(write(k, 2 * room.size(), block).message.find("dense tokens"), std::string::npos);
  EXPECT_EQ(write(k, 2 * room.size(), tail).code, TQCACHE_OK);
}

TEST(CInterfaceCodec, NullIsRefused) {
  std::vector<float> keys = numbers(6);
  const CodecHandle k = codec(TQCACHE_KEYS, "mse:4"), v = codec(TQCACHE_VALUES, "mse:4");
  const tqcache_tensor block = tokens_of(keys, 0, kBlock), tail = tokens_of(keys, 512, 88);
  const std::size_t size = tqcache_codec_block_bytes(k.get(), 0);
  const auto code = [](const auto& call) { return failure_of(call).code; };
  EXPECT_EQ(code([&](auto error) { return tqcache_codec_fit(k.get(), nullptr, 1, 1, error); }),
            TQCACHE_USAGE);
  ASSERT_EQ(tqcache_codec_fit(k.get(), &block, 1, 1, nullptr), TQCACHE_OK);
  ASSERT_EQ(tqcache_codec_fit(v.get(), &block, 1, 1, nullptr), TQCACHE_OK);
  EXPECT_EQ(code([&](auto error) {
              return tqcache_codec_encode(k.get(), &block, 0, nullptr, size, 1, error);
            }),
            TQCACHE_USAGE);
  EXPECT_EQ(code([&](auto error) {
              return tqcache_codec_decode(k.get(), nullptr, size, 0, &block, 1, error);
            }),
            TQCACHE_USAGE);
  const WriterHandle to = writer();
  EXPECT_EQ(code([&](auto error) {
              return tqcache_writer_packed(to.get(), k.get(), nullptr, 2 * size, v.get(), nullptr,
                                           2 * size, &tail, &tail, error);
            }),
            TQCACHE_USAGE);
}

}  // namespace
}  // namespace tqcache::test::growing_codec
