// What a GGUF file says of its model's KV cache.

#include "tqcache/interop/llama/llama_geometry.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include "support/cache_builder.h"
#include "support/matchers.h"
#include "tqcache/file.h"

namespace tqcache::test {
namespace llama_geometry_test {

using interop::LlamaGeometry;
using interop::LlamaLayerKind;
using interop::read_llama_geometry;
using tensors::Gguf;
using tensors::GgufValue;

constexpr std::int64_t kInt64Max = std::numeric_limits<std::int64_t>::max();

// Eight layers of 4 kv heads of 32 components.
class Model {
 public:
  explicit Model(const std::string& architecture) : architecture_(architecture) {
    file_.metadata["general.architecture"] = architecture;
    set("block_count", std::int64_t{8});
    set("embedding_length", std::int64_t{256});
    set("attention.head_count", std::int64_t{8});
    set("attention.head_count_kv", std::int64_t{4});
  }
  Model& set(const std::string& key, GgufValue value) {
    file_.metadata[architecture_ + "." + key] = std::move(value);
    return *this;
  }
  Model& set_int(const std::string& key, std::int64_t value) { return set(key, value); }
  Model& remove(const std::string& key) {
    file_.metadata.erase(architecture_ + "." + key);
    return *this;
  }
  Model& deltanet() {
    set_int("ssm.conv_kernel", 4).set_int("ssm.inner_size", 4096);
    return set_int("ssm.state_size", 128).set_int("ssm.group_count", 16);
  }

  Result<LlamaGeometry> geometry() const { return read_llama_geometry(file_); }

