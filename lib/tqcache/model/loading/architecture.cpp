#include "tqcache/model/loading/architecture.h"

#include <algorithm>
#include <array>

#include "tqcache/tensors/printable_name.h"

namespace tqcache::model {
namespace {

// Of two rows with one word GGUF means the first: it has no word for Mistral, whose files are as
// those of Llama and may name a window.
constexpr std::array kArchitectures = {
    Architecture{.word = "llama",
                 .hf_type = "mistral",
                 .hf_class = "MistralForCausalLM",
                 .permuted_gguf = true,
                 .windows = WindowRule::kAll},
    Architecture{
        .word = "llama", .hf_type = "llama", .hf_class = "LlamaForCausalLM", .permuted_gguf = true},
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
    Architecture{.word = "gemma2",
                 .hf_type = "gemma2",
                 .hf_class = "Gemma2ForCausalLM",
                 .zero_centered_norms = true,
                 .post_norms = true,
                 .after_attention = "post_attention_norm.weight",
                 .activation = Activation::kGeluTanh,
                 .scaled_embedding = true,
                 .windows = WindowRule::kPeriod,
                 .window_period = 2,
                 .default_window = 4096,
                 .default_attention_cap = 50,
                 .default_logit_cap = 30,
                 .wide_scale_layers = 46,
                 .default_head_dim = 256,
                 .default_tied = true},
    Architecture{.word = "gemma3",
                 .hf_type = "gemma3_text",
                 .hf_class = "Gemma3ForCausalLM",
                 .qk_norms = true,
                 .zero_centered_norms = true,
                 .post_norms = true,
                 .after_attention = "post_attention_norm.weight",
                 .activation = Activation::kGeluTanh,
                 .scaled_embedding = true,
                 .windows = WindowRule::kPeriod,
                 .window_period = 6,
                 .wide_scale_layers = 62,
                 .default_head_dim = 256,
                 .default_rope_base = 1'000'000,
                 .default_local_base = 10'000,
                 .default_tied = true},
    Architecture{.word = "phi3",
                 .hf_type = "phi3",
                 .hf_class = "Phi3ForCausalLM",
                 .fused_projections = true,
                 .windows = WindowRule::kAll,
                 .default_epsilon = 1e-5},
    Architecture{.word = "qwen3next",
                 .hf_type = "qwen3_next",
                 .hf_class = "Qwen3NextForCausalLM",
                 .qk_norms = true,
                 .zero_centered_norms = true,
                 .ffn_norm = "post_attention_norm.weight",
                 .after_attention = "post_attention_norm.weight",
                 .has_experts = true,
                 .has_delta_net = true,
                 .attention_gate = true,
                 .default_head_dim = 256,
                 .default_rotary_share = 0.25,
                 .default_normalized = true},
    Architecture{.word = "qwen35",
                 .hf_type = "qwen3_5_text",
                 .hf_class = "Qwen3_5ForCausalLM",
                 .qk_norms = true,
                 .zero_centered_norms = true,
                 .ffn_norm = "post_attention_norm.weight",
                 .after_attention = "post_attention_norm.weight",
                 .has_delta_net = true,
                 .is_tiled_gguf = true,
                 .attention_gate = true,
                 .default_head_dim = 256,
                 .default_rotary_share = 0.25},
    Architecture{.word = "qwen35moe",
                 .hf_type = "qwen3_5_moe_text",
                 .hf_class = "Qwen3_5MoeForCausalLM",
                 .qk_norms = true,
                 .zero_centered_norms = true,
                 .ffn_norm = "post_attention_norm.weight",
                 .after_attention = "post_attention_norm.weight",
                 .has_experts = true,
                 .has_delta_net = true,
                 .is_tiled_gguf = true,
                 .attention_gate = true,
                 .default_head_dim = 256,
                 .default_rotary_share = 0.25,
                 .default_normalized = true},
};

using Name = std::string_view Architecture::*;

std::string list_of(Name name) {
  std::string list;
  for (const Architecture& each : kArchitectures) {
    const std::string quoted = '"' + std::string(each.*name) + '"';
    if (list.find(quoted) == std::string::npos) list += (list.empty() ? "" : ", ") + quoted;
  }
  return list;
}

Result<const Architecture*> find(Name name, const std::string& wanted, const char* what) {
  const auto found = std::ranges::find(kArchitectures, wanted, name);
  if (found != kArchitectures.end()) return &*found;
  return Error{ErrorCode::kUnsupported, std::string(what) + " " + tensors::printable_name(wanted) +
                                            ", only " + list_of(name) + " are read"};
}

}  // namespace

Result<const Architecture*> find_gguf_architecture(const std::string& word) {
  return find(&Architecture::word, word, "architecture");
}

Result<const Architecture*> find_hf_architecture(const std::string& model_type) {
  return find(&Architecture::hf_type, model_type, "model type");
}

}  // namespace tqcache::model
