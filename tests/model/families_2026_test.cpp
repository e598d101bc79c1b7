// Configurations of Cohere, ERNIE, EXAONE, Granite 4, Hunyuan, Ministral, OLMo 3, Seed-OSS and the
// text of Qwen-VL: what is read, and what is refused by name. Their arithmetic is compared with
// transformers by architectures_test.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "model/tiny_files.h"
#include "support/matchers.h"
#include "support/temp_dir.h"
#include "tqcache/model/loading/config_readers.h"
#include "tqcache/model/loading/model_files.h"

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
  EXPECT_THAT(read_hf_config(as_bytes(root.dump())), test::FailsWith(code, HasSubstr(message)));
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

// GLM-4.5, whose experts are chosen as in DeepSeek V3.
Json glm4_moe(const Json& more = {}) {
  Json root = hf_of("glm4_moe", "Glm4MoeForCausalLM",
                    {{"head_dim", 8},
                     {"n_routed_experts", 8},
                     {"n_shared_experts", 2},
                     {"num_experts_per_tok", 3},
                     {"moe_intermediate_size", 8},
                     {"first_k_dense_replace", 1},
                     {"routed_scaling_factor", 1.5},
                     {"n_group", 4},
                     {"topk_group", 2}});
  if (!more.is_null()) root.update(more);
  return root;
}

TEST(Families2026, ExpertsOfGlmAreChosenFromGroups) {
  const ModelConfig config = read(glm4_moe({{"use_qk_norm", true}}));
  EXPECT_TRUE(config.qk_norms);
  EXPECT_FALSE(read(glm4_moe()).qk_norms);
  const ExpertsConfig& experts = config.experts;
  EXPECT_EQ(experts.shared_d_ff, 16);
  EXPECT_EQ(experts.groups, 4);
  EXPECT_EQ(experts.used_groups, 2);
  EXPECT_TRUE(experts.sigmoid && experts.choice_bias && experts.normalized);
  EXPECT_FALSE(experts.shared_gate);
  EXPECT_FLOAT_EQ(experts.scale, 1.5f);
  EXPECT_FALSE(config.has_experts(0));
  EXPECT_TRUE(config.has_experts(1));
  EXPECT_EQ(config.rope.n_dims, config.head_dim / 2);
}

TEST(Families2026, LayersThatPredictFurtherTokensAreLeftOut) {
  const test::TempDir dir;
  test::write_all(dir / "model.safetensors",
                  tiny::safetensors({{"model.layers.0.mlp.up_proj.weight", {2, 2}},
                                     {"model.layers.3.eh_proj.weight", {2, 2}},
                                     {"model.layers.3.mlp.up_proj.weight", {2, 2}}}));
  ModelConfig config = read(glm4_moe({{"num_nextn_predict_layers", 1}}));
  config.n_layers = 3;
  const auto tensors = map_hf_tensors(dir.path(), config).value();
  EXPECT_EQ(tensors.by_name.size(), 1u);
  EXPECT_TRUE(tensors.by_name.contains("blk.0.ffn_up.weight"));
  config.layout.n_extra_layers = 0;
  EXPECT_EQ(map_hf_tensors(dir.path(), config).error().code, ErrorCode::kUnsupported);
  expect_refused(glm4_moe({{"num_nextn_predict_layers", -1}}), ErrorCode::kCorrupt,
                 "num_nextn_predict_layers");
}

