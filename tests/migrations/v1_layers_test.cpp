// Layers of mlx-lm's classes, as a cache has them.

#include "migrations/v1_layers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <string>

#include "migrations/v1_to_v2.h"
#include "support/matchers.h"
#include "support/v1_builder.h"
#include "tqcache/codec/block_layout.h"

namespace tqcache::test {
namespace v1_layers_test {

using cache::AttentionLayer;
using cache::HeadShape;
using migrations::check_migrated;
using migrations::Migration;
using migrations::v1_to_v2;
using migrations::V1Entry;
using migrations::V1File;
using migrations::V1Tensor;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

// Migrates a file, and checks the result by the other code.
Migration migrated(const V1File& file) {
  Migration migration = must(v1_to_v2(file));
  must(check_migrated(file, migration.cache, 2));
  return migration;
}

void expect_refused(const V1File& file, ErrorCode code, const std::string& message) {
  EXPECT_THAT(v1_to_v2(file),
              test::FailsWith(code, AllOf(HasSubstr("layer 0: "), HasSubstr(message))));
}

std::vector<float> values_of(const V1Tensor& tensor, Dtype dtype) {
  std::vector<float> values(tensor.data.size() / dtype_size(dtype));
  load_f32(dtype, tensor.data.data(), values);
  return values;
}

// [n_kv_heads, n_tokens, head_dim]
std::vector<float> values_of(const cache::Tensor& tensor, HeadShape shape, std::int64_t n_tokens) {
  std::vector<float> values;
  for (std::int64_t head = 0; head < shape.n_kv_heads; ++head) {
    for (std::int64_t block = 0; block < cache::block_count(n_tokens); ++block) {
      std::vector<float> rows(
          static_cast<std::size_t>(cache::tokens_in_block(n_tokens, block) * shape.head_dim));
      cache::read_block(tensor, shape, n_tokens, block, head, rows);
      values.insert(values.end(), rows.begin(), rows.end());
    }
  }
  return values;
}

// --- classes

TEST(V1Classes, AreKnownByEveryPathTheyHad) {
  EXPECT_THAT(migrations::known_class_paths(), testing::SizeIs(9));
  for (const std::string_view path : migrations::known_class_paths()) {
    EXPECT_TRUE(migrations::class_of(path).ok()) << path;
  }
}

TEST(V1Classes, AreNeverLookedUpAnywhereElse) {
  for (const char* path :
       {"os.system", "", "mlx_lm.models.cache", "KVCache", "mlx_lm.models.cache.KVCache ",
        "mlx_lm.models.cache.KVCach", "mlx_lm.models.cache.ChunkedKVCache"}) {
    V1File file = V1Builder(2).dense({1, 8}, V1Dtype::kF16, path).build();
    expect_refused(file, ErrorCode::kUnsupported, std::string("class \"") + path + "\": not known");
  }
}

TEST(V1Classes, AreNamedInPlainText) {
  V1File file = V1Builder(2).dense({1, 8}, V1Dtype::kF16, "a\x1b[2Jb\n\xff").build();
  expect_refused(file, ErrorCode::kUnsupported, "class \"a?[2Jb??\": not known");
}

TEST(V1Classes, OfOthersHaveNoExtraState) {
  V1File file = V1Builder(2).dense({1, 8}, V1Dtype::kF16).build();
  file.entries[0].extra_meta = "{}";
  expect_refused(file, ErrorCode::kCorrupt, "extra_state");
}

// --- KVCache

class DenseLayers : public testing::TestWithParam<std::tuple<V1Dtype, std::int64_t>> {};

TEST_P(DenseLayers, AreCarriedOverBitForBit) {
  const auto [v1_dtype, n_tokens] = GetParam();
  const Dtype dtype = v1_dtype == V1Dtype::kF32   ? Dtype::kF32
                      : v1_dtype == V1Dtype::kF16 ? Dtype::kF16
                                                  : Dtype::kBF16;
  const V1File file = V1Builder(n_tokens).dense({3, 20}, v1_dtype).build();
  const Migration migration = migrated(file);
  const auto& layer = std::get<AttentionLayer>(migration.cache.layers.at(0));
  EXPECT_EQ(layer.shape, (HeadShape{3, 20}));
  ASSERT_TRUE(std::holds_alternative<cache::DenseTensor>(layer.k));
  EXPECT_EQ(cache::dense_dtype(layer.k), dtype);
  EXPECT_EQ(migration.cache.n_tokens(), n_tokens);
  EXPECT_EQ(values_of(layer.k, layer.shape, n_tokens), values_of(file.entries[0].state[0], dtype));
  EXPECT_EQ(values_of(layer.v, layer.shape, n_tokens), values_of(file.entries[0].state[1], dtype));
  EXPECT_THAT(migration.notes, IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(All, DenseLayers,
                         testing::Combine(testing::Values(V1Dtype::kF32, V1Dtype::kF16,
                                                          V1Dtype::kBf16),
                                          testing::Values(0, 1, 255, 256, 257, 512)));

TEST(DenseLayer, MaySayItsOffset) {
  V1File file = V1Builder(5).dense({1, 8}, V1Dtype::kF16, "mlx_lm.models.base.KVCache").build();
  for (const char* meta : {"", "\"\"", "[]", "[5]", "[\"5\"]"}) {
    file.entries[0].meta_state = meta;
    EXPECT_EQ(migrated(file).cache.n_tokens(), 5) << meta;
  }
  for (const char* meta : {"[4]", "[5, 5]", "{}", "5"}) {
    file.entries[0].meta_state = meta;
    expect_refused(file, ErrorCode::kCorrupt, "meta_state");
  }
}

TEST(DenseLayer, NeedsBothTensorsAlike) {
  const auto refused = [](ErrorCode code, const std::string& message,
                          const std::function<void(V1Entry&)>& change) {
    V1File file = V1Builder(4).dense({2, 8}, V1Dtype::kF16).build();
    change(file.entries[0]);
    expect_refused(file, code, message);
  };
  refused(ErrorCode::kCorrupt, "\"values\": missing", [](V1Entry& e) { e.state.pop_back(); });
  refused(ErrorCode::kCorrupt, "\"third\": not a tensor of this class", [](V1Entry& e) {
    e.state.push_back({"third", V1Dtype::kF16});
  });
  refused(ErrorCode::kCorrupt, "unlike", [](V1Entry& e) { e.state[1].shape = {1, 4, 2, 8}; });
  refused(ErrorCode::kCorrupt, "unlike", [](V1Entry& e) { e.state[1].shape = {1, 2, 2, 16}; });
  refused(ErrorCode::kUnsupported, "keys of head_dim 8 and values of 4", [](V1Entry& e) {
    e.state[1].shape[3] = 4;
    e.state[1].data.resize(4 * 2 * 4 * 2);
  });
  refused(ErrorCode::kCorrupt, "2 dimensions", [](V1Entry& e) { e.state[0].shape = {8, 8}; });
  refused(ErrorCode::kUnsupported, "a batch of 2", [](V1Entry& e) {
    e.state[0].shape = {2, 1, 4, 8};
  });
  refused(ErrorCode::kTooLarge, "1025 kv heads", [](V1Entry& e) {
    e.state[0].shape = {1, 1025, 4, 8};
  });
  refused(ErrorCode::kTooLarge, "1025 components", [](V1Entry& e) {
    e.state[0].shape = {1, 1, 4, 1025};
  });
  refused(ErrorCode::kTooLarge, "16777217 tokens", [](V1Entry& e) {
    e.state[0].shape = {1, 1, 16777217, 8};
  });
  refused(ErrorCode::kCorrupt, "a size of 0", [](V1Entry& e) {
    e.state[0].shape = e.state[1].shape = {1, 0, 4, 8};
    e.state[0].data = e.state[1].data = {};
  });
  refused(ErrorCode::kCorrupt, "not floating-point numbers", [](V1Entry& e) {
    e.state[0].dtype = V1Dtype::kU8;
    e.state[0].data.resize(64);
  });
}

TEST(DenseLayer, HasFiniteValues) {
  V1File file = V1Builder(4).dense({2, 8}, V1Dtype::kF16).build();
  const std::uint16_t infinity = 0x7c00;
  std::memcpy(file.entries[0].state[1].data.data() + 2 * (8 * 4 + 8 * 3), &infinity, 2);
  expect_refused(file, ErrorCode::kCorrupt, "v: head 1 token 3: not finite");
}

// --- QuantizedKVCache

// bias + scale * code, as the definition has it, in f32.
std::vector<float> groups_decoded(const V1Entry& entry, const std::string& name, int bits,
                                  std::size_t group_size, Dtype dtype) {
  V1Entry copy = entry;
  const AlignedBytes& packed = v1_tensor(copy, name + ".packed").data;
  const auto scales = values_of(v1_tensor(copy, name + ".scales"), dtype);
  const auto biases = values_of(v1_tensor(copy, name + ".biases"), dtype);
  std::vector<std::uint8_t> codes(packed.size() * 8 / static_cast<std::size_t>(bits));
  codec::unpack_codes(packed, bits, codes);
  std::vector<float> values(codes.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float step = scales[i / group_size] * static_cast<float>(codes[i]);
    values[i] = step + biases[i / group_size];
  }
  return values;
}

class Groups : public testing::TestWithParam<std::tuple<int, std::int64_t, V1Dtype>> {};

TEST_P(Groups, AreCarriedOverToTheBit) {
  const auto [bits, group_size, v1_dtype] = GetParam();
  const Dtype dtype = v1_dtype == V1Dtype::kF16 ? Dtype::kF16 : Dtype::kF32;
  const V1File file = V1Builder(300).quantized({2, 128}, {bits, group_size, v1_dtype}).build();
  const Migration migration = migrated(file);
  const auto& layer = std::get<AttentionLayer>(migration.cache.layers.at(0));
  for (const auto& [tensor, name] : {std::pair(&layer.k, "keys"), std::pair(&layer.v, "values")}) {
    EXPECT_TRUE(std::holds_alternative<cache::TurboTensor>(*tensor));
    EXPECT_EQ(cache::packed_block_count(*tensor), 1);
    EXPECT_EQ(
        values_of(*tensor, layer.shape, 300),
        groups_decoded(file.entries[0], name, bits, static_cast<std::size_t>(group_size), dtype));
  }
  EXPECT_THAT(migration.notes, IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(All, Groups,
                         testing::Combine(testing::Values(1, 2, 4, 8), testing::Values(32, 64, 128),
                                          testing::Values(V1Dtype::kF16, V1Dtype::kF32)));

TEST(QuantizedLayer, OfOtherGroupsIsKeptDense) {
  const V1File file = V1Builder(300).quantized({2, 64}, {4, 16}).build();
  const Migration migration = migrated(file);
  const auto& layer = std::get<AttentionLayer>(migration.cache.layers.at(0));
  ASSERT_TRUE(std::holds_alternative<cache::DenseTensor>(layer.k));
  EXPECT_EQ(cache::dense_dtype(layer.k), Dtype::kF32);
  EXPECT_EQ(values_of(layer.v, layer.shape, 300),
            groups_decoded(file.entries[0], "values", 4, 16, Dtype::kF16));
  EXPECT_THAT(migration.notes, ElementsAre("layer 0 k: part 0: a group of 16; kept dense",
                                           "layer 0 v: part 0: a group of 16; kept dense"));
}

TEST(QuantizedLayer, OfScalesThatF16DoesNotHoldIsKeptDense) {
  V1File file = V1Builder(300).quantized({1, 32}, {8, 32, V1Dtype::kF32}).build();
  // 300 * 2^8 is beyond f16, and 1/3 is between two of them.
  for (const auto& [name, value] :
       {std::pair("keys.scales", 300.0f), std::pair("values.biases", 1 / 3.0f)}) {
    std::memcpy(v1_tensor(file.entries[0], name).data.data() + 4 * 255, &value, 4);
  }
  const Migration migration = migrated(file);
  const auto& layer = std::get<AttentionLayer>(migration.cache.layers.at(0));
  EXPECT_EQ(values_of(layer.k, layer.shape, 300),
            groups_decoded(file.entries[0], "keys", 8, 32, Dtype::kF32));
  EXPECT_THAT(migration.notes, ElementsAre("layer 0 k: a scale that f16 does not hold; kept dense",
                                           "layer 0 v: a bias that f16 does not hold; kept dense"));
}

// The tokens behind the last full block are not packed: any scale will do.
TEST(QuantizedLayer, MayHaveAnyScalesInItsTail) {
  V1File file = V1Builder(300).quantized({1, 32}, {8, 32, V1Dtype::kF32}).build();
  const float value = 1 / 3.0f;
  std::memcpy(v1_tensor(file.entries[0], "keys.scales").data.data() + 4 * 256, &value, 4);
  EXPECT_THAT(migrated(file).notes, IsEmpty());
}

TEST(QuantizedLayer, IsRefusedWhenItContradictsItself) {
  const auto refused = [](ErrorCode code, const std::string& message,
                          const std::function<void(V1Entry&)>& change) {
    V1File file = V1Builder(4).quantized({2, 64}, {4, 32}).build();
    change(file.entries[0]);
    expect_refused(file, code, message);
  };
  refused(ErrorCode::kCorrupt, "not offset, group_size and bits",
          [](V1Entry& e) { e.meta_state = "[4, 32]"; });
  refused(ErrorCode::kCorrupt, "where offset is 5",
          [](V1Entry& e) { e.meta_state = "[5, 32, 4]"; });
  refused(ErrorCode::kCorrupt, "keys.packed", [](V1Entry& e) { e.meta_state = "[4, 32, 8]"; });
  refused(ErrorCode::kCorrupt, "keys.packed", [](V1Entry& e) { e.meta_state = "[4, 64, 4]"; });
  refused(ErrorCode::kUnsupported, "groups of 3 bits",
          [](V1Entry& e) { e.meta_state = "[4, 32, 3]"; });
  refused(ErrorCode::kCorrupt, "a size of 0", [](V1Entry& e) { e.meta_state = "[4, 0, 4]"; });
  refused(ErrorCode::kTooLarge, "head_dim 1280", [](V1Entry& e) { e.meta_state = "[4, 640, 4]"; });
  refused(ErrorCode::kCorrupt, "no whole words", [](V1Entry& e) { e.meta_state = "[4, 2, 4]"; });
  refused(ErrorCode::kCorrupt, "\"values.scales\": missing",
          [](V1Entry& e) { v1_tensor(e, "values.scales").data = {}; });
  refused(ErrorCode::kCorrupt, "another dtype",
          [](V1Entry& e) { v1_tensor(e, "keys.packed").dtype = V1Dtype::kF32; });
}

TEST(QuantizedLayer, HasFiniteValues) {
  V1File file = V1Builder(4).quantized({1, 32}, {8, 32, V1Dtype::kF32}).build();
  const float huge = 3e38f;
  std::memcpy(v1_tensor(file.entries[0], "keys.scales").data.data(), &huge, 4);
  expect_refused(file, ErrorCode::kCorrupt, "k: head 0 token 0: not finite");
}

// --- ArraysCache, MambaCache

TEST(ArraysLayers, AreCarriedOverBitForBit) {
  for (const char* path : {"mlx_lm.models.cache.ArraysCache", "mlx_lm.models.cache.MambaCache",
                           "mlx_lm.models.mamba.MambaCache"}) {
    V1File file = V1Builder(2).arrays(path).dense({1, 8}, V1Dtype::kF16).build();
    file.entries[0].state[1].data[7] = std::byte{0xff};  // NaN: arrays may hold anything
    file.entries[0].state[1].data[6] = std::byte{0xff};
    const Migration migration = migrated(file);
    const auto& layer = std::get<cache::StateLayer>(migration.cache.layers.at(0));
    ASSERT_EQ(layer.arrays.size(), 4u);
    for (std::size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(layer.arrays[i].name, std::to_string(i));
      EXPECT_EQ(layer.arrays[i].shape, file.entries[0].state[i].shape);
      EXPECT_TRUE(layer.arrays[i].data == file.entries[0].state[i].data);
    }
    EXPECT_EQ(layer.arrays[0].dtype, Dtype::kBF16);
  }
}

TEST(ArraysLayers, KeepNumberedKeysInOrder) {
  const auto refused = [](ErrorCode code, const std::string& message,
                          const std::function<void(V1Entry&)>& change) {
    V1File file = V1Builder(2).arrays().build();
    change(file.entries[0]);
    expect_refused(file, code, message);
  };
  refused(ErrorCode::kCorrupt, "where \"1\" belongs",
          [](V1Entry& e) { std::swap(e.state[1], e.state[2]); });
  refused(ErrorCode::kCorrupt, "not floating-point numbers",
          [](V1Entry& e) { e.state[1].dtype = V1Dtype::kU32; });
  refused(ErrorCode::kUnsupported, "a batch of 3", [](V1Entry& e) {
    e.state[0].shape = {3, 1, 20};
  });
  refused(ErrorCode::kCorrupt, "meta_state: not empty", [](V1Entry& e) { e.meta_state = "[1]"; });
}

}  // namespace v1_layers_test
}  // namespace tqcache::test
