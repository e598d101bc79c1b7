#include "tqcache/interop/hf/hf.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "interop/damage.h"
#include "interop/foreign_cache_reading.h"
#include "support/cache_builder.h"
#include "support/failing_source.h"
#include "support/long_tests.h"
#include "support/temp_dir.h"
#include "tqcache/base/half.h"
#include "tqcache/interop/hf/hf_schema.h"
#include "tqcache/interop/whole_tensors.h"
#include "tqcache/reader.h"

namespace tqcache::interop {
namespace hf_test {

using test::CacheBuilder;
using test::TempDir;

std::shared_ptr<const ByteSource> source_of(Bytes bytes) { return memory_source(std::move(bytes)); }

ErrorCode import_error(Bytes bytes) {
  auto foreign = import_hf(source_of(std::move(bytes)));
  if (!foreign) return foreign.error().code;
  const auto sections = reader_of(std::move(foreign).value());
  return sections ? ErrorCode::kBusy : sections.error().code;
}

std::string import_message(const Bytes& bytes) {
  const auto foreign = import_hf(source_of(bytes));
  return foreign ? "" : foreign.error().message;
}

cache::Cache import_cache(Bytes bytes) {
  return test::must(test::read_foreign(test::must(import_hf(source_of(std::move(bytes))))));
}

Bytes export_cache(cache::Cache cache) {
  const TempDir folder;
  test::must(export_hf(*test::sections_of(std::move(cache)), folder / "cache.safetensors",
                       Overwrite::kRefuse));
  return test::read_all(folder / "cache.safetensors");
}

Result<void> try_export(cache::Cache cache) {
  const TempDir folder;
  auto done = export_hf(*test::sections_of(std::move(cache)), folder / "x", Overwrite::kRefuse);
  EXPECT_EQ(folder.entry_count(), done ? 1u : 0u);
  return done;
}

// A cache as the schema gives it back: of an architecture, and nothing else of an identity.
cache::Cache as_imported(cache::Cache cache) {
  cache::Identity identity;
  identity.architecture = cache.identity.architecture;
  identity.source_format = "transformers";
  cache.identity = identity;
  return cache;
}

cache::NamedArray state(std::string name, Dtype dtype, std::vector<std::uint64_t> shape) {
  std::uint64_t count = 1;
  for (const std::uint64_t n : shape) count *= n;
  cache::NamedArray array{std::move(name), dtype, std::move(shape),
                          AlignedBytes(count * dtype_size(dtype))};
  for (std::size_t i = 0; i < array.data.size(); ++i) array.data[i] = std::byte(i * 37 + 11);
  return array;
}

cache::Cache hybrid_cache() {
  cache::Cache cache = CacheBuilder(300)
                           .dense({2, 32}, Dtype::kBF16)
                           .rotating({{2, 32}, 63, 0}, Dtype::kBF16, Dtype::kF32)
                           .dense({1, 8}, Dtype::kF32)
                           .build();
  cache::StateLayer linear;
  linear.arrays.push_back(state("conv_states.0", Dtype::kBF16, {1, 5, 3}));
  linear.arrays.push_back(state("recurrent_states.0", Dtype::kF32, {1, 2, 3, 4}));
  cache.layers.emplace_back(std::move(linear));
  cache.layers.emplace_back(cache::StateLayer{});
  return cache;
}

// A safetensors file with the tensors and metadata given, values counting up.
struct File {
  std::vector<tensors::NewTensor> tensors = {{"tokens", "I64", {2}},
                                             {"model.layers.0.key", "F16", {1, 1, 2, 4}},
                                             {"model.layers.0.value", "F16", {1, 1, 2, 4}}};
  std::map<std::string, std::string> metadata = {
      {"format", "tqcache-hf-1"}, {"n_tokens", "2"}, {"layer_types", R"(["full_attention"])"}};