TEST(Families2026, GroupsThatDoNotFitAreRefused) {
  expect_refused(glm4_moe({{"n_group", 3}}), ErrorCode::kCorrupt, "no multiple of 3 groups");
  expect_refused(glm4_moe({{"topk_group", 5}}), ErrorCode::kTooLarge, "groups of experts used");
  expect_refused(glm4_moe({{"topk_group", 1}}), ErrorCode::kCorrupt, "1 groups of 2 experts");
  expect_refused(glm4_moe({{"n_group", 8}, {"topk_group", 4}}), ErrorCode::kCorrupt,
                 "4 groups of 1 experts");
  expect_refused(glm4_moe({{"routed_scaling_factor", 0}}), ErrorCode::kCorrupt, "scale of experts");
  expect_refused(glm4_moe({{"routed_scaling_factor", nullptr}}), ErrorCode::kCorrupt, "missing");
  expect_refused(glm4_moe({{"first_k_dense_replace", 99}}), ErrorCode::kTooLarge,
                 "layers before those with experts");
  expect_refused(glm4_moe({{"scoring_func", "softmax"}}), ErrorCode::kUnsupported, "scoring_func");
  expect_refused(glm4_moe({{"topk_method", "greedy"}}), ErrorCode::kUnsupported, "topk_method");
  expect_refused(glm4_moe({{"moe_layer_freq", 2}}), ErrorCode::kUnsupported, "moe_layer_freq");
  expect_refused(hf_of("qwen3", "Qwen3ForCausalLM", {{"n_routed_experts", 8}}),
                 ErrorCode::kUnsupported, "n_routed_experts");
}

Json deepseek(const std::string& version, const Json& more = {}) {
  Json root = glm4_moe({{"kv_lora_rank", 32},
                        {"q_lora_rank", 16},
                        {"qk_rope_head_dim", 8},
                        {"qk_nope_head_dim", 12},
                        {"v_head_dim", 10},
                        {"rms_norm_eps", 1e-5}});
  root["model_type"] = "deepseek_v" + version;
  root["architectures"] = {"DeepseekV" + version + "ForCausalLM"};
  if (!more.is_null()) root.update(more);
  return root;
}

TEST(Families2026, DeepSeekHasLatents) {
  const ModelConfig config = read(deepseek("3"));
  EXPECT_EQ(config.head_shape(), (cache::HeadShape{1, 32}));
  EXPECT_EQ(config.value_dim(), 8);
  EXPECT_EQ(config.rope.n_dims, 8);
  EXPECT_EQ(config.key_rope().style, cache::RopeStyle::kInterleaved);
  EXPECT_FALSE(cache::can_rotate(config.key_rope(), 32));
  EXPECT_EQ(config.latent.query_rank, 16);
  EXPECT_FLOAT_EQ(config.latent.epsilon, 1e-6f);  // not rms_norm_eps
  EXPECT_FLOAT_EQ(config.score_scale(), 1 / std::sqrt(20.0f));
  EXPECT_EQ(read(deepseek("3", {{"q_lora_rank", nullptr}})).latent.query_rank, 0);
  EXPECT_EQ(read(deepseek("3", {{"kv_lora_rank", 8}})).value_dim(), 0);  // as large as K
}

TEST(Families2026, DeepSeekMakesUpForLengthsThatYarnScales) {
  const Json rope = {{"rope_type", "yarn"}, {"factor", 8.0},
                     {"rope_theta", 1e4},   {"original_max_position_embeddings", 64},
                     {"mscale", 1.0},       {"mscale_all_dim", 1.0}};
  const ModelConfig config = read(deepseek("3", {{"rope_parameters", rope}}));
  const double magnitude = 0.1 * std::log(8.0) + 1;
  EXPECT_NEAR(config.score_scale(), magnitude * magnitude / std::sqrt(20.0), 1e-6);
  EXPECT_EQ(config.rope_magnitude, 1);
}

TEST(Families2026, DeepSeekV2ChoosesExpertsOfASoftmax) {
  const ExpertsConfig plain = read(deepseek("2", {{"norm_topk_prob", false}})).experts;
  EXPECT_FALSE(plain.sigmoid || plain.choice_bias || plain.normalized);
  EXPECT_EQ(plain.groups, 1);  // "greedy"
  const ExpertsConfig groups =
      read(deepseek("2", {{"topk_method", "group_limited_greedy"}})).experts;
  EXPECT_EQ(groups.groups, 4);
  EXPECT_FALSE(groups.group_pairs);
  expect_refused(deepseek("2", {{"norm_topk_prob", true}}), ErrorCode::kUnsupported,
                 "norm_topk_prob");
}

