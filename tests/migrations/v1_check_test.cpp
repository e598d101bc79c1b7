// The second opinion on a migration notices whatever differs.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <string>
#include <variant>

#include "migrations/v1_to_v2.h"
#include "support/matchers.h"
#include "support/v1_builder.h"
#include "tqcache/cache.h"

namespace tqcache::test {
namespace v1_check_test {

using cache::AttentionLayer;
using cache::Cache;
using cache::TurboTensor;
using migrations::check_migrated;
using migrations::v1_to_v2;
using migrations::V1File;
using testing::HasSubstr;

V1File some_file() {
  return V1Builder(300)
      .turbo({2, 32}, {.bits = 8, .wht = true, .affine_values = V1Affine{4, 32}})
      .turbo({1, 64}, {.bits = 2, .prod = true, .wht = true})
      .turbo({1, 64}, {.wht = true, .mixed = V1Mixed{16, 3, 2}})
      .dense({2, 8}, V1Dtype::kF16)
      .rotating({2, 4}, {.n_rows = 16, .keep = 2, .max_size = 16, .next = 5})
      .arrays()
      .facts()
      .build();
}

AttentionLayer& attention(Cache& cache, std::size_t layer) {
  return std::get<AttentionLayer>(cache.layers.at(layer));
}

// One byte of a packed block is another one.
void change_packed(cache::Tensor& tensor, std::size_t at, std::byte flip) {
  auto& block = std::get<TurboTensor>(tensor).packed.at(0);
  AlignedBytes bytes(block.bytes.view().begin(), block.bytes.view().end());
  bytes.at(at) ^= flip;
  block.bytes = SharedBytes(std::move(bytes));
}

void expect_noticed(const std::string& message, const std::function<void(Cache&)>& change) {
  const V1File file = some_file();
  auto migration = must(v1_to_v2(file));
  must(check_migrated(file, migration.cache, 2));
  change(migration.cache);
  EXPECT_THAT(check_migrated(file, migration.cache, 2),
              test::FailsWith(ErrorCode::kCorrupt, HasSubstr(message)));
}

TEST(CheckMigrated, NoticesASingleCode) {
  // The lowest bit of a code of 8 bits: keys of token 0, channel 0.
  expect_noticed("layer 0: k: head 0 token 0: not the value",
                 [](Cache& c) { change_packed(attention(c, 0).k, 0, std::byte{1}); });
  expect_noticed("layer 0: v: head 0 token 0: not the value",
                 [](Cache& c) { change_packed(attention(c, 0).v, 0, std::byte{1}); });
  expect_noticed("layer 1: k: ",
                 [](Cache& c) { change_packed(attention(c, 1).k, 0, std::byte{1}); });
  expect_noticed("layer 2: k: ",
                 [](Cache& c) { change_packed(attention(c, 2).k, 0, std::byte{1}); });
}

TEST(CheckMigrated, NoticesASignOfTheResidual) {
  expect_noticed("layer 1: k: ", [](Cache& c) {
    // The part of the signs begins behind 256 * 64 codes of one bit.
    change_packed(attention(c, 1).k, 256 * 64 / 8, std::byte{1});
  });
}

TEST(CheckMigrated, NoticesAScale) {
  expect_noticed("layer 0: k: head 0 token 0: ", [](Cache& c) {
    change_packed(attention(c, 0).k, 2 * 256 * 32, std::byte{1});  // its last digit
  });
}

TEST(CheckMigrated, NoticesOtherOutlierChannels) {
  expect_noticed("layer 2: k: ", [](Cache& c) {
    auto& tensor = std::get<TurboTensor>(attention(c, 2).k);
    std::vector<std::uint16_t> loud = tensor.codec.describe().quant->outliers;
    for (std::uint16_t i = 0; i < 64; ++i) {
      if (std::ranges::find(loud, i) != loud.end()) continue;
      loud.back() = i;
      break;
    }
    std::ranges::sort(loud);
    tensor.codec = must(test::remade(tensor.codec, c.identity.rope,
                                     [&](cache::QuantSpec& q) { q.outliers = loud; }));
  });
}

TEST(CheckMigrated, NoticesADenseValue) {
  expect_noticed("layer 3: v: head 1 token 256: ", [](Cache& c) {
    auto& tensor = std::get<cache::DenseTensor>(attention(c, 3).v);
    tensor.blocks.at(1).at(2 * 8 * 256) ^= std::byte{1};
  });
  expect_noticed("layer 0: k: head 0 token 256: ", [](Cache& c) {
    auto& tail = std::get<TurboTensor>(attention(c, 0).k).tail;
    tail.blocks.at(0).at(3) ^= std::byte{0x80};
  });
}

TEST(CheckMigrated, NoticesARowOfAWindow) {
  expect_noticed("layer 4: head 1 token 299: ", [](Cache& c) {
    auto& layer = std::get<cache::WindowLayer>(c.layers.at(4));
    test::change_window(layer, layer.attention.v, c.n_tokens(),
                        [](AlignedBytes& array, Dtype) { array.back() ^= std::byte{1}; });
  });
  expect_noticed("layer 4: tensor \"keys\", 1 x 2 x 16 x 4: not carried over", [](Cache& c) {
    Dtype& dtype = std::get<cache::DenseTensor>(cache::attention_of(c.layers.at(4))->k).dtype;
    dtype = dtype == Dtype::kF16 ? Dtype::kBF16 : Dtype::kF16;
  });
  expect_noticed("layer 4: another window",
                 [](Cache& c) { std::get<cache::WindowLayer>(c.layers.at(4)).window.keep = 1; });
  expect_noticed("layer 4: another window",
                 [](Cache& c) { cache::attention_of(c.layers.at(4))->shape.n_kv_heads = 1; });
}

TEST(CheckMigrated, NoticesAnArray) {
  expect_noticed("layer 5: arrays", [](Cache& c) {
    std::get<cache::StateLayer>(c.layers.at(5)).arrays.at(1).data.back() ^= std::byte{1};
  });
  expect_noticed("layer 5: arrays",
                 [](Cache& c) { std::get<cache::StateLayer>(c.layers.at(5)).arrays.pop_back(); });
}

TEST(CheckMigrated, NoticesWhatGoesForTheWholeCache) {
  expect_noticed("tokens", [](Cache& c) { c.tokens.back() += 1; });
  expect_noticed("identity", [](Cache& c) { c.identity.model_name += "!"; });
  expect_noticed("5 layers where 6 belong", [](Cache& c) { c.layers.pop_back(); });
  expect_noticed("layer 4: no rotating layer",
                 [](Cache& c) { std::swap(c.layers[5], c.layers[4]); });
  expect_noticed("layer 0: of another shape",
                 [](Cache& c) { std::swap(c.layers[0], c.layers[1]); });
  expect_noticed("layer 3: no attention layer",
                 [](Cache& c) { std::swap(c.layers[5], c.layers[3]); });
}

TEST(CheckMigrated, NoticesEachFactOfTheModel) {
  const auto noticed = [](const std::function<void(cache::Identity&)>& change) {
    expect_noticed("identity", [&](Cache& c) { change(c.identity); });
  };
  noticed([](auto& identity) { identity.architecture += "!"; });
  noticed([](auto& identity) { identity.rope.base += 1; });
  noticed([](auto& identity) { identity.weights_fingerprint[0] ^= std::byte{1}; });
  noticed([](auto& identity) { identity.tokenizer_fingerprint[31] ^= std::byte{1}; });
  noticed([](auto& identity) { identity.adapter_fingerprint = Sha256{}; });
  noticed([](auto& identity) { identity.source_format += "!"; });
}

TEST(CheckMigrated, NoticesTokensWhereNoneWereKnown) {
  const V1File file = V1Builder(3).dense({1, 8}, V1Dtype::kF16).build();
  auto migration = must(v1_to_v2(file));
  ASSERT_TRUE(migration.cache.hidden_tokens);
  migration.cache.hidden_tokens->emplace_back();
  EXPECT_FALSE(check_migrated(file, migration.cache, 1).ok());
  migration.cache.hidden_tokens.reset();
  EXPECT_FALSE(check_migrated(file, migration.cache, 1).ok());
}

TEST(CheckMigrated, NoticesAnotherFormOfArrays) {
  const auto arrays = [](Cache& c, std::size_t layer) -> cache::StateLayer& {
    return std::get<cache::StateLayer>(c.layers.at(layer));
  };
  expect_noticed("layer 5: arrays", [&](Cache& c) { arrays(c, 5).arrays[0].name += "!"; });
  expect_noticed("layer 5: arrays", [&](Cache& c) { arrays(c, 5).arrays[0].shape.push_back(1); });
  expect_noticed("layer 5: arrays", [&](Cache& c) {
    Dtype& dtype = arrays(c, 5).arrays[0].dtype;
    dtype = dtype == Dtype::kF32 ? Dtype::kF16 : Dtype::kF32;
  });
  expect_noticed("layer 5: no arrays", [](Cache& c) { c.layers[5] = c.layers[4]; });
  expect_noticed("layer 5: no arrays", [](Cache& c) { c.layers[5] = c.layers[3]; });
  expect_noticed("layer 4: no rotating", [](Cache& c) { c.layers[4] = c.layers[5]; });
  expect_noticed("not carried over", [](Cache& c) {
    std::get<cache::DenseTensor>(cache::attention_of(c.layers[4])->v).dtype = Dtype::kBF16;
  });
}

// -0 where the definition gives 0 is no difference, and neither is what f32 does below 2^-126.
TEST(CheckMigrated, TakesVectorsWithoutLength) {
  for (const float length : {0.0f, 1e-40f, 0x1p-24f}) {
    V1File file = V1Builder(3).turbo({1, 64}, {.bits = 3, .wht = true}).build();
    for (std::size_t i = 0; i < 3; ++i) {
      std::memcpy(v1_tensor(file.entries[0], "reg_norms").data.data() + 4 * i, &length, 4);
    }
    const auto checked = check_migrated(file, must(v1_to_v2(file)).cache, 1);
    EXPECT_TRUE(checked.ok()) << length << ": " << checked.error().message;
  }
}

// Found by fuzz_migrate: one group a head vector, and so a last dimension that may be left out.
TEST(CheckMigrated, KnowsGroupsWithoutALastDimension) {
  V1File file = V1Builder(3).quantized({1, 32}, {.bits = 2, .group_size = 32}).build();
  for (migrations::V1Tensor& tensor : file.entries[0].state) {
    if (tensor.shape.back() == 1) tensor.shape.pop_back();
  }
  const auto migration = v1_to_v2(file);
  ASSERT_TRUE(migration.ok()) << migration.error().message;
  const auto checked = check_migrated(file, migration->cache, 1);
  EXPECT_TRUE(checked.ok()) << checked.error().message;
}

TEST(CheckMigrated, GivesAnErrorForFilesThatLackSomething) {
  const V1File file = some_file();
  const auto migration = must(v1_to_v2(file));
  for (std::size_t layer = 0; layer < file.entries.size(); ++layer) {
    const auto& state = file.entries[layer].state;
    for (std::size_t i = 0; i < state.size(); ++i) {
      if (state[i].data.empty()) continue;
      V1File less = file;
      less.entries[layer].state.erase(less.entries[layer].state.begin() +
                                      static_cast<std::ptrdiff_t>(i));
      EXPECT_FALSE(check_migrated(less, migration.cache, 1).ok()) << layer << " " << state[i].name;
    }
    for (const char* meta : {"{", "[1]"}) {
      V1File other = file;
      other.entries[layer].meta_state = meta;
      const bool unused = layer == 3 || layer == 5;  // of dense layers and arrays nothing is needed
      EXPECT_EQ(check_migrated(other, migration.cache, 1).ok(), unused) << layer << " " << meta;
    }
    V1File other = file;
    other.entries[layer].class_path = "x";
    EXPECT_FALSE(check_migrated(other, migration.cache, 1).ok());
  }
}

TEST(CheckMigrated, GivesAnErrorForFilesThatSayNothingOfTheirGroups) {
  const V1File file = V1Builder(3).quantized({1, 32}, {.bits = 2, .group_size = 32}).build();
  const auto migration = must(v1_to_v2(file));
  for (const char* meta : {"{", "[]", "[1]", "[3, 32, 2, 1]"}) {
    V1File other = file;
    other.entries[0].meta_state = meta;
    EXPECT_FALSE(check_migrated(other, migration.cache, 1).ok()) << meta;
  }
  V1File flat = file;
  for (migrations::V1Tensor& tensor : flat.entries[0].state) tensor.shape.resize(1);
  EXPECT_FALSE(check_migrated(flat, migration.cache, 1).ok());
}

TEST(CheckMigrated, GivesAnErrorForFactsThatAreNone) {
  V1File file = some_file();
  const auto migration = must(v1_to_v2(file));
  for (auto& [key, value] : file.metadata) {
    if (key == "rope") value = "[";
  }
  EXPECT_FALSE(check_migrated(file, migration.cache, 1).ok());
}

TEST(CheckMigrated, GivesAnErrorForARingOfAnotherForm) {
  const V1File file = some_file();
  const auto migration = must(v1_to_v2(file));
  V1File flat = file;
  for (migrations::V1Tensor& tensor : flat.entries[4].state) tensor.shape.resize(1);
  EXPECT_FALSE(check_migrated(flat, migration.cache, 1).ok());
  V1File later = file;  // other layers have another number of tokens
  later.entries[4].meta_state = R"(["2", "16", "301", "5"])";
  EXPECT_FALSE(check_migrated(later, migration.cache, 1).ok());
}

TEST(CheckMigrated, KnowsHiddenTokensByTheirHashes) {
  const V1File file = some_file();
  auto migration = must(v1_to_v2(file));
  cache::hide_tokens(migration.cache);
  EXPECT_TRUE(check_migrated(file, migration.cache, 1).ok());
  migration.cache.hidden_tokens->back()[0] ^= std::byte{1};
  EXPECT_FALSE(check_migrated(file, migration.cache, 1).ok());
}

}  // namespace v1_check_test
}  // namespace tqcache::test