  Bytes bytes() const {
    Bytes file = tensors::make_safetensors_header(tensors, metadata);
    for (const auto& tensor : tensors) {
      std::size_t size = tensor.type_name == "I64" || tensor.type_name == "F64" ? 8
                         : tensor.type_name == "F32"                            ? 4
                         : tensor.type_name.starts_with("F8")                   ? 1
                                                                                : 2;
      for (const std::uint64_t n : tensor.shape) size *= n;
      for (std::size_t i = 0; i < size; ++i) {
        file.push_back(tensor.type_name == "I64" ? std::byte(i % 8 == 0 ? i : 0) : std::byte(i));
      }
    }
    return file;
  }
};

TEST(Hf, ReadsAHandMadeFile) {
  const cache::Cache cache = import_cache(File().bytes());
  EXPECT_EQ(cache.tokens, (std::vector<std::int32_t>{0, 8}));
  ASSERT_EQ(cache.layers.size(), 1u);
  const auto& layer = std::get<cache::AttentionLayer>(cache.layers[0]);
  EXPECT_EQ(layer.shape, (cache::HeadShape{1, 4}));
  const auto& k = std::get<cache::DenseTensor>(layer.k);
  EXPECT_EQ(k.blocks[0][9], std::byte{9});
  EXPECT_EQ(cache.identity.source_format, "transformers");
}

TEST(Hf, ReadsWhatTheScriptWrote) {
  const cache::Cache cache =
      import_cache(test::read_all(TQCACHE_TEST_DATA "/interop/transformers.safetensors"));
  EXPECT_EQ(cache.tokens, (std::vector<std::int32_t>{0, 3, 6, 9, 12, 15, 18, 21, 24}));
  ASSERT_EQ(cache.layers.size(), 4u);
  // Values count up: of head 1, token 8, component 3 it is 71.
  const auto& full = std::get<cache::AttentionLayer>(cache.layers[0]);
  const auto& v = std::get<cache::DenseTensor>(full.v);
  EXPECT_EQ(v.dtype, Dtype::kBF16);
  EXPECT_EQ(bf16_to_f32(number_at<std::uint16_t>(v.blocks[0], 2 * ((256 + 8) * 4 + 3))), -71.0f);
  // Of a window of 5, which has the token to come in it, tokens 5 to 8.
  const auto& sliding = std::get<cache::WindowLayer>(cache.layers[1]);
  EXPECT_EQ(sliding.window, (cache::Window{4, 0}));
  EXPECT_EQ(sliding.attention.shape, (cache::HeadShape{2, 4}));
  const AlignedBytes keys = cache::gather_window(sliding, sliding.attention.k, cache.n_tokens());
  EXPECT_EQ(f16_to_f32(number_at<std::uint16_t>(keys, 0)), 20.0f);
  const auto& linear = std::get<cache::StateLayer>(cache.layers[2]).arrays;
  ASSERT_EQ(linear.size(), 2u);
  EXPECT_EQ(linear[0].name, "conv_states.0");
  EXPECT_EQ(linear[1].shape, (std::vector<std::uint64_t>{1, 2, 2, 2}));
  EXPECT_EQ(number_at<float>(linear[1].data, 28), 7.0f);
  EXPECT_TRUE(std::get<cache::StateLayer>(cache.layers[3]).arrays.empty());
}

TEST(Hf, ReadsTensorsWithoutABatchAndTokensWithOne) {
  File file;
  const Bytes with_batch = file.bytes();
  file.tensors[0].shape = {1, 2};
  file.tensors[1].shape = {1, 2, 4};
  EXPECT_EQ(test::difference(import_cache(file.bytes()), import_cache(with_batch)), "");
}

TEST(Hf, ReadsAFileWithoutTokens) {
  File file;
  file.tensors.erase(file.tensors.begin());
  const cache::Cache cache = import_cache(file.bytes());
  EXPECT_EQ(cache.tokens, (std::vector<std::int32_t>{-1, -1}));
  EXPECT_TRUE(cache.hidden_tokens && cache.hidden_tokens->empty());
}

TEST(Hf, TellsWhatTheFileSaysOfItselfAndWhatIsLost) {
  File file;
  file.metadata["transformers_version"] = "5.1.0";
  file.metadata["model_type"] = "qwen3";
  file.metadata["config"] = "{}";
  const ForeignCache cache = test::must(import_hf(source_of(file.bytes())));
  EXPECT_EQ(cache.identity.architecture, "qwen3");
  ASSERT_EQ(cache.metadata.size(), 3u);
  EXPECT_EQ(cache.metadata[1].second, "5.1.0");
  EXPECT_EQ(cache.dropped_fields.size(), 1u);
  file.metadata["model_type"] = "qwen\n3";
  EXPECT_EQ(test::must(import_hf(source_of(file.bytes()))).identity.architecture, "");
}

TEST(Hf, RoundTripKeepsEveryBit) {
  EXPECT_EQ(
      test::difference(import_cache(export_cache(hybrid_cache())), as_imported(hybrid_cache())),
      "");
}

TEST(Hf, RoundTripOfCachesOfEverySize) {
  for (const std::int64_t n : {0, 1, 62, 63, 64, 255, 256, 257, 600}) {
    const auto make = [&] {
      return CacheBuilder(n).dense({3, 16}).rotating({{2, 8}, 63, 0}).build();
    };
    EXPECT_EQ(test::difference(import_cache(export_cache(make())), as_imported(make())), "") << n;
  }
}

TEST(Hf, HiddenTokensAreLeftOut) {
  cache::Cache cache = CacheBuilder(300).dense({1, 16}).hide_tokens().build();
  const cache::Cache back = import_cache(export_cache(cache));
  EXPECT_EQ(back.tokens, cache.tokens);
  EXPECT_TRUE(back.hidden_tokens->empty());
}

TEST(Hf, TurboTensorsAreDecoded) {
  const auto make = [] { return CacheBuilder(600).turbo({2, 64}, 4, 3, Dtype::kBF16).build(); };
  const auto packed = test::sections_of(make());
  const auto dense = test::must(cache::dequantize(packed));
  const cache::Cache expected = test::must(test::read_sections(*dense));
  EXPECT_EQ(test::difference(import_cache(export_cache(make())), as_imported(expected)), "");
}

TEST(Hf, TensorsStandAtMultiplesOfTheirValuesSize) {
  const auto file = source_of(export_cache(hybrid_cache()));
  const auto index = test::must(tensors::index_safetensors(*file));
  EXPECT_TRUE(is_hf(index));
  for (const auto& [name, place] : index.tensors) {
    const std::uint64_t size = place.type_name == "I64" ? 8 : place.type_name == "F32" ? 4 : 2;
    EXPECT_EQ(place.offset % size, 0u) << name;
  }
}

TEST(Hf, WritesNamesShapesAndMetadataAsTheSchemaSays) {
  const auto index =
      test::must(tensors::index_safetensors(*source_of(export_cache(hybrid_cache()))));
  EXPECT_EQ(index.metadata.at("n_tokens"), "300");
  EXPECT_EQ(
      index.metadata.at("layer_types"),
      R"(["full_attention","sliding_attention","full_attention","linear_attention","dummy"])");
  EXPECT_EQ(index.metadata.at("sliding_window"), "[null,64,null,null,null]");
  EXPECT_EQ(index.metadata.at("model_type"), "qwen3");
  using Shape = std::vector<std::uint64_t>;
  EXPECT_EQ(index.tensors.at("model.layers.0.key").shape, (Shape{1, 2, 300, 32}));
  EXPECT_EQ(index.tensors.at("model.layers.1.value").shape, (Shape{1, 2, 63, 32}));
  EXPECT_EQ(index.tensors.at("model.layers.1.value").type_name, "F32");
  EXPECT_EQ(index.tensors.at("model.layers.3.conv_states.0").shape, (Shape{1, 5, 3}));
  EXPECT_EQ(index.tensors.at("tokens").shape, (Shape{300}));
}

// DeepSeek V3 keeps the latent of a token as its key, and the rotated part as its value.
TEST(Hf, KeysAndValuesMayHaveDifferentSizes) {
  const cache::Cache cache = CacheBuilder(300)
                                 .unequal({1, 512}, 64, Dtype::kBF16, 16, Dtype::kBF16, 16)
                                 .rotating({{2, 6}, 63, 0, 4}, Dtype::kBF16, Dtype::kF32)
                                 .build();
  const Bytes file = export_cache(cache);
  const auto index = test::must(tensors::index_safetensors(*source_of(file)));
  using Shape = std::vector<std::uint64_t>;
  EXPECT_EQ(index.tensors.at("model.layers.0.key").shape, (Shape{1, 1, 300, 512}));
  EXPECT_EQ(index.tensors.at("model.layers.0.value").shape, (Shape{1, 1, 300, 64}));
  EXPECT_EQ(index.tensors.at("model.layers.1.value").shape, (Shape{1, 2, 63, 4}));
  EXPECT_EQ(test::difference(import_cache(file), as_imported(cache)), "");
}

// Recurrent state beside attention: Falcon-H1. The cache has two layers for each.
TEST(Hf, HybridLayersAreTwoAndGoBackAsOne) {
  cache::Cache cache =
      CacheBuilder(300).dense({2, 32}).rotating({{2, 32}, 63, 0}).dense({1, 8}).build();
  cache::StateLayer states;
  states.arrays.push_back(state("conv_states.0", Dtype::kBF16, {1, 5, 3}));
  states.arrays.push_back(state("recurrent_states.0", Dtype::kF32, {1, 2, 3, 4}));
  cache.layers.insert(cache.layers.begin(), states);
  cache.layers.insert(cache.layers.begin() + 2, states);
  cache.identity.source_format = "transformers";
  cache.identity.source_layout = "hybrid,hybrid_sliding,full_attention";
  const Bytes file = export_cache(cache);
  const auto index = test::must(tensors::index_safetensors(*source_of(file)));
  EXPECT_EQ(index.metadata.at("layer_types"), R"(["hybrid","hybrid_sliding","full_attention"])");
  EXPECT_EQ(index.metadata.at("sliding_window"), "[null,64,null]");
  EXPECT_TRUE(index.tensors.contains("model.layers.1.recurrent_states.0"));
  EXPECT_TRUE(index.tensors.contains("model.layers.1.key"));
  const cache::Cache again = import_cache(file);
  EXPECT_EQ(again.identity.source_layout, "hybrid,hybrid_sliding,full_attention");
  cache::Cache expected = as_imported(cache);
  expected.identity.source_layout = again.identity.source_layout;
  EXPECT_EQ(test::difference(again, expected), "");
  EXPECT_EQ(export_cache(again), file);
}

TEST(Hf, ALayoutOfOtherLayersIsNotWritten) {
  cache::Cache cache = hybrid_cache();
  cache.identity.source_format = "transformers";
  for (const char* layout : {"hybrid*3", "hybrid,hybrid,dummy", "full_attention*5,hybrid",
                             "hybrid*0", "*3", "hybrid*99999999", "full_attention*4"}) {
    cache.identity.source_layout = layout;
    EXPECT_EQ(try_export(cache).error().code, ErrorCode::kCorrupt) << layout;
  }
  cache.identity.source_layout = "CacheList(ArraysCache,KVCache)*2";  // mlx-lm's is another text
  cache.identity.source_format = "mlx-lm";
  EXPECT_TRUE(try_export(cache));
}

TEST(Hf, LayoutsOfHybridLayersAreShort) {
  const std::vector<std::string> types = {"hybrid", "hybrid", "dummy", "hybrid"};
  EXPECT_EQ(format_hf_types(types), "hybrid*2,dummy,hybrid");
  EXPECT_EQ(parse_hf_types("hybrid*2,dummy,hybrid", 4), types);
  EXPECT_EQ(parse_hf_types("hybrid*2,dummy,hybrid", 3), std::nullopt);
  for (const char* text : {"", ",", "hybrid,", "hybrid*", "hybrid*-1", "hybrid*02", "*2"}) {
    EXPECT_EQ(parse_hf_types(text, 100), std::nullopt) << text;
  }
}

TEST(Hf, AHybridLayerHasBothParts) {
  File file;
  file.metadata["layer_types"] = R"(["hybrid"])";
  EXPECT_EQ(import_message(file.bytes()), "layer 0: a linear-attention layer without a state");
  file.tensors = {{"tokens", "I64", {2}}, {"model.layers.0.conv_states.0", "F16", {1, 2}}};
  EXPECT_EQ(import_message(file.bytes()), "layer 0: tensor \"model.layers.0.key\": missing");
}

// Every number of 8 bits is one of f16; the values are those of the definition of the formats.
TEST(Hf, NumbersOfEightBitsAreReadExactly) {
  EXPECT_EQ(f16_to_f32(f8_e4m3_to_f16(0x00)), 0.0f);
  EXPECT_EQ(f8_e4m3_to_f16(0x80), 0x8000);
  for (unsigned bits = 0; bits < 256; ++bits) {
    const unsigned exponent = bits >> 3 & 15, fraction = bits & 7;
    const float e4m3 = f16_to_f32(f8_e4m3_to_f16(static_cast<std::uint8_t>(bits)));
    if (exponent == 15 && fraction == 7) {
      EXPECT_TRUE(std::isnan(e4m3));
    } else {
      const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(fraction), -9)
                                            : std::ldexp(static_cast<float>(8 + fraction),
                                                         static_cast<int>(exponent) - 10);
      EXPECT_EQ(e4m3, bits < 128 ? magnitude : -magnitude) << bits;
    }
    const unsigned wide = bits >> 2 & 31, two = bits & 3;
    const float e5m2 = f16_to_f32(f8_e5m2_to_f16(static_cast<std::uint8_t>(bits)));
    if (wide == 31) {
      EXPECT_FALSE(std::isfinite(e5m2));
    } else {
      const float magnitude =
          wide == 0 ? std::ldexp(static_cast<float>(two), -16)
                    : std::ldexp(static_cast<float>(4 + two), static_cast<int>(wide) - 17);
      EXPECT_EQ(e5m2, bits < 128 ? magnitude : -magnitude) << bits;
    }
  }
}

TEST(Hf, KeysAndValuesOfEightBitsBecomeF16) {
  File file;
  file.tensors = {{"tokens", "I64", {2}},
                  {"model.layers.0.key", "F8_E4M3", {1, 1, 2, 4}},
                  {"model.layers.0.value", "F8_E5M2", {1, 1, 2, 4}}};
  const auto foreign = test::must(import_hf(source_of(file.bytes())));
  EXPECT_EQ(foreign.dropped_fields.size(), 1u);
  const cache::Cache cache = import_cache(file.bytes());
  const auto& layer = std::get<cache::AttentionLayer>(cache.layers[0]);
  EXPECT_EQ(cache::dense_dtype(layer.k), Dtype::kF16);
  std::vector<float> keys(8), values(8);
  cache::read_block(layer.k, layer.shape, 2, 0, 0, keys);
  cache::read_block(layer.v, layer.shape, 2, 0, 0, values);
  for (std::size_t i = 0; i < keys.size(); ++i) {  // the bytes count up
    const auto bits = static_cast<std::uint8_t>(i);
    EXPECT_EQ(keys[i], f16_to_f32(f8_e4m3_to_f16(bits)));
    EXPECT_EQ(values[i], f16_to_f32(f8_e5m2_to_f16(bits)));
  }
  file.tensors[1].type_name = "F8_E4M3FNUZ";
  EXPECT_EQ(import_error(file.bytes()), ErrorCode::kUnsupported);
}

TEST(Hf, ExportRefusesWhatTransformersHasNoPlaceFor) {
  EXPECT_EQ(try_export(CacheBuilder(10).arrays().build()).error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(try_export(CacheBuilder(10).rotating({{1, 8}, 6, 2}).build()).error().code,
            ErrorCode::kUnsupported);
  cache::Cache twice = hybrid_cache();
  auto& arrays = std::get<cache::StateLayer>(twice.layers[3]).arrays;
  arrays.push_back(arrays[0]);
  EXPECT_EQ(try_export(std::move(twice)).error().message,
            "layer 3: array \"conv_states.0\": there twice");
}

TEST(Hf, ExportRefusesAFileThatExists) {
  const TempDir folder;
  test::write_all(folder / "x", "old");
  const auto cache = test::sections_of(hybrid_cache());
  EXPECT_EQ(export_hf(*cache, folder / "x", Overwrite::kRefuse).error().code,
            ErrorCode::kInvalidArgument);
  EXPECT_TRUE(export_hf(*cache, folder / "x", Overwrite::kAllow).ok());
}

TEST(Hf, ExportCountsAllBytesAndCanBeStopped) {
  const TempDir folder;
  const auto cache = test::sections_of(hybrid_cache());
  std::uint64_t last = 0, all = 0;
  const Progress count = [&](std::uint64_t done, std::uint64_t total) {
    last = done;
    all = total;
    return true;
  };
  test::must(export_hf(*cache, folder / "a", Overwrite::kRefuse, count));
  EXPECT_GT(all, 0u);
  EXPECT_EQ(last, all);
  const Progress stop = [](std::uint64_t, std::uint64_t) { return false; };
  EXPECT_EQ(export_hf(*cache, folder / "b", Overwrite::kRefuse, stop).error().code,
            ErrorCode::kInterrupted);
  EXPECT_EQ(folder.entry_count(), 1u);
}

TEST(Hf, AnArchitectureThatIsNoPlainTextIsNotWritten) {
  cache::Cache cache = CacheBuilder(3).dense({1, 8}).build();
  cache.identity.architecture = "\xff\xfe";
  EXPECT_EQ(import_cache(export_cache(std::move(cache))).identity.architecture, "");
}

TEST(Hf, RefusesOtherFormats) {
  File file;
  file.metadata.erase("format");
  EXPECT_EQ(import_error(file.bytes()), ErrorCode::kUnsupported);
  file.metadata["format"] = "pt";
  EXPECT_EQ(import_message(file.bytes()), "not of the schema tqcache-hf-1");
  file.metadata["format"] = "tqcache-hf-2";
  EXPECT_EQ(import_message(file.bytes()), "format \"tqcache-hf-2\" is newer than this reader");
}

TEST(Hf, RefusesABadNumberOfTokens) {
  for (const auto& [text, code] :
       std::map<std::string, ErrorCode>{{"", ErrorCode::kCorrupt},
                                        {"-1", ErrorCode::kCorrupt},
                                        {"2x", ErrorCode::kCorrupt},
                                        {"+2", ErrorCode::kCorrupt},
                                        {"3", ErrorCode::kCorrupt},
                                        {"99999999", ErrorCode::kTooLarge},
                                        {"99999999999999999999999", ErrorCode::kTooLarge}}) {
    File file;
    file.metadata["n_tokens"] = text;
    EXPECT_EQ(import_error(file.bytes()), code) << text;
  }
  File file;
  file.metadata.erase("n_tokens");
  EXPECT_EQ(import_message(file.bytes()), "metadata \"n_tokens\": missing");
}

TEST(Hf, RefusesBadLayerTypes) {
  for (const auto& [text, code] : std::map<std::string, ErrorCode>{
           {"", ErrorCode::kCorrupt},
           {"full_attention", ErrorCode::kCorrupt},
           {"{}", ErrorCode::kCorrupt},
           {"[1]", ErrorCode::kCorrupt},
           {R"([["full_attention"]])", ErrorCode::kTooLarge},
           {R"(["full_attention","full_attention"])", ErrorCode::kCorrupt},
           {R"(["mamba"])", ErrorCode::kUnsupported},
           {R"(["dummy"])", ErrorCode::kUnsupported},
           {R"(["linear_attention"])", ErrorCode::kCorrupt},
           {"[" + std::string(70'000, ' ') + "]", ErrorCode::kTooLarge}}) {
    File file;
    file.metadata["layer_types"] = text;
    EXPECT_EQ(import_error(file.bytes()), code) << text;
  }
  std::string many = "[\"dummy\"";
  for (int i = 0; i < 1024; ++i) many += ",\"dummy\"";
  File file;
  file.metadata["layer_types"] = many + "]";
  EXPECT_EQ(import_error(file.bytes()), ErrorCode::kTooLarge);
}

TEST(Hf, RefusesBadWindows) {
  for (const auto& [text, code] : std::map<std::string, ErrorCode>{
           {"3", ErrorCode::kCorrupt},
           {"[]", ErrorCode::kCorrupt},
           {"[null]", ErrorCode::kCorrupt},
           {"[1]", ErrorCode::kCorrupt},
           {"[-5]", ErrorCode::kCorrupt},
           {"[2.5]", ErrorCode::kCorrupt},
           {"[2]", ErrorCode::kCorrupt},  // would keep one row of the two that are there
           {"[16777218]", ErrorCode::kTooLarge}}) {
    File file;
    file.metadata["layer_types"] = R"(["sliding_attention"])";
    file.metadata["sliding_window"] = text;
    EXPECT_EQ(import_error(file.bytes()), code) << text;
  }
}

TEST(Hf, RefusesBadTensors) {
  using Shape = std::vector<std::uint64_t>;
  const auto error_with_key = [](const std::string& type, const Shape& shape) {
    File file;
    file.tensors[1].type_name = type;
    file.tensors[1].shape = shape;
    return import_error(file.bytes());
  };
  EXPECT_EQ(error_with_key("F64", {1, 1, 2, 4}), ErrorCode::kUnsupported);
  EXPECT_EQ(error_with_key("F16", {2, 1, 2, 4}), ErrorCode::kUnsupported);
  EXPECT_EQ(error_with_key("F16", {2, 4}), ErrorCode::kCorrupt);
  EXPECT_EQ(error_with_key("F16", {1, 3, 4}), ErrorCode::kCorrupt);
  EXPECT_EQ(error_with_key("F16", {2, 2, 4}), ErrorCode::kCorrupt);
  EXPECT_EQ(error_with_key("F16", {1025, 2, 4}), ErrorCode::kTooLarge);
  EXPECT_EQ(error_with_key("F16", {1, 2, 1025}), ErrorCode::kTooLarge);
  File file;
  file.tensors[1].shape = file.tensors[2].shape = {1, 2, 0};
  EXPECT_NE(import_error(file.bytes()), ErrorCode::kBusy);
}

TEST(Hf, RefusesATensorThatIsMissingOrTooMany) {
  File file;
  file.tensors.erase(file.tensors.begin() + 2);
  EXPECT_EQ(import_message(file.bytes()), "layer 0: tensor \"model.layers.0.value\": missing");
  file = File();
  file.tensors.push_back({"model.layers.0.extra", "F16", {1}});
  EXPECT_EQ(import_error(file.bytes()), ErrorCode::kUnsupported);
}

TEST(Hf, RefusesBadStates) {
  for (const std::string name : {"conv_states.", "conv_states.01", "conv_states.x",
                                 "conv_states.12345", "ssm.0", "conv_states.0.1"}) {
    File file;
    file.metadata["layer_types"] = R"(["full_attention","linear_attention"])";
    file.tensors.push_back({"model.layers.1.recurrent_states.0", "F32", {2, 3}});
    EXPECT_EQ(import_error(file.bytes()), ErrorCode::kBusy);
    file.tensors.push_back({"model.layers.1." + name, "F16", {1}});
    EXPECT_EQ(import_error(file.bytes()), ErrorCode::kUnsupported) << name;
    file.tensors.back() = {"model.layers.1.conv_states.0", "F64", {1}};
    EXPECT_EQ(import_error(file.bytes()), ErrorCode::kUnsupported);
  }
}

TEST(Hf, RefusesBadTokens) {
  File file;
  file.tensors[0].shape = {3};
  EXPECT_EQ(import_error(file.bytes()), ErrorCode::kCorrupt);
  file.tensors[0] = {"tokens", "F32", {2}};
  EXPECT_EQ(import_error(file.bytes()), ErrorCode::kUnsupported);
  for (const std::size_t byte : {4u, 7u}) {  // beyond 31 bits, and negative
    Bytes bytes = File().bytes();
    const std::size_t begin = 8 + number_at<std::uint64_t>(bytes, 0);
    bytes[begin + byte] = std::byte{0x80};
    EXPECT_EQ(import_error(bytes), ErrorCode::kCorrupt);
  }
}

TEST(Hf, EveryFailingReadIsReported) {
  const Bytes bytes = export_cache(hybrid_cache());
  std::size_t n = 0;
  test::fail_every_read(bytes, [&](const ByteSource& source) {
    const std::shared_ptr<const ByteSource> alias(std::shared_ptr<void>(), &source);
    const auto foreign = import_hf(alias);
    const auto cache =
        foreign ? test::read_foreign(*foreign) : Result<cache::Cache>(foreign.error());
    n += cache.ok() ? 0 : 1;
    if (!cache) {
      EXPECT_EQ(cache.error().code, ErrorCode::kIo);
    }
  });
  EXPECT_GT(n, 10u);
}

TEST(Hf, EveryTruncatedFileIsRefused) {
  cache::Cache cache = CacheBuilder(5).dense({1, 2}).rotating({{1, 2}, 3, 0}).build();
  const Bytes bytes = export_cache(std::move(cache));
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    const ErrorCode code = import_error(Bytes(bytes.begin(), bytes.begin() + std::ptrdiff_t(size)));
    EXPECT_TRUE(code == ErrorCode::kTruncated || code == ErrorCode::kCorrupt) << size;
  }
}

TEST(Hf, EveryFlippedBitIsRefusedOrGivesAValidCache) {
  cache::Cache cache = CacheBuilder(5).dense({1, 2}).rotating({{1, 2}, 3, 0}).build();
  const Bytes bytes = export_cache(std::move(cache));
  std::size_t n_valid = 0;
  for (std::size_t bit = 0; bit < 8 * bytes.size(); bit += test::bit_step()) {
    Bytes flipped = bytes;
    flipped[bit / 8] ^= std::byte(1 << (bit % 8));
    EXPECT_TRUE(test::refused_or_valid(import_hf(source_of(std::move(flipped))), n_valid)) << bit;
  }
  EXPECT_GT(n_valid, 0u);
}

}  // namespace hf_test
}  // namespace tqcache::interop
