// State files of llama.cpp: the bytes that llama.cpp itself writes for the same content.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "llama_export_fixture.h"

namespace tqcache::test {
namespace llama_export_test {

using interop::find_row_type;

constexpr std::int32_t kPositionWords = 3;  // of a cell: position, one sequence, sequence 0

// Values of a row type as they stand in a file, to f32; rotated back if `rotation` is not 0.
std::vector<float> values_of(const LlamaStateTensor& tensor, std::int64_t rotation) {
  const auto& type = *find_row_type(tensor.type);
  std::vector<float> values(tensor.data.size() / type.block_bytes * type.block_values);
  interop::decode_row(type, tensor.data, values);
  if (rotation != 0) interop::hadamard(rotation, values);
  return values;
}

cache::DenseTensor tensor_of_values(Dtype dtype, std::int64_t n_tokens, std::vector<float> values) {
  Bytes bytes(values.size() * dtype_size(dtype));
  store_f32(dtype, values, bytes.data());
  return tensor_of_rows(dtype, {2, 128}, n_tokens, bytes);
}

// What a session file of the demo model holds, as a cache with tensors of `dtype`.
cache::Cache cache_of(const LlamaStateFile& file, Dtype dtype) {
  cache::Cache cache;
  cache.identity.architecture = "qwen3";
  cache.tokens = file.words;
  const bool is_rotated = file.k[0].type == find_row_type("q8_0")->id;
  for (std::size_t i = 0; i < file.k.size(); ++i) {
    cache::AttentionLayer layer{{2, 128}, {}, {}};
    layer.k = tensor_of_values(dtype, file.n_cells, values_of(file.k[i], is_rotated ? 128 : 0));
    layer.v = tensor_of_values(dtype, file.n_cells, values_of(file.v[i], is_rotated ? 64 : 0));
    cache.layers.emplace_back(std::move(layer));
  }
  return cache;
}

TEST(LlamaExport, WritesTheSessionThatLlamaCppWrote) {
  const Bytes theirs = llama_fixture("alice_f16.ggsn");
  const cache::Cache cache = cache_of(take_apart(theirs), Dtype::kF16);
  EXPECT_EQ(cache.n_tokens(), 511);
  EXPECT_TRUE(exported(cache, demo_geometry()) == theirs);
}

TEST(LlamaExport, WritesTheSequenceThatLlamaCppWrote) {
  const Bytes session = llama_fixture("alice_f16.ggsn");
  const cache::Cache cache = cache_of(take_apart(session), Dtype::kF16);
  EXPECT_TRUE(exported(cache, demo_geometry(), {.kind = LlamaFile::kSequence, .version = 2}) ==
              llama_fixture("alice_f16.ggsq"));
}

// Blocks of 34 bytes that differ. Both files end with the last one, and all else has to be equal.
std::size_t differing_blocks(const Bytes& ours, const Bytes& theirs) {
  const LlamaStateFile file = take_apart(theirs);
  std::vector<bool> is_block(theirs.size());
  std::size_t n_different = 0;
  for (const auto* tensors : {&file.k, &file.v}) {
    for (const LlamaStateTensor& tensor : *tensors) {
      for (std::size_t at = tensor.at; at < tensor.at + tensor.data.size(); at += 34) {
        std::fill_n(is_block.begin() + static_cast<std::ptrdiff_t>(at), 34, true);
        n_different += std::memcmp(ours.data() + at, theirs.data() + at, 34) != 0;
      }
    }
  }
  for (std::size_t i = 0; i < theirs.size(); ++i) {
    EXPECT_TRUE(is_block[i] || ours[i] == theirs[i]) << "byte " << i;
  }
  return n_different;
}

// Rotated back and rotated again, f32 keeps every code of 65,408 blocks.
TEST(LlamaExport, WritesTheQuantizedSessionThatLlamaCppWrote) {
  const Bytes theirs = llama_fixture("alice_q8_0.ggsn");
  const cache::Cache cache = cache_of(take_apart(theirs), Dtype::kF32);
  const Bytes ours = exported(cache, demo_geometry(), {.k_type = "q8_0", .v_type = "q8_0"});
  ASSERT_EQ(ours.size(), theirs.size());
  EXPECT_EQ(differing_blocks(ours, theirs), 0u);
}

// A cache of f16 has rounded between the two rotations: 113 of the blocks are not the same.
TEST(LlamaExport, WritesNearlyTheSameQuantizedSessionFromF16) {
  const Bytes theirs = llama_fixture("alice_q8_0.ggsn");
  const cache::Cache cache = cache_of(take_apart(theirs), Dtype::kF16);
  const Bytes ours = exported(cache, demo_geometry(), {.k_type = "q8_0", .v_type = "q8_0"});
  ASSERT_EQ(ours.size(), theirs.size());
  EXPECT_LT(differing_blocks(ours, theirs), 200u);
}

cache::Cache two_layers(std::int64_t n_tokens = 300) {
  return CacheBuilder(n_tokens).dense({2, 64}).dense({3, 64}, Dtype::kF32).build();
}

TEST(LlamaExport, NamesItsKindAndVersion) {
  const cache::Cache cache = two_layers(3);
  struct Case {
    LlamaFile kind;
    std::uint32_t version, magic;
  };
  for (const Case& each :
       {Case{LlamaFile::kSession, 9, 0x6767736e}, Case{LlamaFile::kSession, 10, 0x6767736e},
        Case{LlamaFile::kSession, 11, 0x6767736e}, Case{LlamaFile::kSequence, 2, 0x67677371},
        Case{LlamaFile::kSequence, 3, 0x67677371}, Case{LlamaFile::kSequence, 4, 0x67677371}}) {
    const Bytes bytes =
        exported(cache, geometry_of(cache), {.kind = each.kind, .version = each.version});
    const LlamaStateFile file = take_apart(bytes);
    EXPECT_EQ(file.magic, each.magic);
    EXPECT_EQ(file.version, each.version);
    EXPECT_EQ(file.architecture, each.kind == LlamaFile::kSession ? "qwen3" : "");
    EXPECT_EQ(file.words, cache.tokens);
    EXPECT_EQ(file.n_streams, 1u);
    EXPECT_EQ(file.n_cells, 3u);
    EXPECT_EQ(file.n_layers, 2u);
    EXPECT_EQ(file.left, 0u);
  }
}

TEST(LlamaExport, HasOneCellAToken) {
  const cache::Cache cache = two_layers(5000);
  const Bytes bytes = exported(cache, geometry_of(cache));
  const std::vector<std::int32_t> cells = i32s(take_apart(bytes).cells);
  ASSERT_EQ(cells.size(), 5000u * kPositionWords);
  for (std::int32_t i = 0; i < 5000; ++i) {
    const auto at = cells.begin() + i * kPositionWords;
    EXPECT_THAT(std::vector<std::int32_t>(at, at + kPositionWords), testing::ElementsAre(i, 1, 0));
  }
}

TEST(LlamaExport, HasTwoMorePositionsForMRope) {
  const cache::Cache cache = two_layers(3);
  LlamaGeometry model = geometry_of(cache);
  model.has_positions_2d = true;
  const Bytes april = exported(cache, model);
  EXPECT_EQ(i32s(take_apart(april, 20).cells),
            (std::vector<std::int32_t>{0, 1, 0, 0, 0, 1, 1, 1, 1, 0, 2, 1, 2, 2, 0}));
  const std::vector<std::int32_t>& id = cache.tokens;
  for (const std::uint32_t version : {3u, 4u}) {
    const Bytes later = exported(cache, model, {.kind = LlamaFile::kSequence, .version = version});
    EXPECT_EQ(i32s(take_apart(later, 24).cells),
              (std::vector<std::int32_t>{0, 1, 0, 0, id[0], 0, 1, 1, 1, 1, id[1], 0, 2, 1, 2, 2,
                                         id[2], 0}));
  }
}

TEST(LlamaExport, HasTheNextTokenBehindTheOthers) {
  const cache::Cache cache = two_layers(3);
  std::vector<std::int32_t> expected = cache.tokens;
  expected.push_back(77);
  const Bytes bytes = exported(cache, geometry_of(cache), {.next_token = 77});
  EXPECT_EQ(take_apart(bytes).words, expected);
  EXPECT_EQ(take_apart(bytes).n_cells, 3u);
}

TEST(LlamaExport, WrapsTokensAsTheServerDoes) {
  const cache::Cache cache = two_layers(2);
  LlamaExport options{.kind = LlamaFile::kSequence, .version = 3, .server_tokens = true};
  const Bytes plain = exported(cache, geometry_of(cache), options);
  EXPECT_THAT(take_apart(plain).words,
              testing::ElementsAre(-1, 1, 2, cache.tokens[0], cache.tokens[1], 0));
  options.next_token = 5;
  const Bytes with_next = exported(cache, geometry_of(cache), options);
  EXPECT_THAT(take_apart(with_next).words,
              testing::ElementsAre(-1, 1, 3, cache.tokens[0], cache.tokens[1], 5, 0));
}

// Rows of all layers and of both sides, against what the cache holds.
void expect_rows(const cache::Cache& cache, const LlamaStateFile& file, const std::string& k_type,
                 const std::string& v_type, std::int64_t k_rotation, std::int64_t v_rotation) {
  for (std::size_t i = 0; i < cache.layers.size(); ++i) {
    const cache::AttentionLayer& layer = attention_of(cache, i);
    for (const bool is_keys : {true, false}) {
      const LlamaStateTensor& tensor = (is_keys ? file.k : file.v)[i];
      const auto& type = *find_row_type(is_keys ? k_type : v_type);
      std::vector<float> values =
          rows_of_tensor(is_keys ? layer.k : layer.v, layer.shape, cache.n_tokens());
      const std::int64_t rotation = is_keys ? k_rotation : v_rotation;
      if (rotation != 0) interop::hadamard(rotation, values);
      Bytes rows(interop::row_bytes(type, values.size()));
      interop::encode_row(type, values, rows);
      EXPECT_EQ(tensor.type, type.id);
      EXPECT_EQ(tensor.row_bytes * file.n_cells, rows.size());
      EXPECT_TRUE(std::ranges::equal(tensor.data, rows))
          << "layer " << i << (is_keys ? " k" : " v");
    }
  }
}

TEST(LlamaExport, WritesEveryRowType) {
  const cache::Cache cache = two_layers();
  for (const char* type :
       {"f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl"}) {
    const bool is_dense = find_row_type(type)->dense.has_value();
    const Bytes keys = exported(cache, geometry_of(cache), {.k_type = type});
    expect_rows(cache, take_apart(keys), type, "f16", is_dense ? 0 : 64, 0);
    const Bytes values = exported(cache, geometry_of(cache), {.v_type = type});
    expect_rows(cache, take_apart(values), "f16", type, 0, is_dense ? 0 : 64);
  }
}

TEST(LlamaExport, RotatesKeysAsWideAsItCan) {
  const cache::Cache cache = CacheBuilder(300).dense({1, 256}).dense({2, 256}).build();
  const LlamaExport options{.k_type = "q8_0", .v_type = "q4_1"};
  const Bytes bytes = exported(cache, geometry_of(cache), options);
  expect_rows(cache, take_apart(bytes), "q8_0", "q4_1", 256, 64);
}

TEST(LlamaExport, LeavesRotationOutWhenToldTo) {
  const cache::Cache cache = two_layers();
  const Bytes bytes =
      exported(cache, geometry_of(cache),
               {.k_type = "q8_0", .v_type = "q5_1", .rotation = LlamaRotation::kOff});
  expect_rows(cache, take_apart(bytes), "q8_0", "q5_1", 0, 0);
}

TEST(LlamaExport, DoesNotRotateWhatLlamaCppDoesNot) {
  const cache::Cache cache = CacheBuilder(300).dense({2, 96}).build();
  const LlamaExport options{.k_type = "q8_0", .v_type = "q8_0"};
  const Bytes bytes = exported(cache, geometry_of(cache), options);
  expect_rows(cache, take_apart(bytes), "q8_0", "q8_0", 0, 0);
}

TEST(LlamaExport, TellsTheRotationsInVersionsThatHaveThem) {
  struct Case {
    const char *k_type, *v_type;
    LlamaRotation rotation;
    std::uint32_t k, v;
  };
  const cache::Cache cache = CacheBuilder(3).dense({2, 128}).build();
  for (const Case& each : {Case{"q8_0", "q4_0", LlamaRotation::kOn, 128, 64},
                           Case{"q8_0", "q4_0", LlamaRotation::kOff, 0, 0},
                           Case{"f16", "q4_0", LlamaRotation::kOn, 0, 64},
                           Case{"f16", "bf16", LlamaRotation::kOn, 0, 0}}) {
    LlamaExport options{.version = 11, .k_type = each.k_type, .v_type = each.v_type};
    options.rotation = each.rotation;
    const Bytes bytes = exported(cache, geometry_of(cache), options);
    const LlamaStateFile file = take_apart(bytes);
    EXPECT_EQ(file.k_rotation, each.k);
    EXPECT_EQ(file.v_rotation, each.v);
    expect_rows(cache, file, each.k_type, each.v_type, each.k, each.v);
  }
}

TEST(LlamaExport, TransposesValuesWithoutFlashAttention) {
  const cache::Cache cache = two_layers();
  for (const char* type : {"f32", "f16", "bf16"}) {
    const Bytes bytes =
        exported(cache, geometry_of(cache), {.v_type = type, .flash_attention = false});
    const LlamaStateFile file = take_apart(bytes);
    EXPECT_EQ(file.is_transposed, 1u);
    EXPECT_EQ(file.left, 0u);
    for (std::size_t i = 0; i < 2; ++i) {
      const cache::AttentionLayer& layer = attention_of(cache, i);
      const std::vector<float> rows = rows_of_tensor(layer.v, layer.shape, 300);
      const std::size_t width = rows.size() / 300;
      EXPECT_EQ(file.v[i].type, find_row_type(type)->id);
      EXPECT_EQ(file.v[i].row_bytes, find_row_type(type)->block_bytes);
      EXPECT_EQ(file.v[i].width, width);
      std::vector<float> columns(rows.size());
      for (std::size_t at = 0; at < rows.size(); ++at) {
        columns[at % width * 300 + at / width] = rows[at];
      }
      Bytes expected(file.v[i].data.size());
      interop::encode_row(*find_row_type(type), columns, expected);
      EXPECT_TRUE(std::ranges::equal(file.v[i].data, expected)) << type << ", layer " << i;
    }
  }
}

// Of each head vector the first n_rot components change places, before anything else is done.
cache::Cache with_pairs_in_keys(cache::Cache cache, std::int64_t n_rot) {
  for (cache::Layer& any : cache.layers) {
    auto& layer = std::get<cache::AttentionLayer>(any);
    auto& tensor = std::get<cache::DenseTensor>(layer.k);
    const std::size_t size = dtype_size(tensor.dtype);
    const std::size_t head_bytes = static_cast<std::size_t>(layer.shape.head_dim) * size;
    for (AlignedBytes& block : tensor.blocks) {
      for (std::size_t at = 0; at < block.size(); at += head_bytes) {
        interop::to_interleaved(n_rot, size, std::span(block).subspan(at, head_bytes));
      }
    }
  }
  return cache;
}

TEST(LlamaExport, PutsPairsTensorByTensorWhereTheModelHasThem) {
  const cache::Cache cache = two_layers();
  LlamaGeometry model = geometry_of(cache);
  model.interleaved_keys = true;
  for (const std::int64_t n_rot : {std::int64_t{64}, std::int64_t{32}}) {
    model.n_rot = n_rot;
    const cache::Cache expected = with_pairs_in_keys(cache, n_rot);
    for (const char* type : {"f16", "f32", "q8_0"}) {
      const Bytes bytes = exported(cache, model, {.k_type = type});
      expect_rows(expected, take_apart(bytes), type, "f16",
                  std::string_view(type) == "q8_0" ? 64 : 0, 0);
    }
  }
}

TEST(LlamaExport, KeepsEveryBitOfWhatIsOfTheTypeAlready) {
  cache::Cache cache = CacheBuilder(2).dense({1, 32}, Dtype::kBF16).build();
  auto& tensor = std::get<cache::DenseTensor>(std::get<cache::AttentionLayer>(cache.layers[0]).k);
  const std::uint16_t signalling_nan = 0x7f81;
  std::memcpy(tensor.blocks[0].data() + 2, &signalling_nan, 2);
  const Bytes bytes = exported(cache, geometry_of(cache), {.k_type = "bf16"});
  EXPECT_EQ(number_at<std::uint16_t>(take_apart(bytes).k[0].data, 2), signalling_nan);
}

TEST(LlamaExport, DecodesWhatIsPacked) {
  const cache::Cache cache = CacheBuilder(600).turbo({2, 64}, 4, 3).build();
  const cache::AttentionLayer& layer = attention_of(cache, 0);
  const Bytes bytes = exported(cache, geometry_of(cache));
  const LlamaStateFile file = take_apart(bytes);
  for (const bool is_keys : {true, false}) {
    const std::vector<float> values = rows_of_tensor(is_keys ? layer.k : layer.v, layer.shape, 600);
    Bytes rows(values.size() * 2);
    store_f32(Dtype::kF16, values, rows.data());
    EXPECT_TRUE(std::ranges::equal((is_keys ? file.k : file.v)[0].data, rows)) << is_keys;
  }
}

TEST(LlamaExport, OfNoTokensHasNoCells) {
  const cache::Cache cache = two_layers(0);
  const Bytes bytes = exported(cache, geometry_of(cache), {.next_token = 9});
  const LlamaStateFile file = take_apart(bytes);
  EXPECT_THAT(file.words, testing::ElementsAre(9));
  EXPECT_EQ(file.n_streams, 1u);
  EXPECT_EQ(file.n_cells, 0u);
  EXPECT_EQ(file.left, 0u);
}

TEST(LlamaExport, TellsHowFarItIs) {
  const cache::Cache cache = two_layers(600);
  const TempDir dir;
  std::vector<std::uint64_t> seen;
  std::uint64_t whole = 0;
  must(interop::export_llama_state(*sections_of(cache), geometry_of(cache), dir / "a", {},
                                   [&](std::uint64_t done, std::uint64_t total) {
                                     seen.push_back(done);
                                     whole = total;
                                     return true;
                                   }));
  EXPECT_EQ(seen.size(), 2u * 2 * 3);
  EXPECT_TRUE(std::ranges::is_sorted(seen));
  EXPECT_EQ(seen.back(), whole);
  EXPECT_EQ(whole, 600u * 64 * 2 * (2 * 2 + 3 * 4));
}

}  // namespace llama_export_test
}  // namespace tqcache::test