TEST(Families2026, LatentsThatDoNotFitAreRefused) {
  for (const char* key : {"kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"}) {
    Json root = deepseek("3");
    root[key] = 4000;
    expect_refused(root, ErrorCode::kTooLarge, "is above 1024");
    root[key] = -1;
    expect_refused(root, ErrorCode::kCorrupt, ": -1");
    root.erase(key);
    expect_refused(root, ErrorCode::kCorrupt, key);
  }
  expect_refused(deepseek("3", {{"qk_rope_head_dim", 7}}), ErrorCode::kCorrupt, "RoPE rotates 7");
  expect_refused(deepseek("3", {{"rope_interleave", false}}), ErrorCode::kUnsupported,
                 "rope_interleave");
  expect_refused(deepseek("3", {{"attention_bias", true}}), ErrorCode::kUnsupported,
                 "attention_bias");
  expect_refused(glm4_moe({{"kv_lora_rank", 32}}), ErrorCode::kUnsupported, "kv_lora_rank");
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
  EXPECT_THAT(refused.error().message, HasSubstr("pair 2 does not rotate with text"));
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
  expect_refused(hf_of("gemma4_unified_text", "Gemma4UnifiedForCausalLM"), ErrorCode::kUnsupported,
                 "model type \"gemma4_unified_text\", only ");
  expect_refused(hf_of("gemma4_unified_text", "Gemma4UnifiedForCausalLM"), ErrorCode::kUnsupported,
                 "caches of other models can be converted");
}

Json gemma3n(const Json& more = {}) {
  Json root =
      hf_of("gemma3n_text", "Gemma3nForCausalLM",
            {{"num_hidden_layers", 4},
             {"intermediate_size", {8, 10, 8, 12}},
             {"activation_sparsity_pattern", {0.95, 0, 0.5, 0}},
             {"layer_types",
              {"sliding_attention", "full_attention", "sliding_attention", "full_attention"}},
             {"num_kv_shared_layers", 2},
             {"hidden_size_per_layer_input", 6},
             {"vocab_size_per_layer_input", 50},
             {"altup_num_inputs", 3},
             {"laurel_rank", 5},
             {"sliding_window", 9}});
  if (!more.is_null()) root.update(more);
  return root;
}

TEST(Families2026, LayersOfGemma3nReadTheKeysOfEarlierOnes) {
  const ModelConfig config = read(gemma3n());
  EXPECT_EQ(config.n_cache_layers(), 2);
  EXPECT_EQ(config.layer(1).source, -1);
  EXPECT_EQ(config.layer(2).source, 0);
  EXPECT_EQ(config.layer(3).source, 1);
  EXPECT_EQ(config.layer(3).d_ff, 12);
  EXPECT_EQ(config.score_scale(), 1);
  EXPECT_EQ(config.logit_cap, 30);
  EXPECT_EQ(config.n_streams, 3);
  EXPECT_EQ(config.laurel_rank, 5);
  // The normal distribution is below 1.6448536 with a probability of .95.
  EXPECT_FLOAT_EQ(config.layer(0).gate_cutoff, 1.6448536f);
  EXPECT_FALSE(std::isfinite(config.layer(1).gate_cutoff));
  EXPECT_NEAR(config.layer(2).gate_cutoff, 0, 1e-7);
}

TEST(Families2026, WhatDoesNotFitGemma3nIsRefused) {
  expect_refused(gemma3n({{"intermediate_size", {8, 10, 8}}}), ErrorCode::kCorrupt,
                 "intermediate_size");
  expect_refused(gemma3n({{"activation_sparsity_pattern", {1, 0, 0, 0}}}), ErrorCode::kUnsupported,
                 "activation_sparsity_pattern");
  expect_refused(gemma3n({{"num_kv_shared_layers", 4}}), ErrorCode::kCorrupt,
                 "num_kv_shared_layers");
  expect_refused(gemma3n({{"num_kv_shared_layers", 3}}), ErrorCode::kCorrupt,
                 "layer 1: no earlier one of its kind has keys");
  expect_refused(gemma3n({{"altup_active_idx", 1}}), ErrorCode::kUnsupported, "altup_active_idx");
  expect_refused(gemma3n({{"altup_num_inputs", 99}}), ErrorCode::kTooLarge, "residual streams");
  expect_refused(gemma3n({{"attn_logit_softcapping", 50.0}}), ErrorCode::kUnsupported,
                 "attn_logit_softcapping");
  expect_refused(hf_of("gemma3_text", "Gemma3ForCausalLM", {{"num_kv_shared_layers", 2}}),
                 ErrorCode::kUnsupported, "num_kv_shared_layers");
}

