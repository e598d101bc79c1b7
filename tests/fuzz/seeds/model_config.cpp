// Configurations of every family, as config.json and as the metadata of a GGUF file.

#include <string>

#include "fuzz/seeds/seeds.h"
#include "model/tiny_files.h"

namespace tqcache::fuzz {
namespace {

using tiny::Json;

Json hf(const char* type, const char* class_name) {
  Json root = tiny::config();
  root["model_type"] = type;
  root["architectures"] = {class_name};
  return root;
}

void make_hf_configs(const SeedFolder& seeds) {
  const auto add = [&](const char* name, const Json& root) { seeds.add(name, root.dump()); };
  add("qwen3", hf("qwen3", "Qwen3ForCausalLM"));
  Json qwen2 = hf("qwen2", "Qwen2ForCausalLM");
  qwen2.update({{"use_sliding_window", true}, {"sliding_window", 100}, {"max_window_layers", 1}});
  add("qwen2", qwen2);
  Json llama = hf("llama", "LlamaForCausalLM");
  llama["rope_scaling"] = {{"rope_type", "llama3"},
                           {"factor", 8.0},
                           {"low_freq_factor", 1.0},
                           {"high_freq_factor", 4.0},
                           {"original_max_position_embeddings", 8192}};
  add("llama", llama);
  Json mistral = hf("mistral", "MistralForCausalLM");
  mistral.update({{"sliding_window", 64}, {"rope_scaling", {{"type", "linear"}, {"factor", 2.0}}}});
  add("mistral", mistral);
  Json phi3 = hf("phi3", "Phi3ForCausalLM");
  phi3["rope_scaling"] = {
      {"type", "longrope"}, {"short_factor", {1.0, 1.5, 2.0}}, {"long_factor", {1.0, 2.0, 4.0}}};
  phi3["original_max_position_embeddings"] = 256;
  add("phi3", phi3);
  Json gemma2 = hf("gemma2", "Gemma2ForCausalLM");
  gemma2.update({{"hidden_act", nullptr},
                 {"hidden_activation", "gelu_pytorch_tanh"},
                 {"attn_logit_softcapping", 50.0},
                 {"final_logit_softcapping", 30.0},
                 {"query_pre_attn_scalar", 144},
                 {"sliding_window", 128}});
  add("gemma2", gemma2);
  Json gemma3 = gemma2;
  gemma3.update({{"model_type", "gemma3_text"},
                 {"architectures", {"Gemma3ForCausalLM"}},
                 {"attn_logit_softcapping", nullptr},
                 {"layer_types", {"sliding_attention", "full_attention"}},
                 {"rope_parameters",
                  {{"full_attention", {{"rope_type", "linear"}, {"factor", 8.0}}},
                   {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 1e4}}}}}});
  add("gemma3", gemma3);
  Json experts = hf("qwen3_moe", "Qwen3MoeForCausalLM");
  experts.update({{"num_experts", 4},
                  {"num_experts_per_tok", 2},
                  {"moe_intermediate_size", 12},
                  {"norm_topk_prob", true}});
  add("qwen3_moe", experts);
  Json hybrid = experts;
  hybrid.update({{"model_type", "qwen3_next"},
                 {"architectures", {"Qwen3NextForCausalLM"}},
                 {"partial_rotary_factor", 0.5},
                 {"head_dim", 8},
                 {"shared_expert_intermediate_size", 12},
                 {"full_attention_interval", 2},
                 {"linear_num_key_heads", 2},
                 {"linear_num_value_heads", 4},
                 {"linear_key_head_dim", 4},
                 {"linear_value_head_dim", 4},
                 {"linear_conv_kernel_dim", 4}});
  add("qwen3_next", hybrid);
  add("text_config", {{"text_config", hybrid}, {"model_type", "qwen3_5"}});
}

// The metadata of tiny::gguf() but for the vocabulary, under the word of an architecture.
Json gguf(const std::string& word) {
  Json root;
  const tensors::Gguf file = tiny::gguf();
  for (const auto& [key, value] : file.metadata) {
    if (key.starts_with("tokenizer.")) continue;
    const std::string name = key.starts_with("qwen3.") ? word + key.substr(5) : key;
    std::visit([&](const auto& one) { root[name] = one; }, value);
  }
  root["general.architecture"] = word;
  root["tokenizer.ggml.tokens"] = {"a", "b", "c"};
  return root;
}

void make_gguf_configs(const SeedFolder& seeds) {
  const auto add = [&](const char* name, const Json& root) { seeds.add(name, root.dump()); };
  for (const char* word : {"qwen2", "qwen3", "gemma2", "gemma3"}) {
    Json root = gguf(word);
    root[std::string(word) + ".attention.sliding_window"] = 64;
    add((std::string("gguf_") + word).c_str(), root);
  }
  Json llama = gguf("llama");
  llama.update({{"llama.rope.dimension_count", 6},
                {"tensor rope_freqs.weight", {1.0, 2.0, 4.0}},
                {"tensor output.weight", {1.0}}});
  add("gguf_llama", llama);
  Json phi3 = gguf("phi3");
  phi3.update({{"phi3.rope.scaling.original_context_length", 256},
               {"phi3.rope.scaling.attn_factor", 1.19},
               {"tensor rope_factors_short.weight", {1.0, 1.5, 2.0}},
               {"tensor rope_factors_long.weight", {1.0, 2.0, 4.0}}});
  add("gguf_phi3", phi3);
  Json linear = gguf("qwen3moe");
  linear.update({{"qwen3moe.rope.scaling.type", "linear"},
                 {"qwen3moe.rope.scaling.factor", 4.0},
                 {"qwen3moe.expert_count", 4},
                 {"qwen3moe.expert_used_count", 2},
                 {"qwen3moe.expert_feed_forward_length", 12}});
  add("gguf_qwen3moe", linear);
  Json hybrid = gguf("qwen35");
  hybrid.update({{"qwen35.full_attention_interval", 2},
                 {"qwen35.ssm.conv_kernel", 4},
                 {"qwen35.ssm.state_size", 4},
                 {"qwen35.ssm.group_count", 2},
                 {"qwen35.ssm.time_step_rank", 4},
                 {"qwen35.ssm.inner_size", 16},
                 {"qwen35.rope.dimension_count", 4}});
  add("gguf_qwen35", hybrid);
}

}  // namespace

void make_model_config(const SeedFolder& seeds) {
  make_hf_configs(seeds);
  make_gguf_configs(seeds);
}

}  // namespace tqcache::fuzz
