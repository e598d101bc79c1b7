#include "tqcache/model/loading/architecture.h"

#include <algorithm>
#include <array>

#include "tqcache/tensors/printable_name.h"

namespace tqcache::model {
namespace {

// Settings shared by all Gemma models.
constexpr Architecture kGemma = {.word = {},
                                 .hf_type = {},
                                 .hf_class = {},
                                 .zero_centered_norms = true,
                                 .post_norms = true,
                                 .after_attention = "post_attention_norm.weight",
                                 .activation = Activation::kGeluTanh,
                                 .scaled_embedding = true,
                                 .has_query_scalar = true,
                                 .windows = WindowRule::kPeriod,
                                 .default_head_dim = 256,
                                 .default_tied = true};

constexpr Architecture gemma() {
  Architecture row = kGemma;
  row.word = row.hf_type = "gemma";
  row.hf_class = "GemmaForCausalLM";
  row.post_norms = false;
  row.after_attention = "ffn_norm.weight";
  row.has_query_scalar = false;
  row.windows = WindowRule::kNone;
  return row;
}

constexpr Architecture gemma2() {
  Architecture row = kGemma;
  row.word = row.hf_type = "gemma2";
  row.hf_class = "Gemma2ForCausalLM";
  row.window_period = 2;
  row.default_window = 4096;
  row.default_attention_cap = 50;
  row.default_logit_cap = 30;
  row.wide_scale_layers = 46;
  return row;
}

constexpr Architecture gemma3() {
  Architecture row = kGemma;
  row.word = "gemma3";
  row.hf_type = "gemma3_text";
  row.hf_class = "Gemma3ForCausalLM";
  row.qk_norms = true;
  row.window_period = 6;
  row.wide_scale_layers = 62;
  row.default_rope_base = 1'000'000;
  row.default_local_base = 10'000;
  return row;
}

constexpr Architecture gemma3n() {
  Architecture row = gemma3();
  row.word = "gemma3n";
  row.hf_type = "gemma3n_text";
  row.hf_class = "Gemma3nForCausalLM";
  row.zero_centered_norms = false;
  row.value_norms = row.parallel_streams = true;
  row.window_period = 5;
  row.default_window = 512;
  row.wide_scale_layers = 0;
  row.default_logit_cap = 30;
  row.default_shared = 15;
  row.default_inputs = 256;
  return row;
}

constexpr Architecture gemma4() {
  Architecture row = gemma3n();
  row.word = "gemma4";
  row.hf_type = "gemma4_text";
  row.hf_class = "Gemma4ForCausalLM";
  row.parallel_streams = false;
  row.full_heads = true;
  row.window_period = 6;
  row.default_logit_cap = 0;
  row.default_shared = 0;
  return row;
}

constexpr Architecture vaultgemma() {
  Architecture row = gemma2();
  row.word = row.hf_type = "vaultgemma";
  row.hf_class = "VaultGemmaForCausalLM";
  row.post_norms = false;
  row.after_attention = "ffn_norm.weight";
  row.wide_scale_layers = 0;
  return row;
}

// Granite 3 and its mixtures of experts; Granite 4 without state space layers is the same model
// with other names of weights.
constexpr Architecture granite(std::string_view word, std::string_view hf_type,
                               std::string_view hf_class) {
  return {.word = word,
          .hf_type = hf_type,
          .hf_class = hf_class,
          .reads_mlp_bias = hf_type == "granite",
          .permuted_gguf = true,
          .has_experts = word == "granitemoe",
          .has_multipliers = true,
          .expert_width = "intermediate_size",
          .default_normalized = true};
}

constexpr Architecture granite4() {
  Architecture row = granite("granite", "granitemoehybrid", "GraniteMoeHybridForCausalLM");
  row.fused_gate_up = row.shared_mlp = true;
  return row;
}

constexpr Architecture cohere(std::string_view word, std::string_view hf_type,
                              std::string_view hf_class) {
  return {.word = word,
          .hf_type = hf_type,
          .hf_class = hf_class,
          .permuted_gguf = true,
          .permuted_hf = true,
          .layer_norms = true,
          .parallel_blocks = true,
          .default_logit_scale = 0.0625,
          .default_epsilon = 1e-5,
          .default_tied = true};
}

constexpr Architecture command_r() {
  Architecture row = cohere("command-r", "cohere", "CohereForCausalLM");
  row.default_rope_base = 500'000;
  return row;
}

constexpr Architecture cohere2() {
  Architecture row = cohere("cohere2", "cohere2", "Cohere2ForCausalLM");
  row.full_without_rope = true;
  row.windows = WindowRule::kPeriod;
  row.window_period = 4;
  return row;
}

// OLMo 2, and OLMo 3, which has windows. GGUF has one word for both.
constexpr Architecture olmo2() {
  return {.word = "olmo2",
          .hf_type = "olmo2",
          .hf_class = "Olmo2ForCausalLM",
          .qk_norms = true,
          .wide_qk_norms = true,
          .pre_norms = false,
          .post_norms = true,
          .after_attention = "post_attention_norm.weight",
          .default_epsilon = 1e-5};
}

constexpr Architecture olmo3() {
  Architecture row = olmo2();
  row.hf_type = "olmo3";
  row.hf_class = "Olmo3ForCausalLM";
  row.windows = WindowRule::kPeriod;
  row.window_period = 4;
  row.default_rope_base = row.default_local_base = 500'000;
  row.local_base_key = "rope_theta";
  return row;
}

// GLM-4 9B and its successor, which has norms behind attention and feed-forward.
constexpr Architecture glm(std::string_view word, std::string_view hf_type,
                           std::string_view hf_class, bool post_norms) {
  return {.word = word,
          .hf_type = hf_type,
          .hf_class = hf_class,
          .default_biases = true,
          .no_output_bias = true,
          .permuted_gguf = true,
          .permuted_hf = true,
          .fused_gate_up = true,
          .post_norms = post_norms,
          .default_head_dim = 128,
          .default_epsilon = 1.5625e-7,
          .default_rotary_share = 0.5,
          .partial_rotary = true};
}

// GLM-4.5, whose experts are chosen as in DeepSeek V3.
constexpr Architecture glm4_moe() {
  return {.word = "glm4moe",
          .hf_type = "glm4_moe",
          .hf_class = "Glm4MoeForCausalLM",
          .no_output_bias = true,
          .ffn_norm = "post_attention_norm.weight",
          .after_attention = "post_attention_norm.weight",
          .has_experts = true,
          .routed_experts = true,
          .sigmoid_experts = true,
          .asks_qk_norm = true,
          .default_epsilon = 1e-5,
          .default_rotary_share = 0.5,
          .partial_rotary = true,
          .default_normalized = true,
          .gguf_normalized = false};
}

// DeepSeek V2, and V3, whose weights of experts are sigmoids. GGUF has one word for both. In
// transformers, caches of V3 have the rotated parts of keys in halves: its word says so in a cache.
constexpr Architecture deepseek(std::string_view word, std::string_view hf_type,
                                std::string_view hf_class, bool is_v3) {
  return {.word = word,
          .hf_type = hf_type,
          .hf_class = hf_class,
          .has_experts = true,
          .routed_experts = true,
          .sigmoid_experts = is_v3,
          .latent_attention = true,
          .default_normalized = is_v3,
          .gguf_normalized = false};
}

// Qwen3-Next and Qwen3.5: gated delta nets between layers with full attention.
constexpr Architecture qwen_hybrid(std::string_view word, std::string_view hf_type,
                                   std::string_view hf_class, bool has_experts,
                                   bool is_tiled_gguf) {
  return {.word = word,
          .hf_type = hf_type,
          .hf_class = hf_class,
          .qk_norms = true,
          .zero_centered_norms = true,
          .ffn_norm = "post_attention_norm.weight",
          .after_attention = "post_attention_norm.weight",
          .has_experts = has_experts,
          .has_delta_net = true,
          .is_tiled_gguf = is_tiled_gguf,
          .attention_gate = true,
          .default_head_dim = 256,
          .default_rotary_share = 0.25,
          .partial_rotary = true,
          .default_normalized = has_experts};
}

// The text of Qwen2-VL and Qwen2.5-VL. Their first files have its settings at the top level.
constexpr Architecture qwen2_vl(std::string_view hf_type, std::string_view hf_class) {
  return {.word = "qwen2vl",
          .hf_type = hf_type,
          .hf_class = hf_class,
          .qkv_biases = true,
          .text_positions = true,
          .sections_in_runs = true,
          .windows = WindowRule::kIfAsked,
          .default_epsilon = 1e-5,
          .default_rope_base = 1'000'000};
}

// Of rows with the same word, the first is used for GGUF, or the first with experts: GGUF has no
// words for Mistral and Mixtral, whose files look like those of Llama and may name a window.
constexpr std::array kArchitectures = {
    Architecture{.word = "llama",
                 .hf_type = "mistral",
                 .hf_class = "MistralForCausalLM",
                 .permuted_gguf = true,
                 .windows = WindowRule::kAll},
    Architecture{.word = "llama",
                 .hf_type = "llama",
                 .hf_class = "LlamaForCausalLM",
                 .reads_mlp_bias = true,
                 .permuted_gguf = true},
    Architecture{.word = "llama",
                 .hf_type = "mixtral",
                 .hf_class = "MixtralForCausalLM",
                 .permuted_gguf = true,
                 .has_experts = true,
                 .windows = WindowRule::kAll,
                 .default_epsilon = 1e-5,
                 .default_rope_base = 1'000'000,
                 .expert_width = "intermediate_size",
                 .default_normalized = true},
    Architecture{.word = "qwen2",
                 .hf_type = "qwen2",
                 .hf_class = "Qwen2ForCausalLM",
                 .qkv_biases = true,
                 .windows = WindowRule::kIfAsked},
    Architecture{.word = "qwen3",
                 .hf_type = "qwen3",
                 .hf_class = "Qwen3ForCausalLM",
                 .qk_norms = true,
                 .windows = WindowRule::kIfAsked,
                 .default_head_dim = 128},
    Architecture{.word = "qwen3moe",
                 .hf_type = "qwen3_moe",
                 .hf_class = "Qwen3MoeForCausalLM",
                 .qk_norms = true,
                 .has_experts = true,
                 .windows = WindowRule::kIfAsked},
    Architecture{.word = "qwen2moe",
                 .hf_type = "qwen2_moe",
                 .hf_class = "Qwen2MoeForCausalLM",
                 .qkv_biases = true,
                 .has_experts = true,
                 .gguf_normalized = false},
    gemma(),
    gemma2(),
    gemma3(),
    gemma3n(),
    gemma4(),
    vaultgemma(),
    Architecture{.word = "phi3",
                 .hf_type = "phi3",
                 .hf_class = "Phi3ForCausalLM",
                 .fused_projections = true,
                 .windows = WindowRule::kAll,
                 .default_epsilon = 1e-5,
                 .partial_rotary = true,
                 .only_longrope = true},
    olmo3(),
    olmo2(),
    Architecture{.word = "olmoe",
                 .hf_type = "olmoe",
                 .hf_class = "OlmoeForCausalLM",
                 .qk_norms = true,
                 .wide_qk_norms = true,
                 .has_experts = true,
                 .default_epsilon = 1e-5,
                 .expert_width = "intermediate_size",
                 .gguf_normalized = false},
    Architecture{.word = "smollm3",
                 .hf_type = "smollm3",
                 .hf_class = "SmolLM3ForCausalLM",
                 .reads_mlp_bias = true,
                 .permuted_gguf = true,
                 .no_rope_interval = 4,
                 .default_rope_base = 2'000'000,
                 .default_tied = true},
    granite("granite", "granite", "GraniteForCausalLM"),
    granite4(),
    granite("granitemoe", "granitemoe", "GraniteMoeForCausalLM"),
    glm("glm4", "glm4", "Glm4ForCausalLM", true),
    glm("chatglm", "glm", "GlmForCausalLM", false),
    glm4_moe(),
    deepseek("deepseek2", {}, {}, false),
    deepseek("deepseek_v2", "deepseek_v2", "DeepseekV2ForCausalLM", false),
    deepseek("deepseek_v3", "deepseek_v3", "DeepseekV3ForCausalLM", true),
    command_r(),
    cohere2(),
    Architecture{.word = "seed_oss",
                 .hf_type = "seed_oss",
                 .hf_class = "SeedOssForCausalLM",
                 .default_biases = true,
                 .no_output_bias = true,
                 .reads_mlp_bias = true,
                 .reads_out_bias = true,
                 .ffn_norm = "post_attention_norm.weight",
                 .after_attention = "post_attention_norm.weight",
                 .default_head_dim = 128},
    Architecture{.word = "ernie4_5",
                 .hf_type = "ernie4_5",
                 .hf_class = "Ernie4_5ForCausalLM",
                 .bias_key = "use_bias",
                 .permuted_gguf = true,
                 .permuted_hf = true,
                 .default_head_dim = 128,
                 .default_epsilon = 1e-5,
                 .default_rope_base = 500'000,
                 .default_tied = true},
    Architecture{.word = "hunyuan-dense",
                 .hf_type = "hunyuan_v1_dense",
                 .hf_class = "HunYuanDenseV1ForCausalLM",
                 .qk_norms = true,
                 .norms_after_rope = true,
                 .ntk_alpha = true,
                 .default_epsilon = 1e-5},
    Architecture{.word = "mistral3",
                 .hf_type = "ministral3",
                 .hf_class = "Ministral3ForCausalLM",
                 .permuted_gguf = true,
                 .grows_queries = true,
                 .windows = WindowRule::kAll,
                 .default_head_dim = 128,
                 .default_epsilon = 1e-5},
    Architecture{.word = "ministral",
                 .hf_type = "ministral",
                 .hf_class = "MinistralForCausalLM",
                 .windows = WindowRule::kListed},
    Architecture{.word = "cwm",
                 .hf_type = "cwm",
                 .hf_class = "CwmForCausalLM",
                 .windows = WindowRule::kListed,
                 .default_head_dim = 128,
                 .default_epsilon = 1e-5,
                 .default_rope_base = 1'000'000},
    Architecture{.word = "helium",
                 .hf_type = "helium",
                 .hf_class = "HeliumForCausalLM",
                 .reads_mlp_bias = true,
                 .permuted_gguf = true,
                 .permuted_hf = true,
                 .default_head_dim = 128,
                 .default_epsilon = 1e-8,
                 .default_rope_base = 100'000},
    Architecture{.word = "exaone4",
                 .hf_type = "exaone4",
                 .hf_class = "Exaone4ForCausalLM",
                 .qk_norms = true,
                 .pre_norms = false,
                 .post_norms = true,
                 .after_attention = "post_attention_norm.weight",
                 .full_without_rope = true,
                 .windows = WindowRule::kPeriod,
                 .window_period = 4,
                 .default_epsilon = 1e-5},
    Architecture{.word = "qwen3vl",
                 .hf_type = "qwen3_vl_text",
                 .hf_class = "Qwen3VLForConditionalGeneration",
                 .qk_norms = true,
                 .text_positions = true,
                 .default_head_dim = 128,
                 .default_rope_base = 500'000},
    qwen2_vl("qwen2_5_vl_text", "Qwen2_5_VLForConditionalGeneration"),
    qwen2_vl("qwen2_5_vl", "Qwen2_5_VLForConditionalGeneration"),
    qwen2_vl("qwen2_vl_text", "Qwen2VLForConditionalGeneration"),
    qwen2_vl("qwen2_vl", "Qwen2VLForConditionalGeneration"),
    Architecture{.word = "gpt-oss",
                 .hf_type = "gpt_oss",
                 .hf_class = "GptOssForCausalLM",
                 .default_biases = true,
                 .attention_sinks = true,
                 .ffn_norm = "post_attention_norm.weight",
                 .after_attention = "post_attention_norm.weight",
                 .has_experts = true,
                 .expert_biases = true,
                 .transposed_experts = true,
                 .activation = Activation::kClampedSwiglu,
                 .windows = WindowRule::kPeriod,
                 .window_period = 2,
                 .default_window = 128,
                 .default_head_dim = 64,
                 .default_epsilon = 1e-5,
                 .default_rope_base = 150'000,
                 .default_yarn = true,
                 .expert_width = "intermediate_size",
                 .default_normalized = true},
    qwen_hybrid("qwen3next", "qwen3_next", "Qwen3NextForCausalLM", true, false),
    qwen_hybrid("qwen35", "qwen3_5_text", "Qwen3_5ForCausalLM", false, true),
    qwen_hybrid("qwen35moe", "qwen3_5_moe_text", "Qwen3_5MoeForCausalLM", true, true),
};

using Name = std::string_view Architecture::*;

std::string list_of(Name name) {
  std::string list;
  for (const Architecture& each : kArchitectures) {
    if ((each.*name).empty()) continue;
    const std::string quoted = '"' + std::string(each.*name) + '"';
    if (list.find(quoted) == std::string::npos) list += (list.empty() ? "" : ", ") + quoted;
  }
  return list;
}

Error unknown(Name name, const std::string& wanted, const char* what) {
  return {ErrorCode::kUnsupported, std::string(what) + " " + tensors::printable_name(wanted) +
                                       ", only " + list_of(name) +
                                       " are run; caches of other models can be converted, stored "
                                       "and exported all the same, without the model"};
}

}  // namespace

Result<const Architecture*> find_gguf_architecture(const std::string& word, bool has_experts) {
  const Architecture* found = nullptr;
  for (const Architecture& each : kArchitectures) {
    if (each.word != word) continue;
    if (each.has_experts == has_experts) return &each;
    if (found == nullptr) found = &each;
  }
  if (found != nullptr) return found;
  return unknown(&Architecture::word, word, "architecture");
}

Result<const Architecture*> find_hf_architecture(const std::string& model_type) {
  const auto found = std::ranges::find(kArchitectures, model_type, &Architecture::hf_type);
  if (found != kArchitectures.end()) return &*found;
  return unknown(&Architecture::hf_type, model_type, "model type");
}

}  // namespace tqcache::model