Json gemma4(const Json& more = {}) {
  Json root = hf_of("gemma4_text", "Gemma4ForCausalLM",
                    {{"num_hidden_layers", 3},
                     {"num_attention_heads", 4},
                     {"num_key_value_heads", 2},
                     {"head_dim", 8},
                     {"global_head_dim", 16},
                     {"hidden_size_per_layer_input", 0},
                     {"layer_types", {"sliding_attention", "sliding_attention", "full_attention"}},
                     {"sliding_window", 9}});
  if (!more.is_null()) root.update(more);
  return root;
}

TEST(Families2026, LayersOfGemma4HaveHeadsOfTwoShapes) {
  const ModelConfig config = read(gemma4({{"attention_k_eq_v", true},
                                          {"num_global_key_value_heads", 1},
                                          {"use_bidirectional_attention", "vision"}}));
  EXPECT_EQ(config.layer(0).heads, (cache::HeadShape{2, 8}));
  EXPECT_EQ(config.layer(2).heads, (cache::HeadShape{1, 16}));
  EXPECT_FALSE(config.layer(0).keys_as_values);
  EXPECT_TRUE(config.layer(2).keys_as_values);
  // A quarter of the pairs turns, as if all did.
  EXPECT_EQ(config.rope.n_dims, 16);
  EXPECT_EQ(config.rope.factors,
            (std::vector<float>{1, 1, 1e30f, 1e30f, 1e30f, 1e30f, 1e30f, 1e30f}));
  EXPECT_EQ(config.layer(0).rope.n_dims, 8);
  EXPECT_EQ(config.layer(0).rope.base, 10'000);
  EXPECT_TRUE(config.layer(0).rope.factors.empty());
  // transformers 5.23 writes the shapes otherwise.
  Json by_layer = gemma4({{"per_layer_config", {{"2", {{"head_dim", 16}}}}}});
  by_layer.erase("global_head_dim");
  EXPECT_EQ(read(by_layer).layer(2).heads, (cache::HeadShape{2, 16}));
}

TEST(Families2026, WhatDoesNotFitGemma4IsRefused) {
  expect_refused(gemma4({{"per_layer_config", {{"1", {{"head_dim", 16}}}}}}),
                 ErrorCode::kUnsupported, "per_layer_config");
  expect_refused(gemma4({{"per_layer_config", {{"2", {{"hidden_size", 16}}}}}}),
                 ErrorCode::kUnsupported, "per_layer_config");
  expect_refused(gemma4({{"per_layer_config", {{"x", {{"head_dim", 16}}}}}}),
                 ErrorCode::kUnsupported, "per_layer_config");
  expect_refused(gemma4({{"use_bidirectional_attention", "all"}}), ErrorCode::kUnsupported,
                 "use_bidirectional_attention");
  expect_refused(
      gemma4({{"layer_types", {"full_attention", "sliding_attention", "sliding_attention"}}}),
      ErrorCode::kUnsupported, "layer_types");
  expect_refused(gemma4({{"global_head_dim", 1 << 20}}), ErrorCode::kCorrupt,
                 "partial_rotary_factor");
  expect_refused(gemma4({{"head_dim", 0}}), ErrorCode::kCorrupt, "RoPE rotates");
  expect_refused(gemma4({{"enable_moe_block", true}, {"num_experts", 4}}), ErrorCode::kCorrupt,
                 "top_k_experts");
}

}  // namespace families_2026_test
}  // namespace tqcache::model
