// What OLMo 2, SmolLM3, Granite, GLM-4, gpt-oss, Mixtral, Qwen2-MoE and Gemma 1 add to the table of
// families. Their logits: architectures_test.cpp.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "model/fixture_model.h"
#include "model/tiny_files.h"
#include "support/matchers.h"
#include "support/temp_dir.h"
#include "tqcache/access.h"
#include "tqcache/base/json.h"
#include "tqcache/model/loading/config_readers.h"
#include "tqcache/model/loading/rearranged.h"
#include "tqcache/model/loading/weights.h"

namespace tqcache::model {
namespace newer_families_test {

using tensors::Gguf;
using test::FailsWith;
using test::FixtureModel;
using testing::ElementsAre;
using testing::HasSubstr;
using tiny::Json;

using Metadata = std::map<std::string, tensors::GgufValue>;

// tiny::gguf() as a file of another architecture, with more keys.
Result<ModelConfig> read_gguf(const std::string& word, const Metadata& more,
                              const std::string& dropped = "") {
  Gguf file = tiny::gguf();
  Metadata metadata;
  for (const auto& [key, value] : file.metadata) {
    if (key == dropped) continue;
    metadata[key.starts_with("qwen3.") ? word + key.substr(5) : key] = value;
  }
  metadata["general.architecture"] = word;
  for (const auto& [key, value] : more) metadata[word + "." + key] = value;
  file.metadata = std::move(metadata);
  return read_gguf_config(file);
}

Json config_of(const std::string& fixture) {
  const auto path = std::filesystem::path(TQCACHE_TEST_DATA) / "architectures" / fixture;
  const Bytes text = test::read_all(path / "config.json");
  return test::must(parse_json_object(text));
}

Result<ModelConfig> read_hf(const Json& root) { return read_hf_config(as_bytes(root.dump())); }

std::vector<bool> layers_with_rope(const ModelConfig& config) {
  std::vector<bool> found;
  for (std::int64_t i = 0; i < config.n_layers; ++i) {
    found.push_back(config.layer(i).rope.style != cache::RopeStyle::kNone);
  }
  return found;
}

TEST(NewerFamilies, MixtralIsLlamaWithExperts) {
  const Metadata experts = {{"expert_count", std::int64_t{4}},
                            {"expert_used_count", std::int64_t{2}}};
  const ModelConfig config = read_gguf("llama", experts).value();
  EXPECT_EQ(config.experts.count, 4);
  EXPECT_EQ(config.experts.used, 2);
  EXPECT_EQ(config.experts.d_ff, 12);  // feed_forward_length
  EXPECT_TRUE(config.experts.normalized);
  EXPECT_TRUE(config.layout.permuted_heads);
  EXPECT_EQ(read_gguf("llama", {}).value().experts.count, 0);
  Json root = config_of("mixtral");
  root["norm_topk_prob"] = false;  // transformers ignores it
  EXPECT_THAT(read_hf(root), FailsWith(ErrorCode::kUnsupported, HasSubstr("norm_topk_prob")));
}

TEST(NewerFamilies, Qwen2MoeNormalizesOnlyIfAsked) {
  const Metadata experts = {{"expert_count", std::int64_t{4}},
                            {"expert_used_count", std::int64_t{2}},
                            {"expert_feed_forward_length", std::int64_t{8}},
                            {"expert_shared_feed_forward_length", std::int64_t{10}}};
  EXPECT_FALSE(read_gguf("qwen2moe", experts).value().experts.normalized);
  Metadata normed = experts;
  normed["expert_weights_norm"] = true;
  EXPECT_TRUE(read_gguf("qwen2moe", normed).value().experts.normalized);
  Json root = config_of("qwen2_moe");
  EXPECT_FALSE(read_hf(root).value().experts.normalized);
  root["norm_topk_prob"] = true;
  EXPECT_TRUE(read_hf(root).value().experts.normalized);
  root["use_sliding_window"] = true;
  EXPECT_THAT(read_hf(root), FailsWith(ErrorCode::kUnsupported, HasSubstr("use_sliding_window")));
  root["use_sliding_window"] = false;
  root["qkv_bias"] = false;
  EXPECT_THAT(read_hf(root), FailsWith(ErrorCode::kUnsupported, HasSubstr("qkv_bias")));
}

TEST(NewerFamilies, Gemma1HasNeitherCapsNorWindows) {
  Json root = config_of("gemma");
  const ModelConfig config = read_hf(root).value();
  EXPECT_EQ(config.attention_scale, 0);  // 1 / sqrt(head_dim)
  EXPECT_EQ(config.attention_cap, 0);
  EXPECT_FALSE(config.post_norms);
  EXPECT_EQ(config.activation, Activation::kGeluTanh);
  EXPECT_EQ(config.layout.norm_offset, 1);
  root["hidden_act"] = "gelu";  // the first files; the tanh formula is meant
  EXPECT_EQ(read_hf(root).value().activation, Activation::kGeluTanh);
  root["hidden_act"] = "silu";
  EXPECT_THAT(read_hf(root), FailsWith(ErrorCode::kUnsupported, HasSubstr("activation \"silu\"")));
  root["hidden_act"] = "gelu_pytorch_tanh";
  root["final_logit_softcapping"] = 30;
  EXPECT_THAT(read_hf(root),
              FailsWith(ErrorCode::kUnsupported, HasSubstr("final_logit_softcapping")));
}

TEST(NewerFamilies, SmolLm3LeavesRopeOutOfSomeLayers) {
  const ModelConfig four = read_gguf("smollm3", {{"block_count", std::int64_t{4}}}).value();
  EXPECT_THAT(layers_with_rope(four), ElementsAre(true, true, true, false));
  EXPECT_TRUE(four.layout.permuted_heads);
  Json root = config_of("smollm3");
  EXPECT_THAT(layers_with_rope(read_hf(root).value()), ElementsAre(true, false, true));
  root.erase("no_rope_layers");
  root["no_rope_layer_interval"] = 3;
  EXPECT_THAT(layers_with_rope(read_hf(root).value()), ElementsAre(true, true, false));
  root["no_rope_layer_interval"] = 0;
  EXPECT_THAT(read_hf(root), FailsWith(ErrorCode::kCorrupt, HasSubstr("no_rope_layer_interval")));
  root["no_rope_layers"] = {1, 0};
  EXPECT_THAT(read_hf(root), FailsWith(ErrorCode::kCorrupt, HasSubstr("too few layers")));
  root["no_rope_layer_interval"] = 4;
  root["no_rope_layers"] = {1, 0, 2};
  EXPECT_THAT(read_hf(root), FailsWith(ErrorCode::kUnsupported, HasSubstr("no_rope_layers")));
}

TEST(NewerFamilies, GraniteHasMultipliers) {
  const ModelConfig file = read_gguf("granite", {{"attention.scale", 0.25},
                                                 {"embedding_scale", 12.0},
                                                 {"residual_scale", 0.5},
                                                 {"logit_scale", 8.0}})
                               .value();
  EXPECT_EQ(file.attention_scale, 0.25f);
  EXPECT_EQ(file.embedding_scale, 12);
  EXPECT_EQ(file.residual_scale, 0.5f);
  EXPECT_EQ(file.logit_divisor, 8);
  EXPECT_THAT(read_gguf("granite", {{"rope.scaling.finetuned", false}}),
              FailsWith(ErrorCode::kUnsupported, HasSubstr("rope.scaling.finetuned")));
  Json root = config_of("granite");
  root.erase("residual_multiplier");
  EXPECT_EQ(read_hf(root).value().residual_scale, 1);
  root["logits_scaling"] = 0;
  EXPECT_THAT(read_hf(root), FailsWith(ErrorCode::kCorrupt, HasSubstr("logits_scaling")));
  Json llama = config_of("llama");
  llama["logits_scaling"] = 2;
  EXPECT_THAT(read_hf(llama), FailsWith(ErrorCode::kUnsupported, HasSubstr("logits_scaling")));
}

TEST(NewerFamilies, Glm4TurnsPairsOfHalfOfAHead) {
  const ModelConfig folder = read_hf(config_of("glm4")).value();
  EXPECT_EQ(folder.rope.n_dims, folder.head_dim / 2);
  EXPECT_TRUE(folder.layout.permuted_heads);
  EXPECT_TRUE(folder.layout.fused_gate_up);
  EXPECT_TRUE(folder.qkv_biases);
  EXPECT_FALSE(folder.output_bias);
  const ModelConfig file = read_gguf("glm4", {{"rope.dimension_count", std::int64_t{4}}}).value();
  EXPECT_EQ(file.rope.n_dims, 4);
  EXPECT_TRUE(file.layout.permuted_heads);
  EXPECT_THAT(read_gguf("llama", {{"rope.dimension_count", std::int64_t{4}}}),
              FailsWith(ErrorCode::kUnsupported, HasSubstr("rows are in pairs")));
}

TEST(NewerFamilies, GptOssHasItsOwnRopeAndWindows) {
  Json root = config_of("gpt_oss");
  root.erase("rope_parameters");
  root["max_position_embeddings"] = 131072;
  const ModelConfig config = read_hf(root).value();
  EXPECT_EQ(config.rope.base, 150'000);
  EXPECT_NEAR(config.rope_magnitude, 1.3465736, 1e-6);  // 0.1 ln(32) + 1
  EXPECT_EQ(config.rope.factors.front(), 1);
  EXPECT_EQ(config.rope.factors.back(), 32);
  EXPECT_EQ(config.layer(0).window, 9);
  EXPECT_EQ(config.layer(1).window, 0);
  EXPECT_EQ(config.activation, Activation::kClampedSwiglu);
  EXPECT_TRUE(config.attention_sinks);
  root["swiglu_limit"] = 8;
  EXPECT_THAT(read_hf(root), FailsWith(ErrorCode::kUnsupported, HasSubstr("swiglu_limit")));
  root["swiglu_limit"] = 7;
  root["quantization_config"] = {{"quant_method", "mxfp4"}};
  EXPECT_TRUE(read_hf(root).ok());
  root["quantization_config"]["quant_method"] = "bitsandbytes";
  EXPECT_THAT(read_hf(root), FailsWith(ErrorCode::kUnsupported, HasSubstr("quantization_config")));
  Json llama = config_of("llama");
  llama["quantization_config"] = {{"quant_method", "mxfp4"}};
  EXPECT_THAT(read_hf(llama), FailsWith(ErrorCode::kUnsupported, HasSubstr("quantization_config")));

  Metadata keys = {{"expert_count", std::int64_t{4}},
                   {"expert_used_count", std::int64_t{2}},
                   {"expert_feed_forward_length", std::int64_t{8}},
                   {"attention.sliding_window", std::int64_t{16}}};
  const ModelConfig file = read_gguf("gpt-oss", keys).value();
  EXPECT_EQ(file.layer(0).window, 16);
  EXPECT_EQ(file.layer(1).window, 0);
  EXPECT_TRUE(file.experts.biases);
  keys["expert_gating_func"] = std::int64_t{2};  // sigmoid
  EXPECT_THAT(read_gguf("gpt-oss", keys),
              FailsWith(ErrorCode::kUnsupported, HasSubstr("expert_gating_func")));
  keys["expert_gating_func"] = std::int64_t{3};
  EXPECT_TRUE(read_gguf("gpt-oss", keys).ok());
}

// --- the experts of gpt-oss

TEST(RearrangedExperts, HaveTheNamesAndShapesOfGguf) {
  for (const char* name : {"gpt_oss", "gpt_oss_mxfp4"}) {
    const FixtureModel model(name);
    const std::int64_t d_ff = model.config.experts.d_ff;
    const auto& gate = model.tensors.by_name.at("blk.1.ffn_gate_exps.weight");
    EXPECT_THAT(gate.shape, ElementsAre(4, d_ff, 32));
    EXPECT_EQ(gate.type_name, std::string(name) == "gpt_oss" ? "BF16" : "MXFP4");
    EXPECT_THAT(model.tensors.by_name.at("blk.1.ffn_down_exps.weight").shape,
                ElementsAre(4, 32, d_ff));
    EXPECT_THAT(model.tensors.by_name.at("blk.1.ffn_up_exps.bias").shape, ElementsAre(4, d_ff));
    for (const auto& entry : model.tensors.by_name) {
      EXPECT_THAT(entry.first, testing::Not(HasSubstr("gate_up")));
      EXPECT_THAT(entry.first, testing::Not(HasSubstr("originals")));
    }
  }
}

struct Part {
  std::string name;
  tensors::TensorType type;
  std::vector<std::uint64_t> shape;
};

Result<void> rearrange(const std::vector<Part>& parts, const MemoryBudget& memory = {}) {
  static const Bytes zeros(4096);
  ModelTensors model;
  for (const Part& part : parts) {
    std::uint64_t n = part.type == tensors::TensorType::kU8 ? 1 : 4;
    for (const std::uint64_t size : part.shape) n *= size;
    model.by_name[part.name] = {part.type, "type", part.shape, ByteView(zeros).first(n)};
  }
  return rearrange_experts(model, memory);
}

TEST(RearrangedExperts, RefuseShapesThatDoNotFit) {
  using enum tensors::TensorType;
  const std::string both = "blk.0.ffn_gate_up_exps";
  EXPECT_TRUE(rearrange({{both + ".weight", kF32, {2, 3, 4}}}).ok());
  const std::vector<std::vector<Part>> bad = {
      {{both + ".weight", kF32, {2, 12}}},
      {{both + ".weight", kF32, {2, 3, 5}}},  // no pairs of gate and up
      {{both + ".bias", kF32, {2, 3}}},
      {{both + ".bias", kF32, {2, 3, 4}}},
      {{both + ".blocks", kU8, {2, 4, 1, 16}}},  // without scales
      {{both + ".scales", kU8, {2, 4, 1}}},
      {{both + ".blocks", kU8, {2, 4, 1, 16}}, {both + ".scales", kU8, {2, 4, 2}}},
      {{both + ".blocks", kU8, {2, 4, 1, 8}}, {both + ".scales", kU8, {2, 4, 1}}},
      {{both + ".weight", kF32, {2, 3, 4}}, {"blk.0.ffn_up_exps.weight", kF32, {2, 2, 3}}},
      {{both + ".weight", kF32, {2, 32, 4}},
       {both + ".blocks", kU8, {2, 4, 1, 16}},
       {both + ".scales", kU8, {2, 4, 1}}},
  };
  for (const auto& parts : bad) {
    const auto done = rearrange(parts);
    ASSERT_FALSE(done.ok()) << parts.front().name;
    EXPECT_EQ(done.error().code, ErrorCode::kCorrupt) << done.error().message;
  }
  const auto other = rearrange({{both + ".weight", kI32, {2, 3, 4}}});
  ASSERT_FALSE(other.ok());
  EXPECT_EQ(other.error().code, ErrorCode::kUnsupported);
}

TEST(RearrangedExperts, AreComparedWithTheLimitOfMemory) {
  const auto done =
      rearrange({{"blk.0.ffn_down_exps.weight", tensors::TensorType::kF32, {2, 3, 4}}},
                MemoryBudget::of_user(64));
  ASSERT_FALSE(done.ok());
  EXPECT_EQ(done.error().code, ErrorCode::kTooLarge);
}

// --- fingerprints

TEST(NewerFamilies, HaveFingerprintsOfTheirNewFields) {
  ModelConfig plain;
  plain.n_layers = 1;
  plain.layers.resize(1);
  std::set<Sha256> prints = {model_fingerprint(plain, {})};
  const std::vector<std::function<void(ModelConfig&)>> changes = {
      [](ModelConfig& config) { config.pre_norms = false; },
      [](ModelConfig& config) { config.wide_qk_norms = true; },
      [](ModelConfig& config) { config.attention_sinks = true; },
      [](ModelConfig& config) { config.experts.biases = true; },
      [](ModelConfig& config) { config.layout.fused_gate_up = true; },
      [](ModelConfig& config) { config.residual_scale = 0.5f; },
      [](ModelConfig& config) { config.logit_divisor = 0.5f; },
      [](ModelConfig& config) { config.activation = Activation::kClampedSwiglu; },
      [](ModelConfig& config) { config.layers[0].rope.style = cache::RopeStyle::kNone; },
  };
  for (const auto& change : changes) {
    ModelConfig other = plain;
    change(other);
    prints.insert(model_fingerprint(other, {}));
  }
  EXPECT_EQ(prints.size(), changes.size() + 1);
}

}  // namespace newer_families_test
}  // namespace tqcache::model
