// Configurations of the families that the decoder runs, in both file forms.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "model/tiny_files.h"
#include "support/matchers.h"
#include "support/temp_dir.h"
#include "tqcache/model/attention/rope_table.h"
#include "tqcache/model/loading/architecture.h"
#include "tqcache/model/loading/config_readers.h"

namespace tqcache::model {
namespace family_config_test {

using tensors::Gguf;
using test::FailsWith;
using testing::ElementsAre;
using testing::HasSubstr;
using tiny::Json;

// tiny::gguf() with another architecture's word before its keys.
Gguf gguf_of(const std::string& word) {
  Gguf file = tiny::gguf();
  std::map<std::string, tensors::GgufValue> metadata;
  for (const auto& [key, value] : file.metadata) {
    const bool own = key.starts_with("qwen3.");
    metadata[own ? word + key.substr(5) : key] = value;
  }
  metadata["general.architecture"] = word;
  file.metadata = std::move(metadata);
  return file;
}

using Change = std::function<void(Gguf&)>;

Change set(const std::string& key, tensors::GgufValue value) {
  return [=](Gguf& file) { file.metadata[key] = value; };
}

Result<ModelConfig> read_with(const std::string& word, const std::vector<Change>& changes) {
  Gguf file = gguf_of(word);
  for (const Change& change : changes) change(file);
  return read_gguf_config(file);
}

// A tensor of f32 values, and the memory it stands in.
class FloatTensor {
 public:
  explicit FloatTensor(std::vector<float> values) : values_(std::move(values)) {}
  tensors::TensorView view() const {
    return {tensors::TensorType::kF32, "F32", {values_.size()}, std::as_bytes(std::span(values_))};
  }

