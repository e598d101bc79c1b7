// A cache in another program's file, section by section.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "support/cache_builder.h"
#include "support/matchers.h"
#include "support/temp_dir.h"
#include "tqcache/cache.h"
#include "tqcache/interop.h"
#include "tqcache/interop/foreign_cache.h"
#include "tqcache/model/loading/architecture.h"
#include "tqcache/reader.h"
#include "tqcache/tqkv.h"

namespace tqcache::test {
namespace foreign_test {

using interop::ForeignCache;
using interop::reader_of;
using testing::HasSubstr;

const MemoryBudget kEnough = MemoryBudget().at_most(1 << 24);

// Bytes that tell where they come from.
interop::ReadRows rows_of(std::uint8_t name, std::size_t row_bytes, std::int64_t n_kv_heads) {
  return [=](std::int64_t first, std::int64_t n, std::span<std::byte> out) -> Result<void> {
    EXPECT_EQ(out.size(), row_bytes * static_cast<std::size_t>(n * n_kv_heads));
    for (std::size_t i = 0; i < out.size(); ++i) {
      const auto token =
          static_cast<std::size_t>(first) + i / row_bytes % static_cast<std::size_t>(n);
      out[i] = static_cast<std::byte>(i % 2 == 0 ? name : token % 64);
    }
    return {};
  };
}

ForeignCache two_layers(std::int64_t n_tokens) {
  ForeignCache cache;
  cache.n_tokens = n_tokens;
  cache.identity.source_format = "test";
  cache.layers.push_back(interop::attention_layer({2, 4}, {{Dtype::kF16, {}}, rows_of(1, 8, 2)},
                                                  {{Dtype::kBF16, {}}, rows_of(2, 8, 2)}));
  cache.layers.push_back(
      interop::state_layer({{{"state", Dtype::kF32, {3}}, [](std::span<std::byte> out) {
                               std::memset(out.data(), 0, out.size());
                               return Result<void>();
                             }}}));
  return cache;
}

cache::Cache loaded(ForeignCache foreign) {
  const auto sections = must(reader_of(std::move(foreign)));
  return must(cache::load(*sections, {kEnough}));
}

TEST(ForeignCache, IsACacheWithItsValuesWhereTheyBelong) {
  const cache::Cache cache = loaded(two_layers(300));
  EXPECT_EQ(cache.n_tokens(), 300);
  ASSERT_TRUE(cache.hidden_tokens);
  EXPECT_TRUE(cache.hidden_tokens->empty());
  const auto& layer = std::get<cache::AttentionLayer>(cache.layers[0]);
  EXPECT_EQ(cache::dense_dtype(layer.k), Dtype::kF16);
  EXPECT_EQ(cache::dense_dtype(layer.v), Dtype::kBF16);
  for (const auto& [tensor, name] : {std::pair(&layer.k, 1), std::pair(&layer.v, 2)}) {
    std::vector<float> rows(44 * 4);
    cache::read_block(*tensor, layer.shape, 300, 1, 1, rows);
    std::vector<std::byte> bytes(rows.size() * 2);
    store_f32(cache::dense_dtype(*tensor), rows, bytes.data());
    EXPECT_EQ(bytes[0], std::byte(name));
    EXPECT_EQ(bytes[8 * 43 + 1], std::byte(299 % 64));
  }
  const auto& arrays = std::get<cache::StateLayer>(cache.layers[1]);
  EXPECT_EQ(arrays.arrays[0].data.size(), 12u);
}

TEST(ForeignCache, RefusesValuesThatAreNotFinite) {
  ForeignCache foreign = two_layers(300);
  interop::ReadRows& values = foreign.layers[0].read_v;
  values = [good = values](std::int64_t first, std::int64_t n, std::span<std::byte> out) {
    auto read = good(first, n, out);
    if (first == 256) out[8 * (44 + 10) + 1] = std::byte{0x7f};  // kv head 1, token 266: 0x7f02
    if (first == 256) out[8 * (44 + 10)] = std::byte{0x80};
    return read;
  };
  EXPECT_THAT(cache::load(*must(reader_of(std::move(foreign))), {kEnough}),
              test::FailsWith(ErrorCode::kCorrupt,
                              HasSubstr("layer 0 v: kv head 1 token 266: a value is not finite")));
}

// transformers and mlx-lm have these keys in pairs.
TEST(ForeignCache, OfGlm4IsNotExportedToPythonsPrograms) {
  const TempDir dir;
  ForeignCache foreign = two_layers(3);
  foreign.identity.architecture = "glm4";
  const auto reader = must(reader_of(std::move(foreign)));
  EXPECT_THAT(interop::export_hf(*reader, dir / "a.safetensors", Overwrite::kRefuse),
              test::FailsWith(ErrorCode::kUnsupported, HasSubstr("keys of GLM-4")));
  const auto mlx = interop::export_mlx_lm(*reader, dir / "a.safetensors", {}, {});
  ASSERT_FALSE(mlx);
  EXPECT_EQ(mlx.error().code, ErrorCode::kUnsupported);
  EXPECT_FALSE(std::filesystem::exists(dir / "a.safetensors"));
  EXPECT_TRUE(interop::check_key_order("granite").ok());
  // Other families in pairs go through as they came, but not from the decoder's order to theirs.
  for (const char* architecture : {"chatglm", "ernie4_5", "command-r", "cohere2", "helium"}) {
    EXPECT_FALSE(interop::check_key_order(architecture).ok());
    EXPECT_FALSE(interop::check_key_order(architecture, "tqcache").ok());
    EXPECT_FALSE(interop::check_key_order(architecture, "llama.cpp").ok());
    EXPECT_TRUE(interop::check_key_order(architecture, "transformers 5.23").ok());
    EXPECT_TRUE(interop::check_key_order(architecture, "mlx-lm").ok());
  }
  EXPECT_FALSE(interop::check_key_order("glm4", "transformers").ok());
}

// The decoder's table of families, the importers and the Python package have to agree on whose keys
// are in pairs: a family that one of them forgets would be continued with keys in the wrong order.
TEST(ForeignCache, KeysInPairsAreThoseOfTheDecodersTable) {
  const std::filesystem::path data = TQCACHE_TEST_DATA;
  std::ifstream python(data / "../../python/src/tqcache/__init__.py");
  std::string listed;  // KEYS_IN_PAIRS = frozenset({"glm4", ...})
  while (std::getline(python, listed) && !listed.starts_with("KEYS_IN_PAIRS = ")) {
  }
  ASSERT_NE(listed, "");
  int n_in_pairs = 0;
  for (const auto& family : std::filesystem::directory_iterator(data / "architectures")) {
    std::ifstream file(family.path() / "config.json");
    const auto config = nlohmann::json::parse(file);
    // Of models that see images, the text's.
    const std::string type = config.value("text_config", config).at("model_type");
    const auto found = model::find_hf_architecture(type);
    ASSERT_TRUE(found) << type;
    const bool in_pairs = (*found)->permuted_hf;
    n_in_pairs += in_pairs ? 1 : 0;
    EXPECT_EQ(interop::check_key_order(std::string((*found)->word)).ok(), !in_pairs) << type;
    EXPECT_EQ(listed.find('"' + type + '"') != listed.npos, in_pairs) << type;
  }
  EXPECT_GE(n_in_pairs, 6);
}

TEST(ForeignCache, TurnedPartsOfDeepSeekV3AreInHalvesInTransformersAlone) {
  const cache::Rope neighbors = {cache::RopeStyle::kInterleaved, 0, 0};
  cache::Identity file, decoder;
  file.architecture = decoder.architecture = "deepseek_v3";
  decoder.rope = neighbors;
  EXPECT_TRUE(interop::has_halves_in_v(file, decoder));
  EXPECT_FALSE(interop::has_halves_in_v(decoder, decoder));
  file.architecture = "deepseek_v2";
  EXPECT_FALSE(interop::has_halves_in_v(file, decoder));
  file.architecture = "";
  EXPECT_TRUE(interop::has_halves_in_v(file, decoder));
  EXPECT_TRUE(interop::wants_halves_in_v(decoder).value());
  EXPECT_FALSE(interop::wants_halves_in_v(file).value());
  decoder.architecture = "deepseek_v2";
  EXPECT_FALSE(interop::wants_halves_in_v(decoder).value());
  decoder.architecture = "deepseek2";
  EXPECT_EQ(interop::wants_halves_in_v(decoder).error().code, ErrorCode::kUnsupported);

  std::array<std::uint16_t, 12> rows = {0, 1, 2, 3, 4, 5, 10, 11, 12, 13, 14, 15};
  const auto before = rows;
  const auto bytes = std::as_writable_bytes(std::span(rows));
  interop::halves_to_neighbors(6, 2, bytes);
  EXPECT_EQ(rows, (std::array<std::uint16_t, 12>{0, 3, 1, 4, 2, 5, 10, 13, 11, 14, 12, 15}));
  interop::neighbors_to_halves(6, 2, bytes);
  EXPECT_EQ(rows, before);
}

TEST(ForeignCache, HasItsTokensWhenTheyAreKnown) {
  ForeignCache foreign = two_layers(3);
  foreign.tokens = {{7, 8, 9}};
  const cache::Cache cache = loaded(std::move(foreign));
  EXPECT_EQ(cache.tokens, (std::vector<std::int32_t>{7, 8, 9}));
  EXPECT_FALSE(cache.hidden_tokens);
}

TEST(ForeignCache, IsRefusedWhenItContradictsItself) {
  const auto refused = [](ErrorCode code, const std::string& message, auto change) {
    ForeignCache foreign = two_layers(3);
    change(foreign);
    EXPECT_THAT(reader_of(std::move(foreign)), test::FailsWith(code, HasSubstr(message)));
  };
  refused(ErrorCode::kCorrupt, "2 token ids for 3 tokens", [](auto& c) { c.tokens = {{1, 2}}; });
  refused(ErrorCode::kCorrupt, "token", [](auto& c) { c.tokens = {{1, 2, -3}}; });
  refused(ErrorCode::kTooLarge, "16777217 tokens", [](auto& c) { c.n_tokens = 16777217; });
  refused(ErrorCode::kTooLarge, "-1 tokens", [](auto& c) { c.n_tokens = -1; });
  refused(ErrorCode::kCorrupt, "layer 0", [](auto& c) {
    std::get<cache::AttentionDesc>(c.layers[0].description).shape.head_dim = 0;
  });
  refused(ErrorCode::kTooLarge, "layer 1", [](auto& c) {
    c.layers[1] = interop::state_layer({{{"state", Dtype::kF32, {std::uint64_t{1} << 60}}, {}}});
  });
  refused(ErrorCode::kTooLarge, "layers", [](auto& c) { c.layers.resize(1025, c.layers[1]); });
}

// Keys of mode mse, whose blocks are all of one byte.
ForeignCache with_packed_keys(std::int64_t n_tokens) {
  ForeignCache cache;
  cache.n_tokens = n_tokens;
  interop::ForeignTensor k{{Dtype::kF32, {}}, rows_of(1, 128, 1)};
  k.description.quant = cache::QuantSpec{
      .mode = codec::Mode::kMse, .parts = must(codec::make_parts({.head_dim = 32, .bits = 2}))};
  k.read_packed = [](std::int64_t block, std::span<std::byte> out) -> Result<void> {
    std::memset(out.data(), static_cast<int>(block) + 1, out.size());
    return {};
  };
  cache.layers.push_back(
      interop::attention_layer({1, 32}, std::move(k), {{Dtype::kF16, {}}, rows_of(2, 64, 1)}));
  return cache;
}

TEST(ForeignCache, PacksTheFullBlocksOfATensorThatHasAPackedForm) {
  for (const std::int64_t n_tokens : {0, 255, 256, 257, 512, 600}) {
    const cache::Cache cache = loaded(with_packed_keys(n_tokens));
    const auto& layer = std::get<cache::AttentionLayer>(cache.layers[0]);
    const auto& k = std::get<cache::TurboTensor>(layer.k);
    ASSERT_EQ(std::ssize(k.packed), n_tokens / 256);
    EXPECT_EQ(std::ssize(k.tail.blocks), n_tokens % 256 == 0 ? 0 : 1);
    EXPECT_EQ(k.tail.dtype, Dtype::kF32);
    for (std::size_t i = 0; i < k.packed.size(); ++i) {
      EXPECT_EQ(k.packed[i].bytes.view()[100], std::byte(i + 1));
    }
    EXPECT_TRUE(std::holds_alternative<cache::DenseTensor>(layer.v));
  }
}

TEST(ForeignCache, RefusesPackedFormsThatOurCodecHasNot) {
  ForeignCache foreign = with_packed_keys(256);
  std::get<cache::AttentionDesc>(foreign.layers[0].description).k.quant->parts[0].first = 1;
  const auto sections = reader_of(std::move(foreign));
  ASSERT_FALSE(sections.ok());
  EXPECT_THAT(sections.error().message, HasSubstr("layer 0: k: part 0"));
}

TEST(ForeignCache, TellsWhereItCouldNotBeRead) {
  ForeignCache foreign = two_layers(3);
  foreign.layers[0].read_v = [](std::int64_t, std::int64_t, std::span<std::byte>) -> Result<void> {
    return Error{ErrorCode::kTruncated, "cut"};
  };
  const auto sections = must(reader_of(std::move(foreign)));
  EXPECT_THAT(cache::load(*sections, {kEnough}),
              test::FailsWith(ErrorCode::kTruncated, "layer 0 v: cut"));
}

TEST(MemorySections, AreTheCache) {
  const auto cache = std::make_shared<const cache::Cache>(CacheBuilder(300)
                                                              .turbo({1, 32}, 4, 3)
                                                              .dense({2, 4})
                                                              .arrays()
                                                              .rotating({{1, 4}, 8, 1})
                                                              .build());
  const auto sections = reader_of(cache);
  EXPECT_EQ(difference(must(cache::load(*sections, {kEnough})), *cache), "");
}

TEST(LoadSections, KeepsToTheMemoryThatIsAllowedAndStopsWhenAsked) {
  const auto cache = std::make_shared<const cache::Cache>(CacheBuilder(300).dense({2, 4}).build());
  const auto sections = reader_of(cache);
  const auto too_large = cache::load(*sections, {.memory = MemoryBudget().at_most(1000)});
  ASSERT_FALSE(too_large.ok());
  EXPECT_EQ(too_large.error().code, ErrorCode::kTooLarge);
  int n_calls = 0;
  const auto stopped = cache::load(*sections, {kEnough},
                                   [&](std::uint64_t, std::uint64_t) { return ++n_calls < 2; });
  ASSERT_FALSE(stopped.ok());
  EXPECT_EQ(stopped.error().code, ErrorCode::kInterrupted);
  EXPECT_EQ(n_calls, 2);
}

}  // namespace foreign_test
}  // namespace tqcache::test
