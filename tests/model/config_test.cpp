#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "model/tiny_files.h"
#include "support/matchers.h"
#include "tqcache/file.h"
#include "tqcache/model/loading/config_readers.h"

namespace tqcache::model {
namespace config_test {

using tensors::Gguf;
using testing::HasSubstr;
using tiny::Json;

const std::string kDemo = TQCACHE_DEMO_MODEL;

Result<ModelConfig> from_json(const Json& root) { return read_hf_config(as_bytes(root.dump())); }

void expect_demo(const ModelConfig& config) {
  EXPECT_EQ(config.architecture, "qwen3");
  EXPECT_EQ(config.n_layers, 8);
  EXPECT_EQ(config.d_model, 384);
  EXPECT_EQ(config.d_ff, 1024);
  EXPECT_EQ(config.n_heads, 4);
  EXPECT_EQ(config.n_kv_heads, 2);
  EXPECT_EQ(config.head_dim, 128);
  EXPECT_EQ(config.vocab_size, 8192);
  EXPECT_EQ(config.context_length, 16384);
  EXPECT_FLOAT_EQ(config.rms_norm_epsilon, 1e-6f);
  EXPECT_EQ(config.rope, (cache::Rope{cache::RopeStyle::kHalfSplit, 128, 1e6}));
  EXPECT_TRUE(config.tied_embeddings);
}

TEST(ModelConfig, IsTheSameFromBothFilesOfTheDemo) {
  const MappedFile file = MappedFile::open(kDemo + "/tqcache-demo-17m.q8_0.gguf").value();
  const ModelConfig from_gguf = read_gguf_config(tensors::read_gguf(file.bytes()).value()).value();
  expect_demo(from_gguf);
  EXPECT_EQ(from_gguf.name, "tqcache demo 17M");
  expect_demo(read_hf_config(test::read_all(kDemo + "/hf/config.json")).value());
}

struct GgufCase {
  ErrorCode code;
  std::string message;  // a part of it
  std::function<void(Gguf&)> change;
};

void expect_refused(const std::vector<GgufCase>& cases) {
  for (const GgufCase& one : cases) {
    Gguf file = tiny::gguf();
    one.change(file);
    EXPECT_THAT(read_gguf_config(file), test::FailsWith(one.code, HasSubstr(one.message)));
  }
}

auto set(const std::string& key, tensors::GgufValue value) {
  return [=](Gguf& file) { file.metadata[key] = value; };
}

TEST(GgufConfig, NeedsEveryNumber) {
  for (const char* key : {"general.architecture", "qwen3.block_count", "qwen3.context_length",
                          "qwen3.embedding_length", "qwen3.feed_forward_length",
                          "qwen3.attention.head_count", "qwen3.attention.head_count_kv",
                          "qwen3.attention.layer_norm_rms_epsilon", "tokenizer.ggml.tokens"}) {
    expect_refused({{ErrorCode::kCorrupt, key, [&](Gguf& file) { file.metadata.erase(key); }}});
  }
}

TEST(GgufConfig, RefusesOtherArithmetic) {
  expect_refused({
      {ErrorCode::kUnsupported, "architecture \"mamba\"",
       set("general.architecture", std::string("mamba"))},
      {ErrorCode::kUnsupported, "RoPE scaling \"spiral\"",
       set("qwen3.rope.scaling.type", std::string("spiral"))},
      {ErrorCode::kUnsupported, "qwen3.attention.sliding_window",
       set("qwen3.attention.sliding_window", std::int64_t{4096})},
      {ErrorCode::kUnsupported, "qwen3.expert_count", set("qwen3.expert_count", std::int64_t{8})},
      {ErrorCode::kUnsupported, "keys and values of different sizes",
       set("qwen3.attention.value_length", std::int64_t{4})},
      {ErrorCode::kUnsupported, "qwen3.attention.key_length_swa",
       set("qwen3.attention.key_length_swa", std::int64_t{4})},
      {ErrorCode::kUnsupported, "layers with different numbers (1 and 2)",
       set("qwen3.attention.head_count_kv", std::vector<std::int64_t>{1, 2})},
      {ErrorCode::kUnsupported, "feed_forward_length\": layers with different numbers",
       set("qwen3.feed_forward_length", std::vector<std::int64_t>{8, 16})},
  });
}

TEST(GgufConfig, TakesWhatChangesNothing) {
  Gguf file = tiny::gguf();
  set("qwen3.rope.scaling.type", std::string("none"))(file);
  set("qwen3.rope.scaling.factor", 4.0)(file);  // of a scaling that is switched off
  set("qwen3.attention.head_count_kv", std::vector<std::int64_t>{1, 1})(file);
  const std::int64_t d_ff = read_gguf_config(file)->d_ff;
  set("qwen3.feed_forward_length", std::vector<std::int64_t>{d_ff, d_ff})(file);
  set("qwen3.attention.sliding_window", std::int64_t{0})(file);
  const ModelConfig config = read_gguf_config(file).value();
  EXPECT_EQ(config.n_kv_heads, 1);
  EXPECT_EQ(config.d_ff, d_ff);
  EXPECT_TRUE(config.tied_embeddings);
  file.tensors["output.weight"] = {};
  EXPECT_FALSE(read_gguf_config(file)->tied_embeddings);
}

TEST(GgufConfig, DerivesTheHeadFromTheWidth) {
  Gguf file = tiny::gguf();
  file.metadata.erase("qwen3.attention.key_length");
  file.metadata.erase("qwen3.attention.value_length");
  EXPECT_EQ(read_gguf_config(file)->head_dim, 4);  // 8 / 2
  EXPECT_EQ(read_gguf_config(file)->rope.n_dims, 4);
  expect_refused(
      {{ErrorCode::kCorrupt, "n_heads: 0", set("qwen3.attention.head_count", std::int64_t{0})}});
}

TEST(ModelConfig, BoundsEveryNumber) {
  const ModelConfig good = read_gguf_config(tiny::gguf()).value();
  const std::vector<std::pair<std::string, std::int64_t ModelConfig::*>> numbers = {
      {"n_layers", &ModelConfig::n_layers},
      {"d_model", &ModelConfig::d_model},
      {"d_ff", &ModelConfig::d_ff},
      {"n_heads", &ModelConfig::n_heads},
      {"n_kv_heads", &ModelConfig::n_kv_heads},
      {"head_dim", &ModelConfig::head_dim},
      {"vocab_size", &ModelConfig::vocab_size},
      {"context_length", &ModelConfig::context_length},
  };
  for (const auto& [name, member] : numbers) {
    const auto error_of = [&good, field = member](std::int64_t value) {
      ModelConfig config = good;
      config.*field = value;
      return validate(config).error();
    };
    EXPECT_THAT(error_of(0).message, HasSubstr(name));
    EXPECT_EQ(error_of(0).code, ErrorCode::kCorrupt);
    EXPECT_EQ(error_of(-1).code, ErrorCode::kCorrupt);
    EXPECT_EQ(error_of(std::int64_t{1} << 40).code, ErrorCode::kTooLarge) << name;
  }
}

TEST(ModelConfig, RefusesNumbersThatContradictEachOther) {
  const ModelConfig good = read_gguf_config(tiny::gguf()).value();
  const auto code_of = [&](const std::function<void(ModelConfig&)>& change) {
    ModelConfig config = good;
    change(config);
    return validate(config).error().code;
  };
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(code_of([](auto& c) { c.n_heads = 3, c.n_kv_heads = 2; }), ErrorCode::kCorrupt);
  EXPECT_EQ(code_of([](auto& c) { c.head_dim = 7; }), ErrorCode::kCorrupt);
  EXPECT_EQ(code_of([](auto& c) { c.rms_norm_epsilon = 0; }), ErrorCode::kCorrupt);
  EXPECT_EQ(code_of([&](auto& c) { c.rms_norm_epsilon = nan; }), ErrorCode::kCorrupt);
  EXPECT_EQ(code_of([](auto& c) { c.rope.base = 0; }), ErrorCode::kCorrupt);
  EXPECT_EQ(code_of([](auto& c) { c.rope.base = HUGE_VAL; }), ErrorCode::kCorrupt);
  EXPECT_EQ(code_of([&](auto& c) { c.rope.base = nan; }), ErrorCode::kCorrupt);
}

TEST(HfConfig, NeedsEveryNumber) {
  for (const char* key :
       {"model_type", "num_hidden_layers", "max_position_embeddings", "hidden_size",
        "intermediate_size", "num_attention_heads", "num_key_value_heads", "vocab_size"}) {
    Json root = tiny::config();
    root.erase(key);
    EXPECT_THAT(from_json(root),
                test::FailsWith(ErrorCode::kCorrupt, "key \"" + std::string(key) + "\": missing"));
    root[key] = Json::array();
    EXPECT_EQ(from_json(root).error().code, ErrorCode::kCorrupt);
  }
}

TEST(HfConfig, RefusesNumbersOfAnotherKind) {
  const std::vector<std::pair<const char*, Json>> cases = {
      {"hidden_size", 8.5},    {"hidden_size", "8"},  {"hidden_size", std::uint64_t{1} << 63},
      {"hidden_size", -8},     {"rope_theta", "1e6"}, {"tie_word_embeddings", 1},
      {"rms_norm_eps", false}, {"rope_scaling", 2},   {"layer_types", "full_attention"},
  };
  for (const auto& [key, value] : cases) {
    Json root = tiny::config();
    root[key] = value;
    const auto config = from_json(root);
    ASSERT_FALSE(config.ok()) << key << value;
    EXPECT_EQ(config.error().code, ErrorCode::kCorrupt) << config.error().message;
  }
}

TEST(HfConfig, RefusesOtherArithmetic) {
  const std::vector<std::pair<const char*, Json>> cases = {
      {"model_type", "mamba"},
      {"architectures", {"Qwen3ForSequenceClassification"}},
      {"hidden_act", "gelu"},
      {"mlp_bias", true},
      {"use_bidirectional_attention", true},
      {"quantization_config", {{"quant_method", "gptq"}}},
      {"layer_types", {"full_attention", "sliding_attention"}},
      {"rope_scaling", {{"rope_type", "proportional"}, {"factor", 4.0}}},
      {"rope_parameters", {{"rope_type", "mrope"}, {"rope_theta", 1e6}}},
      {"hidden_act", "gelu_pytorch_tanh"},
      // What transformers reads in other families only, or obeys here.
      {"partial_rotary_factor", 0.5},
      {"rope_parameters", {{"rope_type", "default"}, {"partial_rotary_factor", 0.5}}},
      {"is_causal", false},
      {"attn_logit_softcapping", 50.0},
      {"final_logit_softcapping", 30.0},
      {"num_experts", 8},
      {"num_local_experts", 8},
      // Keys of families that were renamed.
      {"attention_multiplier", 0.5},
      {"clip_qkv", 8.0},
      {"embedding_multiplier", 12},
      {"logit_scale", 0.0625},
      {"logits_scaling", 8},
      {"moe_num_experts", 8},
      {"no_rope_layers", {1, 0}},
      {"qk_layernorm", true},
      {"residual_multiplier", 0.22},
      {"use_bias", true},
      {"use_parallel_residual", true},
      {"use_qk_norm", true},
  };
  for (const auto& [key, value] : cases) {
    Json root = tiny::config();
    root[key] = value;
    const auto config = from_json(root);
    ASSERT_FALSE(config.ok()) << key << value;
    EXPECT_EQ(config.error().code, ErrorCode::kUnsupported) << config.error().message;
  }
}

TEST(HfConfig, TakesOtherKeysThatChangeNothing) {
  const std::vector<std::pair<const char*, Json>> cases = {{"hidden_act", "swish"},
                                                           {"partial_rotary_factor", 1.0},
                                                           {"is_causal", true},
                                                           {"attn_logit_softcapping", nullptr},
                                                           {"embedding_multiplier", 1.0},
                                                           {"no_rope_layers", Json::array()},
                                                           {"num_local_experts", 0},
                                                           {"use_bias", false},
                                                           {"quantization_config", nullptr}};
  for (const auto& [key, value] : cases) {
    Json root = tiny::config();
    root[key] = value;
    const auto config = from_json(root);
    ASSERT_TRUE(config.ok()) << key << value << config.error().message;
    EXPECT_EQ(config->activation, Activation::kSilu);
  }
}

TEST(HfConfig, RefusesFlagsThatAreNull) {
  for (const char* key : {"attention_bias", "mlp_bias", "norm_topk_prob", "tie_word_embeddings",
                          "use_sliding_window"}) {
    Json root = tiny::config();
    root[key] = nullptr;
    const auto config = from_json(root);
    ASSERT_FALSE(config.ok()) << key;
    EXPECT_EQ(config.error().code, ErrorCode::kCorrupt) << config.error().message;
  }
}

TEST(HfConfig, TakesTheRopeOfOldAndNewTransformers) {
  Json old_form = tiny::config();
  old_form["rope_scaling"] = {{"rope_type", "default"}};
  EXPECT_EQ(from_json(old_form)->rope.base, 10'000);
  Json new_form = tiny::config();
  new_form.erase("rope_theta");
  new_form["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 5e6}};
  EXPECT_EQ(from_json(new_form)->rope.base, 5e6);
}

TEST(HfConfig, RefusesTwoRopesThatDisagree) {
  Json root = tiny::config();
  root["rope_scaling"] = {{"type", "linear"}, {"factor", 2.0}};
  root["rope_parameters"] = {{"rope_type", "linear"}, {"factor", 2.0}, {"rope_theta", 5e6}};
  EXPECT_TRUE(from_json(root).ok()) << from_json(root).error().message;
  root["rope_parameters"]["factor"] = 4.0;
  auto config = from_json(root);
  ASSERT_FALSE(config.ok());
  EXPECT_EQ(config.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(config.error().message, HasSubstr("\"factor\" is \"2.0\", and \"4.0\" in"));
  root["rope_parameters"] = {{"rope_type", "yarn"}, {"factor", 2.0}, {"rope_theta", 5e6}};
  config = from_json(root);
  ASSERT_FALSE(config.ok());
  EXPECT_THAT(config.error().message, HasSubstr("\"type\" is"));
}

TEST(HfConfig, FillsInWhatTransformersFillsIn) {
  Json root = tiny::config();
  for (const char* key : {"head_dim", "rms_norm_eps", "rope_theta", "tie_word_embeddings",
                          "hidden_act", "architectures"}) {
    root.erase(key);
  }
  const ModelConfig config = from_json(root).value();
  EXPECT_EQ(config.head_dim, 128);
  EXPECT_FLOAT_EQ(config.rms_norm_epsilon, 1e-6f);
  EXPECT_EQ(config.rope.base, 10'000);
  EXPECT_FALSE(config.tied_embeddings);
}

}  // namespace config_test
}  // namespace tqcache::model