 private:
  std::vector<float> values_;
};

Json hf_of(const std::string& type, const std::string& class_name) {
  Json root = tiny::config();
  root["model_type"] = type;
  root["architectures"] = {class_name};
  return root;
}

Result<ModelConfig> read(const Json& root) { return read_hf_config(as_bytes(root.dump())); }

std::vector<std::int64_t> windows_of(const ModelConfig& config) {
  std::vector<std::int64_t> windows;
  for (std::int64_t i = 0; i < config.n_layers; ++i) windows.push_back(config.layer(i).window);
  return windows;
}

TEST(Architecture, IsFoundByEitherName) {
  EXPECT_EQ(find_gguf_architecture("gemma3", false).value()->hf_type, "gemma3_text");
  EXPECT_EQ(find_hf_architecture("mistral").value()->word, "llama");
  const auto unknown = find_gguf_architecture("mamba", false);
  EXPECT_EQ(unknown.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(unknown.error().message,
              HasSubstr("architecture \"mamba\", only \"llama\", \"qwen2\""));
  EXPECT_THAT(find_hf_architecture("mamba").error().message, HasSubstr("model type \"mamba\""));
}

// --- RoPE

TEST(RopeScaling, SlowsPairsDownByHowFastTheyTurn) {
  const cache::Rope rope = {cache::RopeStyle::kHalfSplit, 128, 5e5};
  const auto factors = llama3_factors(rope, {8, 1, 4, 8192});
  ASSERT_EQ(factors.size(), 64u);
  EXPECT_EQ(factors.front(), 1);
  EXPECT_EQ(factors.back(), 8);
  // Pair i turns 8192 / (2 pi 500000^(i / 64)) times over the original context: 1.98 at 32.
  const double turns = 8192 / (2 * M_PI * std::pow(5e5, 0.5));
  const double share = (turns - 1) / 3;
  EXPECT_NEAR(factors[32], 1 / ((1 - share) / 8 + share), 1e-5);
}

TEST(RopeScaling, KnowsNumbersThatDoNotFit) {
  const Llama3Scaling good = {8, 1, 4, 8192};
  EXPECT_TRUE(is_valid(good));
  for (double Llama3Scaling::*member :
       {&Llama3Scaling::factor, &Llama3Scaling::low_frequency, &Llama3Scaling::high_frequency,
        &Llama3Scaling::original_context}) {
    for (const double value : {0.0, -1.0, std::nan("")}) {
      Llama3Scaling bad = good;
      bad.*member = value;
      EXPECT_FALSE(is_valid(bad)) << value;
    }
  }
  EXPECT_FALSE(is_valid({8, 4, 4, 8192}));
}

TEST(RopeScaling, MakesLongContextsLouder) {
  EXPECT_EQ(longrope_magnitude(1, 4096), 1);
  EXPECT_FLOAT_EQ(longrope_magnitude(32, 4096), 1.1902380714f);  // sqrt(1 + 5 / 12)
}

TEST(FamilyConfig, ReadsRopeScalingOfGguf) {
  const FloatTensor freqs({1, 2, 4});
  const auto add = [&](const char* name) {
    return [&freqs, name](Gguf& file) { file.tensors[name] = freqs.view(); };
  };
  const auto llama3 = read_with("llama", {add("rope_freqs.weight")}).value();
  EXPECT_THAT(llama3.rope.factors, ElementsAre(1, 2, 4));
  EXPECT_TRUE(llama3.layout.permuted_heads);
  const auto linear = read_with("llama", {set("llama.rope.scaling.type", std::string("linear")),
                                          set("llama.rope.scaling.factor", 4.0)})
                          .value();
  EXPECT_THAT(linear.rope.factors, ElementsAre(4, 4, 4));
  const auto by_factor_alone = read_with("llama", {set("llama.rope.scale_linear", 2.0)}).value();
  EXPECT_THAT(by_factor_alone.rope.factors, ElementsAre(2, 2, 2));
  const auto longrope =
      read_with("phi3", {add("rope_factors_short.weight"), add("rope_factors_long.weight"),
                         set("phi3.rope.scaling.original_context_length", std::int64_t{64}),
                         set("phi3.rope.scaling.attn_factor", 1.25)})
          .value();
  EXPECT_THAT(longrope.rope.factors, ElementsAre(1, 2, 4));
  EXPECT_EQ(longrope.context_length, 64);
  EXPECT_EQ(longrope.rope_magnitude, 1.25f);
}

TEST(FamilyConfig, RefusesRopeOfGgufThatItCannotDo) {
  const FloatTensor freqs({1, 2, 4, 8});
  const Change too_many = [&](Gguf& file) { file.tensors["rope_freqs.weight"] = freqs.view(); };
  EXPECT_THAT(read_with("llama", {too_many}),
              FailsWith(ErrorCode::kCorrupt, HasSubstr("RoPE factors")));
  const Change no_vector = [&](Gguf& file) {
    file.tensors["rope_freqs.weight"] = freqs.view();
    file.tensors["rope_freqs.weight"].shape = {2, 2};
  };
  EXPECT_THAT(
      read_with("llama", {no_vector}),
      FailsWith(ErrorCode::kCorrupt, HasSubstr("tensor \"rope_freqs.weight\": not RoPE factors")));
  EXPECT_THAT(read_with("llama", {set("llama.rope.scaling.type", std::string("su"))}),
              FailsWith(ErrorCode::kUnsupported, HasSubstr("RoPE scaling \"su\"")));
  const std::vector<Change> yarn = {set("qwen3.rope.scaling.type", std::string("yarn")),
                                    set("qwen3.rope.scaling.factor", 4.0)};
  for (const auto& [key, value] : std::map<std::string, double>{
           {"yarn_log_multiplier", 0.1}, {"yarn_ext_factor", 0.5}, {"yarn_attn_factor", 2}}) {
    auto changes = yarn;
    changes.push_back(set("qwen3.rope.scaling." + key, value));
    EXPECT_THAT(read_with("qwen3", changes), FailsWith(ErrorCode::kUnsupported, HasSubstr(key)));
  }
  const FloatTensor three({1, 2, 4});
  auto both = yarn;
  both.push_back([&](Gguf& file) { file.tensors["rope_freqs.weight"] = three.view(); });
  EXPECT_THAT(read_with("qwen3", both),
              FailsWith(ErrorCode::kUnsupported, HasSubstr("factors of pairs")));
  EXPECT_THAT(read_with("qwen3", {yarn[0]}),
              FailsWith(ErrorCode::kCorrupt, HasSubstr("rope.scaling.factor")));
  EXPECT_THAT(read_with("qwen3", {yarn[0], set("qwen3.rope.scaling.factor", -4.0)}),
              FailsWith(ErrorCode::kCorrupt, HasSubstr("numbers that do not fit")));
  EXPECT_THAT(read_with("llama", {set("llama.rope.dimension_count", std::int64_t{4})}),
              FailsWith(ErrorCode::kUnsupported, HasSubstr("llama.rope.dimension_count")));
  EXPECT_THAT(read_with("qwen2", {set("qwen2.rope.dimension_count", std::int64_t{8})}),
              FailsWith(ErrorCode::kCorrupt, HasSubstr("RoPE rotates 8 of 6 components")));
  EXPECT_THAT(read_with("qwen2", {set("qwen2.rope.scaling.factor", -2.0)}),
              FailsWith(ErrorCode::kCorrupt, HasSubstr("RoPE factors")));
}

TEST(FamilyConfig, ReadsRopeScalingOfFolders) {
  Json root = hf_of("llama", "LlamaForCausalLM");
  root["rope_scaling"] = {{"type", "linear"}, {"factor", 2.0}};
  EXPECT_THAT(read(root)->rope.factors, ElementsAre(2, 2, 2));
  root["rope_scaling"] = {{"rope_type", "llama3"},
                          {"factor", 8.0},
                          {"low_freq_factor", 1.0},
                          {"high_freq_factor", 4.0},
                          {"original_max_position_embeddings", 64}};
  EXPECT_EQ(read(root)->rope.factors.front(), 1);
  root["rope_scaling"]["high_freq_factor"] = 1.0;
  EXPECT_THAT(read(root), FailsWith(ErrorCode::kCorrupt, HasSubstr("RoPE scaling \"llama3\"")));
  root["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", -2.0}};
  EXPECT_THAT(read(root), FailsWith(ErrorCode::kCorrupt, HasSubstr("RoPE scaling \"yarn\"")));
}

// The numbers are those of transformers 5.23, modeling_rope_utils.py.
TEST(RopeScaling, MixesPairsInTheMiddleByYarn) {
  const cache::Rope rope = {cache::RopeStyle::kHalfSplit, 128, 1e4};
  const auto factors = yarn_factors(rope, {4, 32, 1, 2048, true});
  ASSERT_EQ(factors.size(), 64u);
  const std::map<std::size_t, double> expected = {{0, 1.0},       {15, 1.0},      {20, 1.136364},
                                                  {25, 1.369863}, {30, 1.724138}, {35, 2.325581},
                                                  {40, 3.571428}, {45, 4.0},      {63, 4.0}};
  for (const auto& [pair, factor] : expected) EXPECT_NEAR(factors[pair], factor, 2e-5) << pair;
  EXPECT_NEAR(yarn_magnitude(4), 1.138629436, 1e-8);

  const cache::Rope wide = {cache::RopeStyle::kHalfSplit, 128, 1e6};
  const auto not_whole = yarn_factors(wide, {8, 16, 2, 4096, false});
  EXPECT_NEAR(not_whole[15], 1, 1e-6);
  EXPECT_NEAR(not_whole[20], 1.34535, 2e-5);
  EXPECT_NEAR(not_whole[25], 3.458639, 2e-5);
  EXPECT_NEAR(not_whole[30], 8, 1e-6);
  EXPECT_NEAR(yarn_magnitude(8, .707) / yarn_magnitude(8, 1), 0.9495608824621653, 1e-12);
}

TEST(FamilyConfig, ReadsYarn) {
  Json root = hf_of("qwen3", "Qwen3ForCausalLM");
  root["rope_scaling"] = {
      {"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 256}};
  const ModelConfig config = read(root).value();
  EXPECT_EQ(config.context_length, 1024);
  EXPECT_EQ(config.rope.factors, yarn_factors(config.rope, {4, 32, 1, 256, true}));
  EXPECT_FLOAT_EQ(config.rope_magnitude, 1.1386294f);
  const auto file =
      read_with("qwen3", {set("qwen3.rope.scaling.type", std::string("yarn")),
                          set("qwen3.rope.scaling.factor", 4.0),
                          set("qwen3.rope.scaling.original_context_length", std::int64_t{256})})
          .value();
  EXPECT_EQ(file.rope, config.rope);
  EXPECT_EQ(file.rope_magnitude, config.rope_magnitude);
  EXPECT_EQ(file.context_length, 1024);
  root["rope_scaling"].update({{"attention_factor", 1.5}, {"type", "yarn"}});
  EXPECT_EQ(read(root)->rope_magnitude, 1.5f);
  // The context of the file, where it is wider; the original one is that if it is missing.
  root["rope_scaling"] = {{"type", "yarn"}, {"factor", 2.0}};
  root["max_position_embeddings"] = 512;
  EXPECT_EQ(read(root)->context_length, 1024);
  for (const char* type : {"gemma3_text", "phi3"}) {
    Json other = hf_of(type, *type == 'g' ? "Gemma3ForCausalLM" : "Phi3ForCausalLM");
    other["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 2.0}};
    EXPECT_THAT(read(other), FailsWith(ErrorCode::kUnsupported,
                                       HasSubstr("RoPE scaling \"yarn\" in this family")));
  }
}

TEST(FamilyConfig, EndsTheContextWhereDynamicScalingBegins) {
  Json root = hf_of("llama", "LlamaForCausalLM");
  const ModelConfig plain = read(root).value();
  root["rope_scaling"] = {{"type", "dynamic"}, {"factor", 4.0}};
  EXPECT_EQ(read(root)->rope, plain.rope);
  EXPECT_EQ(read(root)->context_length, plain.context_length);
}

TEST(FamilyConfig, RefusesRopeScalingThatTransformersDoesNotApply) {
  Json gemma = hf_of("gemma3_text", "Gemma3ForCausalLM");
  gemma["rope_scaling"] = {{"type", "linear"}, {"factor", 8.0}};
  EXPECT_THAT(read(gemma),
              FailsWith(ErrorCode::kUnsupported, HasSubstr("transformers ignores it")));
  Json phi = hf_of("phi3", "Phi3ForCausalLM");
  phi["rope_scaling"] = {{"type", "linear"}, {"factor", 8.0}};
  EXPECT_THAT(read(phi), FailsWith(ErrorCode::kUnsupported,
                                   HasSubstr("RoPE scaling \"linear\" in this family")));
  phi["rope_scaling"] = {
      {"type", "longrope"}, {"short_factor", {1, 2, 3}}, {"long_factor", {4, 5, 6}}};
  EXPECT_THAT(read(phi),
              FailsWith(ErrorCode::kUnsupported, HasSubstr("original_max_position_embeddings")));
}

TEST(FamilyConfig, EndsTheContextWhereLongRopeChanges) {
  Json root = hf_of("phi3", "Phi3ForCausalLM");
  root["original_max_position_embeddings"] = 128;
  root["rope_scaling"] = {{"type", "su"}, {"short_factor", {1, 2, 3}}, {"long_factor", {4, 5, 6}}};
  const ModelConfig config = read(root).value();
  EXPECT_EQ(config.context_length, 128);
  EXPECT_THAT(config.rope.factors, ElementsAre(1, 2, 3));
  EXPECT_FLOAT_EQ(config.rope_magnitude, longrope_magnitude(4, 128));
  root["rope_scaling"]["short_factor"] = {1, 2};
  EXPECT_THAT(read(root),
              FailsWith(ErrorCode::kCorrupt, HasSubstr("key \"short_factor\": not 3 numbers")));
  root["original_max_position_embeddings"] = 1;
  EXPECT_THAT(read(root),
              FailsWith(ErrorCode::kCorrupt, HasSubstr("original_max_position_embeddings")));
}

TEST(FamilyConfig, TurnsAPartOfTheHead) {
  Json root = hf_of("phi3", "Phi3ForCausalLM");
  root["partial_rotary_factor"] = 0.75;
  EXPECT_EQ(read(root)->rope.n_dims, 4);
  for (const double share : {0.0, -1.0, 1.5}) {
    root["partial_rotary_factor"] = share;
    EXPECT_THAT(read(root), FailsWith(ErrorCode::kCorrupt, HasSubstr("partial_rotary_factor")));
  }
  root["partial_rotary_factor"] = 0.5;  // three components
  EXPECT_THAT(read(root),
              FailsWith(ErrorCode::kCorrupt, HasSubstr("RoPE rotates 3 of 6 components")));
  root["head_dim"] = std::numeric_limits<std::int64_t>::max();  // beyond it as a double
  root["partial_rotary_factor"] = 1.0;
  EXPECT_THAT(read(root), FailsWith(ErrorCode::kCorrupt,
                                    HasSubstr("RoPE rotates 9223372036854775808 components")));
}

// --- windows

TEST(FamilyConfig, GivesEveryLayerOfMistralItsWindow) {
  Json root = hf_of("mistral", "MistralForCausalLM");
  EXPECT_THAT(windows_of(read(root).value()), ElementsAre(0, 0));
  root["sliding_window"] = 32;
  EXPECT_THAT(windows_of(read(root).value()), ElementsAre(32, 32));
  root["sliding_window"] = 512;  // as wide as the context
  EXPECT_THAT(windows_of(read(root).value()), ElementsAre(0, 0));
  for (const int window : {-1, 0}) {
    root["sliding_window"] = window;
    EXPECT_THAT(read(root), FailsWith(ErrorCode::kCorrupt, HasSubstr("sliding_window")));
  }
  const Change window = set("llama.attention.sliding_window", std::int64_t{32});
  EXPECT_THAT(windows_of(read_with("llama", {window}).value()), ElementsAre(32, 32));
}

TEST(FamilyConfig, IgnoresTheWindowOfLlama) {
  Json root = hf_of("llama", "LlamaForCausalLM");
  root["sliding_window"] = 32;
  EXPECT_THAT(windows_of(read(root).value()), ElementsAre(0, 0));
}

TEST(FamilyConfig, GivesQwenWindowsOnlyIfAsked) {
  Json root = hf_of("qwen2", "Qwen2ForCausalLM");
  root["sliding_window"] = 32;
  root["max_window_layers"] = 1;
  EXPECT_THAT(windows_of(read(root).value()), ElementsAre(0, 0));
  root["use_sliding_window"] = true;
  EXPECT_THAT(windows_of(read(root).value()), ElementsAre(0, 32));
  root["layer_types"] = {"sliding_attention", "full_attention"};
  EXPECT_THAT(windows_of(read(root).value()), ElementsAre(32, 0));
  EXPECT_THAT(read_with("qwen2", {set("qwen2.attention.sliding_window", std::int64_t{32})}),
              FailsWith(ErrorCode::kUnsupported, HasSubstr("qwen2.attention.sliding_window")));
}

TEST(FamilyConfig, AlternatesWindowsOfGemma) {
  const Change three = set("gemma2.block_count", std::int64_t{3});
  const Change window = set("gemma2.attention.sliding_window", std::int64_t{16});
  EXPECT_THAT(windows_of(read_with("gemma2", {three, window}).value()), ElementsAre(16, 0, 16));
  const Change flags =
      set("gemma2.attention.sliding_window_pattern", std::vector<bool>{false, true, true});
  EXPECT_THAT(windows_of(read_with("gemma2", {three, window, flags}).value()),
              ElementsAre(0, 16, 16));
  EXPECT_THAT(read_with("gemma2", {window, flags}),
              FailsWith(ErrorCode::kCorrupt, HasSubstr("another number")));
  const Change period = set("gemma2.attention.sliding_window_pattern", std::int64_t{3});
  EXPECT_THAT(windows_of(read_with("gemma2", {three, window, period}).value()),
              ElementsAre(16, 16, 0));
  Json root = hf_of("gemma3_text", "Gemma3ForCausalLM");
  root["sliding_window"] = 16;
  root["sliding_window_pattern"] = 2;
  EXPECT_THAT(windows_of(read(root).value()), ElementsAre(16, 0));
  root["sliding_window_pattern"] = 0;
  EXPECT_THAT(read(root), FailsWith(ErrorCode::kCorrupt, HasSubstr("sliding_window_pattern")));
}

TEST(FamilyConfig, GivesWindowsOfGemma3TheirOwnRope) {
  Json root = hf_of("gemma3_text", "Gemma3ForCausalLM");
  root.erase("rope_theta");
  root["sliding_window"] = 16;
  root["sliding_window_pattern"] = 2;
  root["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 8.0}};
  ModelConfig config = read(root).value();
  EXPECT_EQ(config.rope, (cache::Rope{cache::RopeStyle::kHalfSplit, 6, 1e6, {8, 8, 8}}));
  EXPECT_EQ(config.layer(0).rope, (cache::Rope{cache::RopeStyle::kHalfSplit, 6, 1e4}));
  EXPECT_EQ(config.layer(1).rope, config.rope);
  root.erase("rope_scaling");
  root["rope_parameters"] = {
      {"full_attention", {{"rope_type", "default"}, {"rope_theta", 5e5}}},
      {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 5e3}}}};
  config = read(root).value();
  EXPECT_EQ(config.rope.base, 5e5);
  EXPECT_EQ(config.layer(0).rope.base, 5e3);
  root["rope_parameters"]["sliding_attention"]["rope_type"] = "linear";
  EXPECT_THAT(read(root), FailsWith(ErrorCode::kUnsupported, HasSubstr("of layers with a window")));
  const auto file = read_with("gemma3", {set("gemma3.attention.sliding_window", std::int64_t{16}),
                                         set("gemma3.rope.freq_base_swa", 2e4)});
  EXPECT_EQ(file->layer(0).rope.base, 2e4);
}

// --- what else differs

TEST(FamilyConfig, KnowsTheScalesOfGemma) {
  Json root = hf_of("gemma2", "Gemma2ForCausalLM");
  root["query_pre_attn_scalar"] = 16;
  ModelConfig config = read(root).value();
  EXPECT_EQ(config.attention_cap, 50);
  EXPECT_EQ(config.logit_cap, 30);
  EXPECT_FLOAT_EQ(config.score_scale(), 0.25f);
  EXPECT_FLOAT_EQ(config.embedding_scale, std::sqrt(8.0f));
  EXPECT_EQ(config.layout.norm_offset, 1);
  EXPECT_EQ(config.activation, Activation::kGeluTanh);
  root["attn_logit_softcapping"] = nullptr;
  EXPECT_EQ(read(root)->attention_cap, 0);
  root["query_pre_attn_scalar"] = 0;
  EXPECT_THAT(read(root), FailsWith(ErrorCode::kCorrupt, HasSubstr("query_pre_attn_scalar")));
  config = read_with("gemma2", {}).value();
  EXPECT_FLOAT_EQ(config.score_scale(), 1 / std::sqrt(6.0f));
  EXPECT_EQ(config.layout.norm_offset, 0);
  // The model of 27 billion weights, known by its layers.
  config = read_with("gemma2", {set("gemma2.block_count", std::int64_t{46})}).value();
  EXPECT_FLOAT_EQ(config.score_scale(), 0.5f);  // 8 / 2 components
  EXPECT_THAT(read_with("gemma2", {set("gemma2.attn_logit_softcapping", -1.0)}),
              FailsWith(ErrorCode::kCorrupt, HasSubstr("soft cap")));
}

TEST(FamilyConfig, ReadsExperts) {
  Json root = hf_of("qwen3_moe", "Qwen3MoeForCausalLM");
  root.update({{"num_experts", 8}, {"num_experts_per_tok", 2}, {"moe_intermediate_size", 4}});
  ModelConfig config = read(root).value();
  EXPECT_EQ(config.experts.count, 8);
  EXPECT_FALSE(config.experts.normalized);
  root["norm_topk_prob"] = true;
  EXPECT_TRUE(read(root)->experts.normalized);
  root["num_experts_per_tok"] = 9;
  EXPECT_THAT(read(root), FailsWith(ErrorCode::kTooLarge, HasSubstr("experts used")));
  root["mlp_only_layers"] = {0};
  EXPECT_THAT(read(root), FailsWith(ErrorCode::kUnsupported, HasSubstr("mlp_only_layers")));
  root["decoder_sparse_step"] = 2;
  EXPECT_THAT(read(root), FailsWith(ErrorCode::kUnsupported, HasSubstr("decoder_sparse_step")));
  const std::vector<Change> experts = {set("qwen3moe.expert_count", std::int64_t{8}),
                                       set("qwen3moe.expert_used_count", std::int64_t{2}),
                                       set("qwen3moe.expert_feed_forward_length", std::int64_t{4})};
  config = read_with("qwen3moe", experts).value();
  EXPECT_EQ(config.experts.d_ff, 4);
  EXPECT_TRUE(config.experts.normalized);
  auto sigmoid = experts;
  sigmoid.push_back(set("qwen3moe.expert_gating_func", std::int64_t{2}));
  EXPECT_THAT(read_with("qwen3moe", sigmoid),
              FailsWith(ErrorCode::kUnsupported, HasSubstr("expert_gating_func")));
  EXPECT_THAT(read_with("qwen3", {set("qwen3.expert_count", std::int64_t{8})}),
              FailsWith(ErrorCode::kUnsupported, HasSubstr("qwen3.expert_count")));
}

std::vector<Change> delta_net_keys() {
  return {set("qwen35.block_count", std::int64_t{5}),
          set("qwen35.ssm.conv_kernel", std::int64_t{4}),
          set("qwen35.ssm.group_count", std::int64_t{2}),
          set("qwen35.ssm.time_step_rank", std::int64_t{4}),
          set("qwen35.ssm.state_size", std::int64_t{8}),
          set("qwen35.ssm.inner_size", std::int64_t{24})};
}

TEST(FamilyConfig, ReadsGatedDeltaNets) {
  auto keys = delta_net_keys();
  keys.push_back(set("qwen35.nextn_predict_layers", std::int64_t{1}));
  keys.push_back(set("qwen35.full_attention_interval", std::int64_t{2}));
  const ModelConfig config = read_with("qwen35", keys).value();
  EXPECT_EQ(config.n_layers, 4);
  EXPECT_EQ(config.layout.n_extra_layers, 1);
  EXPECT_EQ(config.layer(0).kind, LayerKind::kDeltaNet);
  EXPECT_EQ(config.layer(1).kind, LayerKind::kAttention);
  EXPECT_EQ(config.delta_net.value_dim, 6);
  EXPECT_EQ(config.delta_net.conv_size(), 2 * 16 + 24);
  EXPECT_TRUE(config.layout.tiled_value_heads);
  EXPECT_TRUE(config.attention_gate);
}

// llama.cpp leaves pairs without a section for text as they are: another model.
TEST(FamilyConfig, RefusesSectionsThatLeaveOutPairs) {
  const auto with = [](std::vector<std::int64_t> sections) {
    auto keys = delta_net_keys();
    keys.push_back(set("qwen35.full_attention_interval", std::int64_t{2}));
    keys.push_back(set("qwen35.nextn_predict_layers", std::int64_t{1}));
    keys.push_back(set("qwen35.rope.dimension_count", std::int64_t{6}));
    keys.push_back(set("qwen35.rope.dimension_sections", std::move(sections)));
    return read_with("qwen35", keys);
  };
  EXPECT_EQ(with({2, 1, 1, 0}).value().rope.n_dims, 6);
  EXPECT_EQ(with({2, 1, 1}).value().rope.n_dims, 6);
  EXPECT_EQ(with({11, 11, 10, 0}).value().rope.n_dims, 6);
  EXPECT_THAT(with({4, 0, 0, 0}),
              FailsWith(ErrorCode::kUnsupported, HasSubstr("pair 1 does not rotate with text")));
  EXPECT_THAT(with({1, 1, 0, 1}),
              FailsWith(ErrorCode::kUnsupported, HasSubstr("pair 2 does not rotate")));
  for (const auto& sections : std::vector<std::vector<std::int64_t>>{
           {0, 0, 0, 0}, {-1, 2, 2, 2}, {4}, {2, 2, 2, 2, 2}, {1, std::int64_t{1} << 62, 1}}) {
    EXPECT_THAT(with(sections),
                FailsWith(ErrorCode::kUnsupported, HasSubstr("qwen35.rope.dimension_sections")));
  }
}

TEST(FamilyConfig, RefusesGatedDeltaNetsThatDoNotFit) {
  const auto with = [](const char* key, std::int64_t value) {
    auto keys = delta_net_keys();
    keys.push_back(set(std::string("qwen35.") + key, value));
    return read_with("qwen35", keys);
  };
  EXPECT_THAT(with("ssm.inner_size", 25),
              FailsWith(ErrorCode::kCorrupt, HasSubstr("ssm.inner_size: 25")));
  EXPECT_THAT(with("ssm.time_step_rank", 0),
              FailsWith(ErrorCode::kCorrupt, HasSubstr("0 value heads")));
  EXPECT_THAT(with("ssm.group_count", 3),
              FailsWith(ErrorCode::kCorrupt, HasSubstr("no multiple of 3 key heads")));
  EXPECT_THAT(with("ssm.conv_kernel", 1),
              FailsWith(ErrorCode::kCorrupt, HasSubstr("convolution: 1")));
  EXPECT_THAT(with("ssm.state_size", 1 << 20),
              FailsWith(ErrorCode::kTooLarge, HasSubstr("key components")));
  EXPECT_THAT(with("full_attention_interval", 0),
              FailsWith(ErrorCode::kCorrupt, HasSubstr("interval")));
  EXPECT_THAT(with("nextn_predict_layers", 5),
              FailsWith(ErrorCode::kCorrupt, HasSubstr("multi-token prediction")));
}

TEST(FamilyConfig, ReadsTheTextOfModelsWithEyes) {
  Json text = hf_of("qwen3_5_text", "");
  text.erase("architectures");
  text.update({{"linear_num_key_heads", 2},
               {"linear_num_value_heads", 4},
               {"linear_key_head_dim", 8},
               {"linear_value_head_dim", 6},
               {"linear_conv_kernel_dim", 4},
               {"head_dim", 8},
               {"layer_types", {"linear_attention", "full_attention"}}});
  text.erase("tie_word_embeddings");
  const Json root = {{"model_type", "qwen3_5"},
                     {"architectures", {"Qwen3_5ForConditionalGeneration"}},
                     {"text_config", text},
                     {"tie_word_embeddings", true}};
  const ModelConfig config = read(root).value();
  EXPECT_EQ(config.architecture, "qwen35");
  EXPECT_EQ(config.rope.n_dims, 2);
  EXPECT_TRUE(config.tied_embeddings);
  EXPECT_TRUE(config.layout.log_decay);
}

TEST(FamilyConfig, HasAKindForEveryLayer) {
  Json root = hf_of("gemma2", "Gemma2ForCausalLM");
  root["layer_types"] = {"full_attention"};
  EXPECT_THAT(read(root),
              FailsWith(ErrorCode::kCorrupt, HasSubstr("key \"layer_types\": 1 for 2 layers")));
  root["layer_types"] = {"full_attention", "linear_attention"};
  EXPECT_THAT(read(root), FailsWith(ErrorCode::kUnsupported, HasSubstr("layer_types")));
  root["layer_types"] = {"full_attention", "chunked_attention"};
  EXPECT_THAT(read(root), FailsWith(ErrorCode::kUnsupported, HasSubstr("layer_types")));
  root["num_hidden_layers"] = 1 << 30;
  EXPECT_THAT(read(root), FailsWith(ErrorCode::kTooLarge, HasSubstr("n_layers")));
}

TEST(FamilyConfig, SaysWhichModelsHaveBiases) {
  EXPECT_TRUE(read(hf_of("qwen2", "Qwen2ForCausalLM"))->qkv_biases);
  EXPECT_FALSE(read(hf_of("qwen2", "Qwen2ForCausalLM"))->output_bias);
  Json root = hf_of("llama", "LlamaForCausalLM");
  EXPECT_FALSE(read(root)->qkv_biases);
  root["attention_bias"] = true;
  EXPECT_TRUE(read(root)->qkv_biases);
  EXPECT_TRUE(read(root)->output_bias);
  EXPECT_FALSE(read_with("llama", {})->qkv_biases);
  const Change bias = [](Gguf& file) { file.tensors["blk.0.attn_q.bias"] = {}; };
  EXPECT_TRUE(read_with("llama", {bias})->qkv_biases);
}

}  // namespace family_config_test
}  // namespace tqcache::model
