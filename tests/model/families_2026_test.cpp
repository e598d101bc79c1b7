// Configurations of Cohere, ERNIE, EXAONE, Granite 4, Hunyuan, Ministral, OLMo 3, Seed-OSS and the
// text of Qwen-VL: what is read, and what is refused by name. Their arithmetic is compared with
// transformers by architectures_test.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "model/tiny_files.h"
#include "tqcache/model/loading/config_readers.h"

namespace tqcache::model {
namespace families_2026_test {

using testing::HasSubstr;
using tiny::Json;

Json hf_of(const std::string& type, const std::string& class_name, const Json& more = {}) {
  Json root = tiny::config();
  root["model_type"] = type;
  root["architectures"] = {class_name};
  root["max_position_embeddings"] = 4096;
  if (!more.is_null()) root.update(more);
  return root;
}

ModelConfig read(const Json& root) {
  auto config = read_hf_config(as_bytes(root.dump()));
  if (!config) throw std::runtime_error(config.error().message);
  return std::move(config).value();
}

void expect_refused(const Json& root, ErrorCode code, const std::string& message) {
  const auto config = read_hf_config(as_bytes(root.dump()));
  ASSERT_FALSE(config) << message;
  EXPECT_EQ(config.error().code, code) << config.error().message;
  EXPECT_THAT(config.error().message, HasSubstr(message));
}

TEST(Families2026, BiasesAreThoseThatTheFamilyReads) {
  const Json biased = {{"mlp_bias", true}};
  EXPECT_TRUE(read(hf_of("llama", "LlamaForCausalLM", biased)).mlp_biases);
  EXPECT_FALSE(read(hf_of("llama", "LlamaForCausalLM")).mlp_biases);
  expect_refused(hf_of("qwen3", "Qwen3ForCausalLM", biased), ErrorCode::kUnsupported, "mlp_bias");
  const ModelConfig seed = read(hf_of("seed_oss", "SeedOssForCausalLM"));
  EXPECT_TRUE(seed.qkv_biases);
  EXPECT_FALSE(seed.output_bias || seed.mlp_biases);
  EXPECT_TRUE(
      read(hf_of("seed_oss", "SeedOssForCausalLM", {{"attention_out_bias", true}})).output_bias);
  expect_refused(hf_of("llama", "LlamaForCausalLM", {{"attention_out_bias", true}}),
                 ErrorCode::kUnsupported, "attention_out_bias");
  const ModelConfig ernie = read(hf_of("ernie4_5", "Ernie4_5ForCausalLM", {{"use_bias", true}}));
  EXPECT_TRUE(ernie.qkv_biases && ernie.output_bias && ernie.mlp_biases);
  expect_refused(hf_of("ernie4_5", "Ernie4_5ForCausalLM", {{"attention_bias", true}}),
                 ErrorCode::kUnsupported, "attention_bias");
}

TEST(Families2026, LogitsOfCohereAreScaled) {
  EXPECT_EQ(read(hf_of("cohere", "CohereForCausalLM")).logit_divisor, 16.0f);
  const ModelConfig config = read(
      hf_of("cohere2", "Cohere2ForCausalLM", {{"logit_scale", 0.25}, {"sliding_window", 100}}));
  EXPECT_EQ(config.logit_divisor, 4.0f);
  EXPECT_TRUE(config.layer_norms && config.parallel_blocks);
  for (const double scale : {0.0, -1.0}) {
    expect_refused(hf_of("cohere", "CohereForCausalLM", {{"logit_scale", scale}}),
                   ErrorCode::kCorrupt, "logit_scale");
  }
  expect_refused(hf_of("cohere", "CohereForCausalLM", {{"use_qk_norm", true}}),
                 ErrorCode::kUnsupported, "use_qk_norm");
}

TEST(Families2026, FullAttentionBetweenWindowsHasNoRope) {
  const Json types = {{"layer_types", {"sliding_attention", "full_attention"}},
                      {"sliding_window", 100}};
  for (const auto& [type, name] :
       {std::pair{"cohere2", "Cohere2ForCausalLM"}, std::pair{"exaone4", "Exaone4ForCausalLM"}}) {
    const ModelConfig config = read(hf_of(type, name, types));
    EXPECT_EQ(config.layer(0).window, 100);
    EXPECT_EQ(config.layer(0).rope.style, config.rope.style);
    EXPECT_EQ(config.layer(1).window, 0);
    EXPECT_EQ(config.layer(1).rope.style, cache::RopeStyle::kNone);
  }
  const ModelConfig plain = read(hf_of("exaone4", "Exaone4ForCausalLM"));
  EXPECT_EQ(plain.layer(1).rope.style, plain.rope.style);
}

TEST(Families2026, OnlyFullAttentionOfOlmo3IsStretched) {
  const Json yarn = {
      {"rope_type", "yarn"}, {"factor", 8.0}, {"original_max_position_embeddings", 64}};
  const Json types = {{"layer_types", {"sliding_attention", "full_attention"}},
                      {"sliding_window", 100},
                      {"rope_theta", 5000.0},
                      {"rope_scaling", yarn}};
  const ModelConfig config = read(hf_of("olmo3", "Olmo3ForCausalLM", types));
  EXPECT_FALSE(config.layer(1).rope.factors.empty());
  EXPECT_TRUE(config.layer(0).rope.factors.empty());
  EXPECT_EQ(config.layer(0).rope.base, 5000);
  EXPECT_EQ(config.layer(1).rope.base, 5000);
}

TEST(Families2026, AlphaStretchesTheBaseOfHunyuan) {
  const Json rope = {{"rope_scaling", {{"type", "dynamic"}, {"alpha", 1000.0}, {"factor", 1.0}}}};
  const ModelConfig config = read(hf_of("hunyuan_v1_dense", "HunYuanDenseV1ForCausalLM", rope));
  EXPECT_NEAR(config.rope.base, 10000 * std::pow(1000, 6.0 / 4), 1e-3);
  EXPECT_TRUE(config.rope.factors.empty());
  for (const double alpha : {-1.0, 1e300}) {
    Json odd = rope;
    odd["rope_scaling"]["alpha"] = alpha;
    expect_refused(hf_of("hunyuan_v1_dense", "HunYuanDenseV1ForCausalLM", odd), ErrorCode::kCorrupt,
                   alpha < 0 ? "alpha" : "rope base");
  }
}

TEST(Families2026, QueriesOfMinistral3Grow) {
  const Json rope = {{"rope_parameters",
                      {{"rope_type", "yarn"},
                       {"rope_theta", 1e6},
                       {"factor", 16.0},
                       {"mscale", 1.0},
                       {"mscale_all_dim", 1.0},
                       {"llama_4_scaling_beta", 0.1},
                       {"original_max_position_embeddings", 128}}}};
  const ModelConfig config = read(hf_of("ministral3", "Ministral3ForCausalLM", rope));
  EXPECT_FLOAT_EQ(config.query_growth, 0.1f);
  EXPECT_EQ(config.query_growth_step, 128);
  EXPECT_EQ(config.rope_magnitude, 1);
  for (const Json& step : {Json(0), Json(-4), Json("x")}) {
    Json odd = rope;
    odd["rope_parameters"]["original_max_position_embeddings"] = step;
    EXPECT_FALSE(
        read_hf_config(as_bytes(hf_of("ministral3", "Ministral3ForCausalLM", odd).dump())));
  }
  Json odd = rope;
  odd["rope_parameters"]["llama_4_scaling_beta"] = -1;
  expect_refused(hf_of("ministral3", "Ministral3ForCausalLM", odd), ErrorCode::kCorrupt,
                 "growth of queries");
}

TEST(Families2026, Granite4WithStateSpaceLayersIsRefused) {
  const Json dense = {{"shared_intermediate_size", 12},
                      {"num_local_experts", 0},
                      {"position_embedding_type", "rope"},
                      {"layer_types", {"attention", "full_attention"}}};
  const char* const name = "GraniteMoeHybridForCausalLM";
  EXPECT_EQ(read(hf_of("granitemoehybrid", name, dense)).architecture, "granite");
  Json mamba = dense;
  mamba["layer_types"] = {"mamba", "attention"};
  expect_refused(hf_of("granitemoehybrid", name, mamba), ErrorCode::kUnsupported, "layer_types");
  Json linear = dense;
  linear["layer_types"] = {"linear_attention", "attention"};
  expect_refused(hf_of("granitemoehybrid", name, linear), ErrorCode::kUnsupported, "layer_types");
  Json without = dense;
  without.erase("layer_types");
  expect_refused(hf_of("granitemoehybrid", name, without), ErrorCode::kUnsupported, "layer_types");
  Json experts = dense;
  experts["num_local_experts"] = 8;
  expect_refused(hf_of("granitemoehybrid", name, experts), ErrorCode::kUnsupported,
                 "num_local_experts");
  Json no_rope = dense;
  no_rope["position_embedding_type"] = "nope";
  expect_refused(hf_of("granitemoehybrid", name, no_rope), ErrorCode::kUnsupported,
                 "position_embedding_type");
}

TEST(Families2026, WindowsOfMinistralAreListed) {
  expect_refused(hf_of("ministral", "MinistralForCausalLM", {{"sliding_window", 100}}),
                 ErrorCode::kCorrupt, "layer_types");
}

TEST(Families2026, SectionsOfQwen2VlFollowEachOther) {
  tensors::Gguf file = tiny::gguf();
  std::map<std::string, tensors::GgufValue> metadata;
  for (const auto& [key, value] : file.metadata) {
    metadata[key.starts_with("qwen3.") ? "qwen2vl" + key.substr(5) : key] = value;
  }
  metadata["general.architecture"] = std::string("qwen2vl");
  metadata["qwen2vl.rope.dimension_sections"] = std::vector<std::int64_t>{1, 1, 1, 0};
  file.metadata = metadata;
  EXPECT_TRUE(read_gguf_config(file));
  file.metadata["qwen2vl.rope.dimension_sections"] = std::vector<std::int64_t>{1, 1, 0, 1};
  const auto refused = read_gguf_config(file);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("pair 2 does not turn with text"));
}

TEST(Families2026, TextOfQwenVlMayBeAtTheTopLevel) {
  const Json rope = {{"rope_scaling", {{"type", "mrope"}, {"mrope_section", {1, 1, 1}}}},
                     {"rope_theta", 1e6}};
  const ModelConfig flat = read(hf_of("qwen2_5_vl", "Qwen2_5_VLForConditionalGeneration", rope));
  EXPECT_TRUE(flat.qkv_biases);
  EXPECT_TRUE(flat.rope.factors.empty());
  Json text = hf_of("qwen2_5_vl_text", "", rope);
  text.erase("architectures");
  Json nested = {{"model_type", "qwen2_5_vl"},
                 {"architectures", {"Qwen2_5_VLForConditionalGeneration"}},
                 {"text_config", text}};
  EXPECT_EQ(read(nested).rope, flat.rope);
  expect_refused(hf_of("qwen3", "Qwen3ForCausalLM", rope), ErrorCode::kUnsupported, "\"mrope\"");
}

TEST(Families2026, WhatIsNotRunCanStillBeConverted) {
  expect_refused(hf_of("gemma4_text", "Gemma4ForCausalLM"), ErrorCode::kUnsupported,
                 "model type \"gemma4_text\", only ");
  expect_refused(hf_of("gemma4_text", "Gemma4ForCausalLM"), ErrorCode::kUnsupported,
                 "caches of other models can be converted");
}

}  // namespace families_2026_test
}  // namespace tqcache::model
