// Names of tensors in Hugging Face's folders, and what GGUF calls them.

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "tqcache/model/loading/weights.h"

namespace tqcache::model {
namespace {

using NamePair = std::pair<std::string_view, std::string_view>;

constexpr std::array<NamePair, 3> kModelNames = {{
    {"embed_tokens.weight", "token_embd.weight"},
    {"norm.weight", "output_norm.weight"},
    {"lm_head.weight", "output.weight"},
}};

constexpr std::string_view kNormAfterAttention = "post_attention_layernorm.weight";

constexpr auto kLayerNames = std::to_array<NamePair>({
    {"input_layernorm.weight", "attn_norm.weight"},
    {"self_attn.q_proj.weight", "attn_q.weight"},
    {"self_attn.k_proj.weight", "attn_k.weight"},
    {"self_attn.v_proj.weight", "attn_v.weight"},
    {"self_attn.qkv_proj.weight", "attn_qkv.weight"},
    {"self_attn.o_proj.weight", "attn_output.weight"},
    {"self_attn.q_proj.bias", "attn_q.bias"},
    {"self_attn.k_proj.bias", "attn_k.bias"},
    {"self_attn.v_proj.bias", "attn_v.bias"},
    {"self_attn.o_proj.bias", "attn_output.bias"},
    {"self_attn.q_norm.weight", "attn_q_norm.weight"},
    {"self_attn.k_norm.weight", "attn_k_norm.weight"},
    {"linear_attn.in_proj_qkvz.weight", "ssm_in.weight"},
    {"linear_attn.in_proj_qkv.weight", "attn_qkv.weight"},
    {"linear_attn.in_proj_z.weight", "attn_gate.weight"},
    {"linear_attn.in_proj_ba.weight", "ssm_ba.weight"},
    {"linear_attn.in_proj_b.weight", "ssm_beta.weight"},
    {"linear_attn.in_proj_a.weight", "ssm_alpha.weight"},
    {"linear_attn.conv1d.weight", "ssm_conv1d.weight"},
    {"linear_attn.A_log", "ssm_a"},
    {"linear_attn.dt_bias", "ssm_dt.bias"},
    {"linear_attn.norm.weight", "ssm_norm.weight"},
    {"linear_attn.out_proj.weight", "ssm_out.weight"},
    {"pre_feedforward_layernorm.weight", "ffn_norm.weight"},
    {"post_feedforward_layernorm.weight", "post_ffw_norm.weight"},
    {"mlp.gate_proj.weight", "ffn_gate.weight"},
    {"mlp.up_proj.weight", "ffn_up.weight"},
    {"mlp.gate_up_proj.weight", "ffn_up.weight"},
    {"mlp.down_proj.weight", "ffn_down.weight"},
    {"mlp.gate.weight", "ffn_gate_inp.weight"},
    {"mlp.experts.gate_up_proj", "ffn_gate_up_exps.weight"},
    {"mlp.experts.down_proj", "ffn_down_exps.weight"},
    {"mlp.shared_expert.gate_proj.weight", "ffn_gate_shexp.weight"},
    {"mlp.shared_expert.up_proj.weight", "ffn_up_shexp.weight"},
    {"mlp.shared_expert.down_proj.weight", "ffn_down_shexp.weight"},
    {"mlp.shared_expert_gate.weight", "ffn_gate_inp_shexp.weight"},
});

constexpr std::array<NamePair, 3> kExpertNames = {{
    {"gate_proj.weight", "ffn_gate"},
    {"up_proj.weight", "ffn_up"},
    {"down_proj.weight", "ffn_down"},
}};

std::string_view look_up(std::span<const NamePair> names, std::string_view hf_name) {
  const auto found = std::ranges::find(names, hf_name, &NamePair::first);
  return found == names.end() ? std::string_view() : found->second;
}

bool is_number(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

bool take_prefix(std::string_view& name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return false;
  name.remove_prefix(prefix.size());
  return true;
}

// Takes "3." off; empty when that is not there.
std::string_view take_number(std::string_view& name) {
  const std::size_t dot = name.find('.');
  if (dot == std::string_view::npos || !is_number(name.substr(0, dot))) return {};
  const std::string_view number = name.substr(0, dot);
  name.remove_prefix(dot + 1);
  return number;
}

// "5.gate_proj.weight" -> "ffn_gate.5.weight"
std::string expert_name(std::string_view rest) {
  const std::string_view number = take_number(rest);
  const std::string_view name = look_up(kExpertNames, rest);
  if (number.empty() || name.empty()) return {};
  return std::string(name) + "." + std::string(number) + ".weight";
}

std::string layer_name(std::string_view rest, std::string_view after_attention) {
  if (rest == kNormAfterAttention) return std::string(after_attention);
  if (const std::string_view name = look_up(kLayerNames, rest); !name.empty()) {
    return std::string(name);
  }
  return take_prefix(rest, "mlp.experts.") ? expert_name(rest) : std::string();
}

// The language model of a model with eyes stands a level deeper; what is left begins with "layers."
// or is one of kModelNames.
bool take_model_prefix(std::string_view& name) {
  for (const char* prefix : {"model.language_model.", "language_model.model.", "model."}) {
    if (take_prefix(name, prefix)) return true;
  }
  take_prefix(name, "language_model.");
  return name == "lm_head.weight";
}

}  // namespace

std::string gguf_name(std::string_view hf_name, std::string_view after_attention) {
  std::string_view rest = hf_name;
  if (!take_model_prefix(rest)) return {};
  if (!take_prefix(rest, "layers.")) return std::string(look_up(kModelNames, rest));
  const std::string_view number = take_number(rest);
  const std::string name = number.empty() ? std::string() : layer_name(rest, after_attention);
  return name.empty() ? name : "blk." + std::string(number) + "." + name;
}

bool is_unused_hf_tensor(std::string_view hf_name) {
  if (hf_name.ends_with(".rotary_emb.inv_freq")) return true;
  constexpr const char* kPrefixes[] = {"mtp.",
                                       "model.visual.",
                                       "visual.",
                                       "vision_tower.",
                                       "model.vision_tower.",
                                       "multi_modal_projector.",
                                       "model.multi_modal_projector."};
  return std::ranges::any_of(kPrefixes,
                             [&](const char* each) { return hf_name.starts_with(each); });
}

}  // namespace tqcache::model