 private:
  std::string architecture_;
  Gguf file_;
};

void expect_error(const Model& model, ErrorCode code, const std::string& part) {
  EXPECT_THAT(model.geometry(), test::FailsWith(code, testing::HasSubstr(part)));
}

// 'a', 's', 'r': of each layer its kind.
std::string kinds_of(const LlamaGeometry& geometry) {
  std::string kinds;
  for (const auto& layer : geometry.layers) {
    kinds += layer.kind == LlamaLayerKind::kAttention       ? 'a'
             : layer.kind == LlamaLayerKind::kSlidingWindow ? 's'
                                                            : 'r';
  }
  return kinds;
}

TEST(LlamaGeometry, OfTheDemoModel) {
  const auto path = std::filesystem::path(TQCACHE_DEMO_MODEL) / "tqcache-demo-17m.q8_0.gguf";
  const MappedFile file = must(MappedFile::open(path));
  const LlamaGeometry geometry = must(read_llama_geometry(must(tensors::read_gguf(file.bytes()))));
  EXPECT_EQ(geometry.architecture, "qwen3");
  EXPECT_EQ(kinds_of(geometry), "aaaaaaaa");
  EXPECT_EQ(geometry.layers[7].n_kv_heads, 2);
  EXPECT_EQ(geometry.layers[7].k_head_dim, 128);
  EXPECT_EQ(geometry.layers[7].v_head_dim, 128);
  EXPECT_EQ(geometry.n_rot, 128);
  EXPECT_EQ(geometry.window, 0);
  EXPECT_FALSE(geometry.interleaved_keys);
  EXPECT_FALSE(geometry.has_positions_2d);
}

TEST(LlamaGeometry, HasPairsTensorByTensorForLlamaAlone) {
  const LlamaGeometry llama = must(Model("llama").geometry());
  EXPECT_TRUE(llama.interleaved_keys);
  EXPECT_EQ(llama.n_rot, 32);
  for (const char* name :
       {"qwen2",  "qwen2moe",   "qwen3",    "qwen3moe",    "gemma",         "phi2",    "phi3",
        "phimoe", "starcoder2", "stablelm", "olmoe",       "gptneox",       "falcon",  "nemotron",
        "exaone", "dots1",      "glm4moe",  "hunyuan-moe", "hunyuan-dense", "seed_oss"}) {
    const LlamaGeometry geometry = must(Model(name).geometry());
    EXPECT_FALSE(geometry.interleaved_keys) << name;
    EXPECT_FALSE(geometry.has_positions_2d) << name;
    EXPECT_EQ(kinds_of(geometry), "aaaaaaaa") << name;
  }
}

TEST(LlamaGeometry, ReordersPairsOfFamiliesThatTheDecoderRuns) {
  for (const char* name : {"llama", "granite", "granitemoe", "smollm3", "glm4", "chatglm",
                           "mistral3", "ernie4_5", "command-r", "cohere2"}) {
    EXPECT_TRUE(must(Model(name).geometry()).interleaved_keys) << name;
  }
}

TEST(LlamaGeometry, RefusesPairsThatNobodyHasLookedAt) {
  for (const char* name : {"internlm2", "minicpm", "arcee", "baichuan", "deci", "llama4"}) {
    expect_error(Model(name), ErrorCode::kUnsupported,
                 std::string("\"") + name + "\": the component order of its keys");
  }
}

TEST(LlamaGeometry, RefusesArchitecturesThatItDoesNotKnow) {
  for (const char* name : {"mamba", "rwkv7", "gemma3n", "jamba", "new one", "", "LLAMA"}) {
    expect_error(Model(name), ErrorCode::kUnsupported,
                 std::string("architecture \"") + name + "\": its cache layout is not supported");
  }
  expect_error(Model("\x1b[2Jqwen3"), ErrorCode::kUnsupported, "\"?[2Jqwen3\"");
}

TEST(LlamaGeometry, NamesOtherAttention) {
  expect_error(Model("glm-dsa").set_int("attention.kv_lora_rank", 512), ErrorCode::kUnsupported,
               "key \"glm-dsa.attention.kv_lora_rank\": multi-head latent attention");
  expect_error(Model("deepseek2").set_int("attention.kv_lora_rank", 512), ErrorCode::kUnsupported,
               "key \"deepseek2.attention.key_length_mla\": missing");
  expect_error(Model("qwen3").set_int("attention.shared_kv_layers", 2), ErrorCode::kUnsupported,
               "share keys and values");
  for (const char* key : {"attention.key_length_swa", "attention.value_length_swa"}) {
    expect_error(Model("gemma3").set_int(key, 64), ErrorCode::kUnsupported, "two sizes");
  }
}

Model deepseek() {
  Model model("deepseek2");
  model.set_int("attention.head_count", 128).set_int("attention.head_count_kv", 1);
  model.set_int("attention.key_length", 576).set_int("attention.value_length", 512);
  model.set_int("attention.key_length_mla", 192).set_int("attention.value_length_mla", 128);
  model.set_int("attention.kv_lora_rank", 512).set_int("rope.dimension_count", 64);
  return model.set_int("nextn_predict_layers", 1);
}

TEST(LlamaGeometry, SplitsLatents) {
  const LlamaGeometry geometry = must(deepseek().geometry());
  ASSERT_EQ(geometry.layers.size(), 7u);
  for (const auto& layer : geometry.layers) {
    EXPECT_TRUE(layer.is_latent);
    EXPECT_EQ(layer.n_kv_heads, 1);
    EXPECT_EQ(layer.k_head_dim, 512);
    EXPECT_EQ(layer.v_head_dim, 64);
  }
  EXPECT_FALSE(geometry.interleaved_keys);
  expect_error(deepseek().set_int("attention.kv_lora_rank", 500), ErrorCode::kCorrupt,
               "expected one latent of 500 with 64 that rotate");
  expect_error(deepseek().set_int("attention.head_count_kv", 128), ErrorCode::kCorrupt,
               "128 kv heads");
}

TEST(LlamaGeometry, HasTwoPositionsForMRope) {
  for (const char* name : {"qwen2vl", "qwen3vl", "qwen3vlmoe"}) {
    const LlamaGeometry geometry = must(Model(name).geometry());
    EXPECT_TRUE(geometry.has_positions_2d) << name;
    EXPECT_FALSE(geometry.interleaved_keys) << name;
    EXPECT_EQ(kinds_of(geometry), "aaaaaaaa") << name;
  }
}

TEST(LlamaGeometry, HasHeadDimsOfTheirOwn) {
  Model model("qwen3");
  model.set_int("attention.key_length", 192).set_int("attention.value_length", 128);
  const LlamaGeometry geometry = must(model.geometry());
  EXPECT_EQ(geometry.layers[0].k_head_dim, 192);
  EXPECT_EQ(geometry.layers[0].v_head_dim, 128);
  EXPECT_EQ(geometry.n_rot, 192);
  EXPECT_EQ(must(model.set_int("rope.dimension_count", 64).geometry()).n_rot, 64);
  EXPECT_TRUE(model.remove("embedding_length").geometry().ok());
  EXPECT_FALSE(model.remove("attention.value_length").geometry().ok());
}

TEST(LlamaGeometry, HasKvHeadsLayerByLayer) {
  const std::vector<std::int64_t> heads = {1, 2, 3, 4, 5, 6, 7, 8};
  Model model("qwen3");
  model.set("attention.head_count_kv", heads);
  const LlamaGeometry geometry = must(model.geometry());
  for (std::size_t i = 0; i < 8; ++i) EXPECT_EQ(geometry.layers[i].n_kv_heads, heads[i]);
  EXPECT_EQ(must(Model("qwen3").remove("attention.head_count_kv").geometry()).layers[3].n_kv_heads,
            8);
  model.set("attention.head_count_kv", std::vector<std::int64_t>{1, 2, 3});
  expect_error(model, ErrorCode::kCorrupt, "3 values for 8 layers");
  model.set("attention.head_count_kv", std::vector<std::int64_t>{1, 2, 3, 4, 5, 0, 7, 8});
  expect_error(model, ErrorCode::kUnsupported, "layer 5: no kv heads");
  model.set("attention.head_count_kv", std::vector<std::int64_t>{1, 2, 3, 4, 5, -1, 7, 8});
  expect_error(model, ErrorCode::kCorrupt, "-1");
}

TEST(LlamaGeometry, HasWindowsInTheArchitecturesPattern) {
  EXPECT_EQ(kinds_of(must(Model("gemma2").geometry())), "sasasasa");
  EXPECT_EQ(must(Model("gemma2").geometry()).window, 4096);
  Model gemma3("gemma3");
  EXPECT_EQ(kinds_of(must(gemma3.geometry())), "aaaaaaaa");
  gemma3.set_int("attention.sliding_window", 512);
  EXPECT_EQ(kinds_of(must(gemma3.geometry())), "sssssass");
  EXPECT_EQ(must(gemma3.geometry()).window, 512);
  EXPECT_EQ(kinds_of(must(Model("gpt-oss").set_int("attention.sliding_window", 128).geometry())),
            "sasasasa");
  EXPECT_EQ(kinds_of(must(Model("olmo2").set_int("attention.sliding_window", 4096).geometry())),
            "sssasssa");
}

TEST(LlamaGeometry, HasWindowsInThePatternOfTheFile) {
  Model model("gemma3");
  model.set_int("attention.sliding_window", 512);
  const std::string key = "attention.sliding_window_pattern";
  EXPECT_EQ(kinds_of(must(model.set_int(key, 4).geometry())), "sssasssa");
  EXPECT_EQ(kinds_of(must(model.set_int(key, 1).geometry())), "aaaaaaaa");
  EXPECT_EQ(must(model.geometry()).window, 0);
  EXPECT_EQ(kinds_of(must(model.set_int(key, 0).geometry())), "ssssssss");
  model.set(key, std::vector<bool>{true, true, false, true, false, false, true, true});
  EXPECT_EQ(kinds_of(must(model.geometry())), "ssasaass");
  model.set(key, std::vector<bool>{true});
  expect_error(model, ErrorCode::kCorrupt, "1 values for 8 layers");
  model.set(key, std::string("every other"));
  expect_error(model, ErrorCode::kCorrupt, key);
}

TEST(LlamaGeometry, HasNoWindowsWhereLlamaCppUsesNone) {
  for (const char* name : {"phi3", "llama", "qwen2", "qwen3"}) {
    const LlamaGeometry geometry =
        must(Model(name).set_int("attention.sliding_window", 2048).geometry());
    EXPECT_EQ(kinds_of(geometry), "aaaaaaaa") << name;
    EXPECT_EQ(geometry.window, 0) << name;
  }
}

TEST(LlamaGeometry, HasRecurrentLayersOfDeltaNet) {
  for (const char* name : {"qwen35", "qwen35moe", "qwen3next"}) {
    const LlamaGeometry geometry = must(Model(name).deltanet().geometry());
    EXPECT_EQ(kinds_of(geometry), "rrrarrra") << name;
    EXPECT_EQ(geometry.layers[0].r_values, 3u * (4096 + 2 * 16 * 128)) << name;
    EXPECT_EQ(geometry.layers[0].s_values, 128u * 4096) << name;
    EXPECT_EQ(geometry.layers[0].n_kv_heads, 0) << name;
    EXPECT_EQ(geometry.layers[3].n_kv_heads, 4) << name;
    EXPECT_EQ(geometry.has_positions_2d, std::string_view(name) != "qwen3next") << name;
  }
  Model model("qwen35");
  model.deltanet().set_int("full_attention_interval", 2);
  EXPECT_EQ(kinds_of(must(model.geometry())), "rararara");
}

TEST(LlamaGeometry, LeavesLayersOfMultiTokenPredictionOut) {
  Model model("qwen35");
  model.deltanet().set_int("block_count", 9).set_int("nextn_predict_layers", 1);
  EXPECT_EQ(kinds_of(must(model.geometry())), "rrrarrra");
  expect_error(model.set_int("nextn_predict_layers", 9), ErrorCode::kCorrupt, "9 of 9 layers");
}

TEST(LlamaGeometry, NeedsItsKeys) {
  EXPECT_EQ(read_llama_geometry(Gguf()).error().code, ErrorCode::kCorrupt);
  for (const char* key : {"block_count", "embedding_length", "attention.head_count"}) {
    expect_error(Model("qwen3").remove(key), ErrorCode::kCorrupt, key);
  }
  for (const char* key :
       {"ssm.conv_kernel", "ssm.inner_size", "ssm.state_size", "ssm.group_count"}) {
    expect_error(Model("qwen35").deltanet().remove(key), ErrorCode::kCorrupt, key);
    expect_error(Model("qwen35").deltanet().set(key, true), ErrorCode::kCorrupt, key);
  }
}

TEST(LlamaGeometry, HoldsEveryNumberAgainstBounds) {
  for (const char* key :
       {"block_count", "embedding_length", "attention.head_count", "attention.head_count_kv",
        "attention.key_length", "attention.value_length", "rope.dimension_count",
        "attention.sliding_window", "attention.sliding_window_pattern", "nextn_predict_layers"}) {
    Model model("gemma3");
    model.set_int("attention.sliding_window", 512);
    expect_error(model.set_int(key, -1), ErrorCode::kCorrupt, key);
    expect_error(model.set_int(key, kInt64Max), ErrorCode::kTooLarge, key);
    expect_error(model.set(key, std::string("8")), ErrorCode::kCorrupt, key);
  }
  for (const char* key : {"ssm.conv_kernel", "ssm.inner_size", "ssm.state_size", "ssm.group_count",
                          "full_attention_interval"}) {
    expect_error(Model("qwen35").deltanet().set_int(key, 0), ErrorCode::kCorrupt, key);
    expect_error(Model("qwen35").deltanet().set_int(key, kInt64Max), ErrorCode::kTooLarge, key);
  }
}

TEST(LlamaGeometry, RefusesHeadsThatAreNone) {
  expect_error(Model("qwen3").set_int("attention.head_count", 0), ErrorCode::kCorrupt, "head_dim");
  expect_error(Model("qwen3").set_int("embedding_length", 7), ErrorCode::kCorrupt, "head_dim");
  expect_error(Model("qwen3").set_int("attention.head_count_kv", 0), ErrorCode::kUnsupported,
               "layer 0: no kv heads");
  expect_error(Model("qwen3")
                   .set_int("attention.head_count", 2048)
                   .set_int("attention.key_length", 64)
                   .set_int("attention.value_length", 64)
                   .remove("attention.head_count_kv"),
               ErrorCode::kTooLarge, "layer 0: 2048 kv heads");
}

TEST(LlamaGeometry, RefusesRopeOverMoreThanThereIs) {
  expect_error(Model("qwen3").set_int("rope.dimension_count", 34), ErrorCode::kCorrupt, "34 of 32");
  expect_error(Model("qwen3").set_int("rope.dimension_count", 31), ErrorCode::kCorrupt, "31 of 32");
}

}  // namespace llama_geometry_test
}  // namespace tqcache::test
