#include "tqcache/model/loading/model_files.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "tqcache/base/json.h"
#include "tqcache/model/loading/rearranged.h"
#include "tqcache/tensors/printable_name.h"
#include "tqcache/tensors/safetensors.h"

namespace tqcache::model {

namespace {

using tensors::printable_name;

constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";

// tokenizer.json of the largest vocabularies has 35 MB.
constexpr std::uint64_t kMaxJsonBytes = std::uint64_t{64} << 20;
constexpr std::size_t kMaxShards = 1024;

bool is_there(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

// Names that contain a path could reach outside the folder.
bool is_plain_file_name(std::string_view name) {
  return name.ends_with(".safetensors") && name.size() <= 255 &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
}

// Whether the name has the number of a layer behind the last one: "model.layers.61.eh_proj.weight".
bool is_of_extra_layer(std::string_view hf_name, const ModelConfig& config) {
  constexpr std::string_view kLayers = "model.layers.";
  if (!hf_name.starts_with(kLayers)) return false;
  std::int64_t number = 0;
  const char* const first = hf_name.data() + kLayers.size();
  const auto [end, error] = std::from_chars(first, hf_name.data() + hf_name.size(), number);
  return error == std::errc() && end != first && number >= config.n_layers &&
         number - config.n_layers < config.layout.n_extra_layers;
}

Result<void> add_tensors(const tensors::Safetensors& file, const ModelConfig& config,
                         ModelTensors& model) {
  for (const auto& [hf_name, tensor] : file.tensors) {
    if (is_unused_hf_tensor(hf_name) || is_of_extra_layer(hf_name, config)) continue;
    std::string name = gguf_name(hf_name, config.layout.after_attention);
    if (name.empty()) {
      return Error{ErrorCode::kUnsupported, "tensor " + printable_name(hf_name) + ": unknown"};
    }
    if (!model.by_name.emplace(std::move(name), tensor).second) {
      return Error{ErrorCode::kCorrupt, "tensor " + printable_name(hf_name) + ": comes twice"};
    }
  }
  return {};
}

// Returns the names of the file's tensors.
Result<std::set<std::string>> map_shard(const std::filesystem::path& path,
                                        const ModelConfig& config, ModelTensors& model) {
  TQC_TRY_ASSIGN(MappedFile mapped, MappedFile::open(path));
  TQC_TRY_ASSIGN(const tensors::Safetensors file, tensors::read_safetensors(mapped.bytes()));
  TQC_TRY(add_tensors(file, config, model));
  model.files.push_back(std::move(mapped));  // the mapping does not move
  std::set<std::string> names;
  for (const auto& entry : file.tensors) names.insert(entry.first);
  return names;
}

using ShardMap = std::map<std::string, std::set<std::string>>;  // file name -> tensor names

Result<ShardMap> read_index(ByteView text) {
  TQC_TRY_ASSIGN(const Json root, parse_json_object(text));
  TQC_TRY_ASSIGN(const Json* weight_map, get_object(root, "weight_map"));
  ShardMap shards;
  for (const auto& [tensor, file] : weight_map->items()) {
    if (!file.is_string() || !is_plain_file_name(file.get_ref<const std::string&>())) {
      return Error{ErrorCode::kCorrupt,
                   "tensor " + printable_name(tensor) + ": not the name of a safetensors file"};
    }
    shards[file.get<std::string>()].insert(tensor);
    if (shards.size() > kMaxShards) return Error{ErrorCode::kTooLarge, "more than 1024 files"};
  }
  return shards;
}

Result<ModelTensors> map_shards(const std::filesystem::path& folder, const ShardMap& shards,
                                const ModelConfig& config) {
  ModelTensors model;
  for (const auto& [name, wanted] : shards) {
    auto found = map_shard(folder / name, config, model);
    if (!found) return in_context(printable_name(name), std::move(found).error());
    if (*found != wanted) {
      return Error{ErrorCode::kCorrupt,
                   printable_name(name) + ": has other tensors than the index says"};
    }
  }
  return model;
}

Result<ModelTensors> map_files(const std::filesystem::path& folder, const ModelConfig& config) {
  if (is_there(folder / kSingleFile) || !is_there(folder / kIndexFile)) {
    ModelTensors model;
    auto names = map_shard(folder / kSingleFile, config, model);
    if (!names) return in_context(kSingleFile, std::move(names).error());
    return model;
  }
  TQC_TRY_ASSIGN(const Bytes text, read_folder_file(folder, kIndexFile));
  auto shards = read_index(text);
  if (!shards) return in_context(kIndexFile, std::move(shards).error());
  return map_shards(folder, *shards, config);
}

}  // namespace

Result<ModelTensors> map_hf_tensors(const std::filesystem::path& folder, const ModelConfig& config,
                                    const MemoryBudget& memory) {
  TQC_TRY_ASSIGN(ModelTensors model, map_files(folder, config));
  if (config.layout.transposed_experts) TQC_TRY(rearrange_experts(model, memory));
  return model;
}

Result<Bytes> read_folder_file(const std::filesystem::path& folder, const char* name) {
  auto bytes = read_file(folder / name, kMaxJsonBytes);
  if (!bytes) return in_context(name, std::move(bytes).error());
  return bytes;
}

Result<Bytes> read_folder_file_if_any(const std::filesystem::path& folder, const char* name) {
  if (!is_there(folder / name)) return Bytes{};
  return read_folder_file(folder, name);
}

namespace {

using tensors::Gguf;
using tensors::printable_name;

constexpr const char* kNumberKey = "split.no";
constexpr const char* kCountKey = "split.count";
constexpr const char* kTensorsKey = "split.tensors.count";

constexpr std::int64_t kMaxParts = 1024;

Error error_at(ErrorCode code, const char* key, const std::string& fact) {
  return {code, "key \"" + std::string(key) + "\": " + fact};
}

std::string five_digits(std::int64_t n) {
  const std::string digits = std::to_string(n);
  return std::string(digits.size() < 5 ? 5 - digits.size() : 0, '0') + digits;
}

// The end of the name of a part; parts count from 0.
std::string name_end(std::int64_t part, std::int64_t count) {
  return "-" + five_digits(part + 1) + "-of-" + five_digits(count) + ".gguf";
}

Result<std::int64_t> part_count(const Gguf& file) {
  if (!file.has(kCountKey)) return std::int64_t{1};
  TQC_TRY_ASSIGN(const std::int64_t count, file.get_int(kCountKey));
  if (count > kMaxParts) {
    return error_at(
        ErrorCode::kTooLarge, kCountKey,
        std::to_string(count) + " parts, at most " + std::to_string(kMaxParts) + " are read");
  }
  return count;
}

Result<void> check_number(const Gguf& file, std::int64_t expected) {
  TQC_TRY_ASSIGN(const std::int64_t number, file.get_int(kNumberKey));
  if (number == expected) return {};
  return error_at(ErrorCode::kCorrupt, kNumberKey,
                  std::to_string(number) + " where the name says " + std::to_string(expected));
}

// The name of the first part without its end.
Result<std::string> find_stem(const std::filesystem::path& path, const Gguf& first,
                              std::int64_t count) {
  TQC_TRY_ASSIGN(const std::int64_t number, first.get_int(kNumberKey));
  if (number != 0) {
    return error_at(ErrorCode::kInvalidArgument, kNumberKey,
                    "this is another part of the model than the first: name the one that ends in " +
                        name_end(0, count));
  }
  const std::string name = path.filename().string();
  const std::string end = name_end(0, count);
  if (name.ends_with(end)) return name.substr(0, name.size() - end.size());
  return error_at(ErrorCode::kInvalidArgument, kCountKey,
                  "the first of " + std::to_string(count) +
                      " parts, which only a name that ends in " + end + " leads to");
}

Result<void> add_tensors(const Gguf& file, ModelTensors& model) {
  for (const auto& [name, tensor] : file.tensors) {
    if (model.by_name.emplace(name, tensor).second) continue;
    return Error{ErrorCode::kCorrupt, "tensor " + printable_name(name) + ": comes twice"};
  }
  return {};
}

Result<void> map_part(const std::filesystem::path& path, std::int64_t part, std::int64_t count,
                      ModelTensors& model) {
  TQC_TRY_ASSIGN(MappedFile mapped, MappedFile::open(path));
  TQC_TRY_ASSIGN(const Gguf file, tensors::read_gguf(mapped.bytes()));
  TQC_TRY(check_number(file, part));
  TQC_TRY_ASSIGN(const std::int64_t said, file.get_int(kCountKey));
  if (said != count) {
    return error_at(ErrorCode::kCorrupt, kCountKey,
                    std::to_string(said) + " where the first part says " + std::to_string(count));
  }
  TQC_TRY(add_tensors(file, model));
  model.files.push_back(std::move(mapped));  // the mapping does not move
  return {};
}

Result<void> check_tensor_count(const Gguf& first, const ModelTensors& model) {
  if (!first.has(kTensorsKey)) return {};
  TQC_TRY_ASSIGN(const std::int64_t count, first.get_int(kTensorsKey));
  if (std::cmp_equal(count, model.by_name.size())) return {};
  return error_at(
      ErrorCode::kCorrupt, kTensorsKey,
      std::to_string(count) + " where the parts have " + std::to_string(model.by_name.size()));
}

}  // namespace

Result<ModelTensors> map_gguf_parts(const std::filesystem::path& path, MappedFile mapped,
                                    const Gguf& first) {
  ModelTensors model;
  model.by_name = first.tensors;
  model.files.push_back(std::move(mapped));
  TQC_TRY_ASSIGN(const std::int64_t count, part_count(first));
  if (count <= 1) return model;
  TQC_TRY_ASSIGN(const std::string stem, find_stem(path, first, count));
  for (std::int64_t part = 1; part < count; ++part) {
    const std::string name = stem + name_end(part, count);
    auto mapped_part = map_part(path.parent_path() / name, part, count, model);
    if (!mapped_part) return in_context(printable_name(name), std::move(mapped_part).error());
  }
  TQC_TRY(check_tensor_count(first, model));
  return model;
}

// Names of tensors in Hugging Face's folders, and their GGUF names.

namespace {

using NamePair = std::pair<std::string_view, std::string_view>;

constexpr auto kModelNames = std::to_array<NamePair>({
    {"embed_tokens.weight", "token_embd.weight"},
    {"norm.weight", "output_norm.weight"},
    {"lm_head.weight", "output.weight"},
    {"embed_tokens_per_layer.weight", "per_layer_token_embd.weight"},  // Gemma 3n, Gemma 4
    {"per_layer_model_projection.weight", "per_layer_model_proj.weight"},
    {"per_layer_projection_norm.weight", "per_layer_proj_norm.weight"},
});

// Of these, files have one for each stream: "altup_projections.0.weight".
constexpr std::array<NamePair, 2> kStreamNames = {{
    {"altup_projections.", "altup_proj."},
    {"altup_unembed_projections.", "altup_unembd_proj."},
}};

constexpr std::string_view kNormAfterAttention = "post_attention_layernorm.weight";

constexpr auto kLayerNames = std::to_array<NamePair>({
    {"input_layernorm.weight", "attn_norm.weight"},
    {"self_attn.q_proj.weight", "attn_q.weight"},
    {"self_attn.k_proj.weight", "attn_k.weight"},
    {"self_attn.v_proj.weight", "attn_v.weight"},
    {"self_attn.qkv_proj.weight", "attn_qkv.weight"},
    {"self_attn.q_a_proj.weight", "attn_q_a.weight"},  // DeepSeek
    {"self_attn.q_a_layernorm.weight", "attn_q_a_norm.weight"},
    {"self_attn.q_b_proj.weight", "attn_q_b.weight"},
    {"self_attn.kv_a_proj_with_mqa.weight", "attn_kv_a_mqa.weight"},
    {"self_attn.kv_a_layernorm.weight", "attn_kv_a_norm.weight"},
    {"self_attn.kv_b_proj.weight", "attn_kv_b.weight"},
    {"self_attn.o_proj.weight", "attn_output.weight"},
    {"self_attn.q_proj.bias", "attn_q.bias"},
    {"self_attn.k_proj.bias", "attn_k.bias"},
    {"self_attn.v_proj.bias", "attn_v.bias"},
    {"self_attn.o_proj.bias", "attn_output.bias"},
    {"self_attn.q_norm.weight", "attn_q_norm.weight"},
    {"self_attn.k_norm.weight", "attn_k_norm.weight"},
    {"self_attn.query_layernorm.weight", "attn_q_norm.weight"},  // Hunyuan
    {"self_attn.key_layernorm.weight", "attn_k_norm.weight"},
    {"self_attn.sinks", "attn_sinks.weight"},
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
    {"post_self_attn_layernorm.weight", "post_attention_norm.weight"},
    {"post_mlp_layernorm.weight", "post_ffw_norm.weight"},
    {"mlp.gate_proj.weight", "ffn_gate.weight"},
    {"mlp.up_proj.weight", "ffn_up.weight"},
    {"mlp.gate_up_proj.weight", "ffn_up.weight"},
    {"shared_mlp.input_linear.weight", "ffn_up.weight"},  // Granite 4
    {"shared_mlp.output_linear.weight", "ffn_down.weight"},
    {"mlp.gate_proj.bias", "ffn_gate.bias"},
    {"mlp.up_proj.bias", "ffn_up.bias"},
    {"mlp.down_proj.bias", "ffn_down.bias"},
    {"mlp.down_proj.weight", "ffn_down.weight"},
    {"mlp.gate.weight", "ffn_gate_inp.weight"},
    {"block_sparse_moe.gate.weight", "ffn_gate_inp.weight"},
    {"block_sparse_moe.router.layer.weight", "ffn_gate_inp.weight"},  // Granite
    {"block_sparse_moe.input_linear.weight", "ffn_gate_up_exps.weight"},
    {"block_sparse_moe.output_linear.weight", "ffn_down_exps.weight"},
    {"mlp.router.weight", "ffn_gate_inp.weight"},
    {"mlp.router.bias", "ffn_gate_inp.bias"},
    {"mlp.experts.gate_up_proj", "ffn_gate_up_exps.weight"},
    {"mlp.experts.down_proj", "ffn_down_exps.weight"},
    {"mlp.experts.gate_up_proj_bias", "ffn_gate_up_exps.bias"},
    {"mlp.experts.gate_up_proj_blocks", "ffn_gate_up_exps.blocks"},
    {"mlp.experts.gate_up_proj_scales", "ffn_gate_up_exps.scales"},
    {"mlp.experts.down_proj_bias", "ffn_down_exps.bias"},
    {"mlp.experts.down_proj_blocks", "ffn_down_exps.blocks"},
    {"mlp.experts.down_proj_scales", "ffn_down_exps.scales"},
    {"mlp.gate.e_score_correction_bias", "exp_probs_b.bias"},  // DeepSeek V3, GLM-4.5
    {"mlp.shared_experts.gate_proj.weight", "ffn_gate_shexp.weight"},
    {"mlp.shared_experts.up_proj.weight", "ffn_up_shexp.weight"},
    {"mlp.shared_experts.down_proj.weight", "ffn_down_shexp.weight"},
    {"mlp.shared_expert.gate_proj.weight", "ffn_gate_shexp.weight"},
    {"mlp.shared_expert.up_proj.weight", "ffn_up_shexp.weight"},
    {"mlp.shared_expert.down_proj.weight", "ffn_down_shexp.weight"},
    {"mlp.shared_expert_gate.weight", "ffn_gate_inp_shexp.weight"},
    {"per_layer_input_gate.weight", "inp_gate.weight"},  // Gemma 3n, Gemma 4
    {"per_layer_projection.weight", "proj.weight"},
    {"post_per_layer_input_norm.weight", "post_norm.weight"},
    {"layer_scalar", "layer_output_scale.weight"},
    {"altup.correction_coefs.weight", "altup_correct_coef.weight"},
    {"altup.correct_output_scale", "altup_correct_scale.weight"},
    {"altup.prediction_coefs.weight", "altup_predict_coef.weight"},
    {"altup.modality_router.weight", "altup_router.weight"},
    {"altup.router_norm.weight", "altup_router_norm.weight"},
    {"laurel.linear_left.weight", "laurel_l.weight"},
    {"laurel.linear_right.weight", "laurel_r.weight"},
    {"laurel.post_laurel_norm.weight", "laurel_post_norm.weight"},
    {"router.proj.weight", "ffn_gate_inp.weight"},
    {"router.scale", "ffn_gate_inp.scale"},
    {"router.per_expert_scale", "ffn_down_exps.scale"},
    {"experts.gate_up_proj", "ffn_gate_up_exps.weight"},
    {"experts.down_proj", "ffn_down_exps.weight"},
    {"pre_feedforward_layernorm_2.weight", "pre_ffw_norm_2.weight"},
    {"post_feedforward_layernorm_1.weight", "post_ffw_norm_1.weight"},
    {"post_feedforward_layernorm_2.weight", "post_ffw_norm_2.weight"},
});

constexpr std::array<NamePair, 6> kExpertNames = {{
    {"gate_proj.weight", "ffn_gate"},
    {"up_proj.weight", "ffn_up"},
    {"down_proj.weight", "ffn_down"},
    {"w1.weight", "ffn_gate"},  // Mixtral
    {"w3.weight", "ffn_up"},
    {"w2.weight", "ffn_down"},
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

// Removes "3." from the front and returns the number; empty if there is none.
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
  const bool is_expert =
      take_prefix(rest, "mlp.experts.") || take_prefix(rest, "block_sparse_moe.experts.");
  return is_expert ? expert_name(rest) : std::string();
}

// Vision models nest the language model one level deeper; the remainder begins with "layers." or is
// one of kModelNames.
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
  for (const auto& [hf, gguf] : kStreamNames) {
    if (take_prefix(rest, hf)) return std::string(gguf) + std::string(rest);
  }
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
                                       "model.audio_tower.",
                                       "model.embed_vision.",
                                       "model.embed_audio.",
                                       "multi_modal_projector.",
                                       "model.multi_modal_projector."};
  return std::ranges::any_of(kPrefixes,
                             [&](const char* each) { return hf_name.starts_with(each); });
}

}  // namespace tqcache::model
