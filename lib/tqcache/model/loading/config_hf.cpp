#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <numbers>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tqcache/base/json.h"
#include "tqcache/error.h"
#include "tqcache/model/attention/rope_table.h"
#include "tqcache/model/loading/architecture.h"
#include "tqcache/model/loading/config_readers.h"
#include "tqcache/tensors/printable_name.h"

namespace tqcache::model {
namespace {

// The RoPE of a config.json, in the layouts that transformers has used for it.
// Source: huggingface/transformers modeling_rope_utils.py, models/gemma3 and models/phi3.

// The RoPE fields of one layer kind: an object, with fields at the top level as defaults.
struct RopeFields {
  const Json* root;
  const Json* object;  // nullptr: the top level alone

  Result<double> number_or(const char* key, double fallback) const {
    TQC_TRY_ASSIGN(const double value, get_number_or(*root, key, fallback));
    return object == nullptr ? Result<double>(value) : get_number_or(*object, key, value);
  }
  Result<double> own_number_or(const char* key, double fallback) const {
    return get_number_or(*object, key, fallback);
  }
};

// "rope_scaling" up to transformers 4, "rope_parameters" since 5; the latter may contain an object
// for each layer kind. Errors: kUnsupported if a file has both, with different numbers: its writer
// meant one of them, and nothing says which.
Result<const Json*> find_object(const Json& root, const char* kind) {
  const Json* found = nullptr;
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (find_value(root, key) == nullptr) continue;
    const Json* const before = found;
    TQC_TRY_ASSIGN(found, get_object(root, key));
    if (find_value(*found, kind) != nullptr) {
      TQC_TRY_ASSIGN(found, get_object(*found, kind));
    }
    // Formerly there was one object, of the layers with full attention.
    if (before == nullptr || std::string_view(kind) != "full_attention") continue;
    for (const auto& [name, value] : before->items()) {
      const bool is_type = name == "type" && find_value(*found, "rope_type") != nullptr;
      const Json* const other = find_value(*found, is_type ? "rope_type" : name.c_str());
      if (other != nullptr && *other != value) {
        return unsupported("key \"rope_scaling\": \"" + name + "\" is " +
                           tensors::printable_name(value.dump()) + ", and " +
                           tensors::printable_name(other->dump()) +
                           " in \"rope_parameters\"; correct config.json");
      }
    }
  }
  return found;
}

// The kind was formerly called "type".
Result<std::string> kind_of(const Json& object, const Architecture& family) {
  const bool is_old = find_value(object, "type") && !find_value(object, "rope_type");
  if (is_old && family.default_local_base != 0 && object["type"] != "default" &&
      family.local_base_key != "rope_theta") {
    return unsupported(
        "RoPE scaling \"type\": transformers ignores it in this family, which has "
        "\"rope_type\"");
  }
  TQC_TRY_ASSIGN(const std::string old_word, get_string_or(object, "type", "default"));
  return get_string_or(object, "rope_type", old_word.c_str());
}

Result<std::vector<float>> get_factors(const Json& object, const char* key, std::size_t n) {
  TQC_TRY_ASSIGN(const Json* values, get_array(object, key));
  const auto is_number = [](const Json& value) { return value.is_number(); };
  if (values->size() != n || !std::ranges::all_of(*values, is_number)) {
    return corrupt("key \"" + std::string(key) + "\": not " + std::to_string(n) + " numbers");
  }
  return values->get<std::vector<float>>();
}

Result<void> read_linear(const RopeFields& fields, ModelConfig& config) {
  TQC_TRY_ASSIGN(const double factor, fields.own_number_or("factor", 1));
  config.rope.factors.assign(static_cast<std::size_t>(config.rope.n_dims / 2),
                             static_cast<float>(factor));
  return {};
}

Result<void> read_llama3(const RopeFields& fields, ModelConfig& config) {
  Llama3Scaling scaling;
  TQC_TRY_ASSIGN(scaling.factor, fields.own_number_or("factor", 8));
  TQC_TRY_ASSIGN(scaling.low_frequency, fields.own_number_or("low_freq_factor", 1));
  TQC_TRY_ASSIGN(scaling.high_frequency, fields.own_number_or("high_freq_factor", 4));
  TQC_TRY_ASSIGN(scaling.original_context,
                 fields.own_number_or("original_max_position_embeddings",
                                      static_cast<double>(config.context_length)));
  if (!is_valid(scaling)) return corrupt("RoPE scaling \"llama3\": numbers that do not fit");
  config.rope.factors = llama3_factors(config.rope, scaling);
  return {};
}

// The context is at least the one that YaRN stretches to: many files name only the original one.
Result<void> read_yarn(const RopeFields& fields, ModelConfig& config) {
  YarnScaling scaling;
  TQC_TRY_ASSIGN(scaling.original_context,
                 fields.own_number_or("original_max_position_embeddings",
                                      static_cast<double>(config.context_length)));
  TQC_TRY_ASSIGN(
      scaling.original_context,
      get_number_or(*fields.root, "original_max_position_embeddings", scaling.original_context));
  const double stretch = static_cast<double>(config.context_length) / scaling.original_context;
  TQC_TRY_ASSIGN(scaling.factor, fields.own_number_or("factor", stretch));
  TQC_TRY_ASSIGN(scaling.beta_fast, fields.own_number_or("beta_fast", 32));
  TQC_TRY_ASSIGN(scaling.beta_slow, fields.own_number_or("beta_slow", 1));
  TQC_TRY_ASSIGN(scaling.whole_pairs, get_bool_or(*fields.object, "truncate", true));
  if (!is_valid(scaling, config.rope))
    return corrupt("RoPE scaling \"yarn\": numbers that do not fit");
  TQC_TRY_ASSIGN(const double weight, fields.own_number_or("mscale", 0));
  TQC_TRY_ASSIGN(const double all_dims, fields.own_number_or("mscale_all_dim", 0));
  const double magnitude =
      weight != 0 && all_dims != 0
          ? yarn_magnitude(scaling.factor, weight) / yarn_magnitude(scaling.factor, all_dims)
          : yarn_magnitude(scaling.factor);
  TQC_TRY_ASSIGN(const double given, fields.own_number_or("attention_factor", magnitude));
  config.rope_magnitude = static_cast<float>(given);
  config.rope.factors = yarn_factors(config.rope, scaling);
  const double stretched =
      std::min(scaling.factor * scaling.original_context, static_cast<double>(cache::kMaxTokens));
  config.context_length = std::max(config.context_length, static_cast<std::int64_t>(stretched));
  return {};
}

// LongRoPE uses other factors beyond the original context of the model. Switching would change the
// keys already in a cache, so the context ends there.
Result<void> read_longrope(const RopeFields& fields, ModelConfig& config) {
  const char* const key = "original_max_position_embeddings";
  if (!find_value(*fields.root, key) && !find_value(*fields.object, key)) {
    return unsupported("RoPE scaling \"longrope\" without \"original_max_position_embeddings\"");
  }
  TQC_TRY_ASSIGN(const double original, fields.number_or("original_max_position_embeddings", 4096));
  if (!(original > 1 && original <= static_cast<double>(cache::kMaxTokens))) {
    return corrupt("key \"original_max_position_embeddings\": out of range");
  }
  TQC_TRY_ASSIGN(config.rope.factors,
                 get_factors(*fields.object, "short_factor",
                             static_cast<std::size_t>(config.rope.n_dims / 2)));
  TQC_TRY_ASSIGN(
      const double stretch,
      fields.own_number_or("factor", static_cast<double>(config.context_length) / original));
  TQC_TRY_ASSIGN(const double magnitude,
                 fields.own_number_or("attention_factor", longrope_magnitude(stretch, original)));
  config.rope_magnitude = static_cast<float>(magnitude);
  config.context_length = std::min(config.context_length, static_cast<std::int64_t>(original));
  return {};
}

// Queries that see many tokens are longer, and so their scores differ more.
Result<void> read_query_growth(const RopeFields& fields, ModelConfig& config) {
  TQC_TRY_ASSIGN(const double growth, fields.own_number_or("llama_4_scaling_beta", 0));
  config.query_growth = static_cast<float>(growth);
  if (growth == 0) return {};
  TQC_TRY_ASSIGN(config.query_growth_step,
                 get_int(*fields.object, "original_max_position_embeddings"));
  return {};
}

// The scale of scores of DeepSeek, which makes up for lengths that YaRN scales.
Result<void> read_latent_scale(const RopeFields& fields, const Architecture& family,
                               ModelConfig& config) {
  double scale = 1 / std::sqrt(static_cast<double>(config.latent.query_size()));
  if (fields.object != nullptr) {
    TQC_TRY_ASSIGN(const std::string kind, kind_of(*fields.object, family));
    TQC_TRY_ASSIGN(const double weight, fields.own_number_or("mscale_all_dim", 0));
    TQC_TRY_ASSIGN(const double factor, fields.own_number_or("factor", 1));
    const double magnitude = yarn_magnitude(factor, weight);
    if (kind != "default" && weight != 0) scale *= magnitude * magnitude;
  }
  config.attention_scale = static_cast<float>(scale);
  return {};
}

// A base that is stretched once and for all: "dynamic" by name, but not by the length of the text.
Result<void> read_ntk_alpha(double alpha, ModelConfig& config) {
  const auto n_dims = static_cast<double>(config.rope.n_dims);
  if (!(alpha > 0) || config.rope.n_dims <= 2) return corrupt("key \"alpha\": not above 0");
  config.rope.base *= std::pow(alpha, n_dims / (n_dims - 2));
  return {};
}

Result<void> read_scaling(const RopeFields& fields, const Architecture& family,
                          ModelConfig& config) {
  if (fields.object == nullptr) return {};
  TQC_TRY_ASSIGN(std::string kind, kind_of(*fields.object, family));
  // Original names of LongRoPE in Phi-3.
  const bool has_factors = find_value(*fields.object, "short_factor") != nullptr;
  if ((kind == "su" || kind == "yarn") && has_factors) kind = "longrope";
  if (kind == "default" || (kind == "mrope" && family.text_positions)) return {};
  if (family.only_longrope && kind != "longrope") {
    return unsupported("RoPE scaling " + tensors::printable_name(kind) + " in this family");
  }
  // Dynamic scaling changes the base beyond the context of the file, with every token, and leaves
  // the keys of earlier tokens as they are. Within it, it changes nothing: the context ends there.
  if (kind == "dynamic") {
    TQC_TRY_ASSIGN(const double alpha, fields.own_number_or("alpha", 0));
    return alpha != 0 && family.ntk_alpha ? read_ntk_alpha(alpha, config) : Result<void>();
  }
  if (kind == "linear") return read_linear(fields, config);
  // These scale lengths, in all layers; windows with their own RoPE are not scaled.
  const bool has_plain_windows = family.local_base_key == "rope_theta";
  if (family.default_local_base != 0 && !has_plain_windows &&
      (kind == "yarn" || kind == "longrope")) {
    return unsupported("RoPE scaling " + tensors::printable_name(kind) + " in this family");
  }
  if (kind == "yarn") return read_yarn(fields, config);
  if (kind == "llama3") return read_llama3(fields, config);
  if (kind == "longrope") return read_longrope(fields, config);
  return Error{ErrorCode::kUnsupported, "RoPE scaling " + tensors::printable_name(kind)};
}

// The first pairs of a head turn as if all did, and the others stay.
Result<void> read_proportional(const RopeFields& fields, ModelConfig& config) {
  TQC_TRY_ASSIGN(const double share, fields.own_number_or("partial_rotary_factor", 1));
  TQC_TRY_ASSIGN(const double factor, fields.own_number_or("factor", 1));
  const double n_rotated = std::floor(share * static_cast<double>(config.head_dim) / 2);
  if (!(share <= 1 && n_rotated >= 1) || config.head_dim > cache::kMaxHeadDim) {
    return corrupt("key \"partial_rotary_factor\": no pair turns, or more than there are");
  }
  config.rope.n_dims = config.head_dim;
  config.rope.factors.assign(static_cast<std::size_t>(config.head_dim / 2), kStays);
  std::fill_n(config.rope.factors.begin(), static_cast<std::size_t>(n_rotated),
              static_cast<float>(factor));
  return {};
}

// Fills in config.rope and config.rope_magnitude, and limits config.context_length if RoPE changes
// beyond it. Requires: config.head_dim and config.context_length are set.
// Errors: kUnsupported (the kind of scaling), kCorrupt.
Result<void> read_hf_rope(const Json& root, const Architecture& family, ModelConfig& config) {
  static const Json kGemma4Rope = {{"rope_type", "proportional"}, {"partial_rotary_factor", 0.25}};
  static const Json kGptOssRope = {
      {"rope_type", "yarn"}, {"factor", 32.0},    {"beta_fast", 32.0},
      {"beta_slow", 1.0},    {"truncate", false}, {"original_max_position_embeddings", 4096}};
  TQC_TRY_ASSIGN(const Json* object, find_object(root, "full_attention"));
  if (object == nullptr && family.default_yarn) object = &kGptOssRope;
  if (object == nullptr && family.full_heads) object = &kGemma4Rope;
  const RopeFields fields = {&root, object};
  TQC_TRY_ASSIGN(config.rope.base, fields.number_or("rope_theta", family.default_rope_base));
  if (family.full_heads) {
    TQC_TRY_ASSIGN(const std::string kind, kind_of(*object, family));
    if (kind == "proportional") return read_proportional(fields, config);
  }
  TQC_TRY_ASSIGN(const double share,
                 fields.number_or("partial_rotary_factor", family.default_rotary_share));
  if (!(share > 0 && share <= 1)) {
    return corrupt("key \"partial_rotary_factor\": not within 0 to 1");
  }
  if (share != family.default_rotary_share && !family.partial_rotary) {
    return unsupported("key \"partial_rotary_factor\": not in this family");
  }
  // validate() checks the other values, but it would run too late for these.
  const std::int64_t head_dim = family.latent_attention ? config.latent.rotated : config.head_dim;
  const double n_dims = static_cast<double>(head_dim) * share;
  if (!(n_dims >= 2 && n_dims <= double{cache::kMaxHeadDim}) || !(config.rope.base >= 1)) {
    return corrupt(fmt::format("RoPE rotates {:.0f} components, or its base is below 1", n_dims));
  }
  config.rope.n_dims = static_cast<std::int64_t>(n_dims);
  if (family.grows_queries && object != nullptr) TQC_TRY(read_query_growth(fields, config));
  if (family.latent_attention) TQC_TRY(read_latent_scale(fields, family, config));
  return read_scaling(fields, family, config);
}

// The RoPE of sliding-window layers: config.rope if the file has one RoPE for all layers.
Result<cache::Rope> read_hf_local_rope(const Json& root, const Architecture& family,
                                       const ModelConfig& config) {
  if (family.default_local_base == 0) return config.rope;
  TQC_TRY_ASSIGN(const Json* object, find_object(root, "sliding_attention"));
  cache::Rope rope = config.rope;
  rope.factors.clear();
  TQC_TRY_ASSIGN(rope.base, get_number_or(root, std::string(family.local_base_key).c_str(),
                                          family.default_local_base));
  const Json* parameters = find_value(root, "rope_parameters");
  const bool is_own =
      parameters != nullptr && find_value(*parameters, "sliding_attention") == object;
  if (!is_own || object == nullptr) return rope;
  TQC_TRY_ASSIGN(const std::string kind, kind_of(*object, family));
  if (kind != "default") {
    return Error{ErrorCode::kUnsupported,
                 "RoPE scaling " + tensors::printable_name(kind) + " of layers with a window"};
  }
  TQC_TRY_ASSIGN(rope.base, get_number_or(*object, "rope_theta", rope.base));
  return rope;
}

using tensors::printable_name;

// Defaults of transformers.
constexpr std::int64_t kDefaultWindowedFrom = 28;  // max_window_layers
constexpr double kDefaultQueryScalar = 256;
constexpr std::int64_t kDefaultHeadDim = 256;      // of Gemma 4
constexpr std::int64_t kDefaultFullHeadDim = 512;  // global_head_dim
constexpr std::int64_t kDefaultInputVocab = 262'144;

Error unsupported_key(const char* key) {
  return unsupported("key \"" + std::string(key) + "\": not supported");
}

// Vision models keep the configuration of their language model in a separate object.
Result<const Json*> find_text_config(const Json& root) {
  if (find_value(root, "text_config") == nullptr) return &root;
  return get_object(root, "text_config");
}

Result<const Architecture*> read_family(const Json& root) {
  TQC_TRY_ASSIGN(const std::string type, get_string(root, "model_type"));
  TQC_TRY_ASSIGN(const Architecture* family, find_hf_architecture(type));
  if (find_value(root, "architectures") == nullptr) return family;
  TQC_TRY_ASSIGN(const Json* names, get_array(root, "architectures"));
  if (names->size() == 1 && (*names)[0] == family->hf_class) return family;
  return unsupported("key \"architectures\": only " + std::string(family->hf_class) + " is read");
}

// Keys that change the arithmetic of transformers, or that belong to other families: a model that
// was renamed to one of ours still has them. The neutral value changes nothing; null never does.
struct OtherKey {
  const char* key;
  const char* neutral;  // JSON
  // The families that read the key; nullptr: none.
  bool (*is_read)(const Architecture& family);
};

constexpr bool has_caps(const Architecture& family) { return family.has_query_scalar; }
constexpr bool has_score_caps(const Architecture& family) {
  return family.has_query_scalar && !family.value_norms;
}
constexpr bool has_layer_inputs(const Architecture& family) { return family.default_inputs > 0; }
constexpr bool has_streams(const Architecture& family) { return family.parallel_streams; }
// Text is causal whether images are seen both ways ("vision") or not.
constexpr bool sees_media_both_ways(const Architecture& family) { return family.full_heads; }
constexpr bool has_full_heads(const Architecture& family) { return family.full_heads; }
constexpr bool has_plain_experts(const Architecture& family) {
  return (family.has_experts && !family.routed_experts) || family.full_heads;
}
constexpr bool has_multipliers(const Architecture& family) { return family.has_multipliers; }
constexpr bool has_logit_scale(const Architecture& family) {
  return family.default_logit_scale > 0;
}
constexpr bool reads_mlp_bias(const Architecture& family) { return family.reads_mlp_bias; }
constexpr bool reads_use_bias(const Architecture& family) { return family.bias_key == "use_bias"; }
constexpr bool reads_attention_bias(const Architecture& family) {
  return !reads_use_bias(family) && !family.latent_attention;
}
constexpr bool has_latents(const Architecture& family) { return family.latent_attention; }
constexpr bool reads_out_bias(const Architecture& family) { return family.reads_out_bias; }
constexpr bool has_no_rope_layers(const Architecture& family) {
  return family.no_rope_interval > 0;
}
// gpt-oss has weights in MXFP4.
constexpr bool has_mxfp4(const Architecture& family) { return family.transposed_experts; }
constexpr bool has_routed_experts(const Architecture& family) { return family.routed_experts; }
constexpr bool asks_qk_norm(const Architecture& family) { return family.asks_qk_norm; }
// These families have windows by a rule of their own, if this flag is set.
constexpr bool ignores_window_flag(const Architecture& family) {
  return family.hf_type != "qwen2_moe" && family.hf_type != "smollm3";
}
constexpr bool ignores_qkv_bias(const Architecture& family) {
  return family.hf_type != "qwen2_moe";
}

constexpr std::array kOtherKeys = {
    OtherKey{"activation_sparsity_pattern", "null", has_streams},  // Gemma 3n
    OtherKey{"altup_num_inputs", "null", has_streams},
    OtherKey{"attention_bias", "false", reads_attention_bias},
    OtherKey{"attention_k_eq_v", "false", has_full_heads},      // Gemma 4
    OtherKey{"attention_multiplier", "null", has_multipliers},  // Granite
    OtherKey{"attention_out_bias", "false", reads_out_bias},    // Seed-OSS
    OtherKey{"attn_logit_softcapping", "null", has_score_caps},
    OtherKey{"clip_qkv", "null", nullptr},  // OLMo
    OtherKey{"embedding_multiplier", "1", has_multipliers},
    OtherKey{"enable_moe_block", "false", has_full_heads},
    OtherKey{"final_logit_softcapping", "null", has_caps},
    OtherKey{"hidden_size_per_layer_input", "0", has_layer_inputs},  // Gemma 3n, Gemma 4
    OtherKey{"is_causal", "true", nullptr},
    OtherKey{"kv_lora_rank", "null", has_latents},  // DeepSeek
    OtherKey{"logit_scale", "1", has_logit_scale},  // Cohere
    OtherKey{"logits_scaling", "1", has_multipliers},
    OtherKey{"mlp_bias", "false", reads_mlp_bias},
    OtherKey{"moe_num_experts", "0", nullptr},              // ERNIE
    OtherKey{"n_routed_experts", "0", has_routed_experts},  // DeepSeek, GLM-4.5
    OtherKey{"no_rope_layers", "[]", has_no_rope_layers},   // SmolLM3
    OtherKey{"num_kv_shared_layers", "0", has_layer_inputs},
    OtherKey{"per_layer_config", "null", has_full_heads},
    OtherKey{"num_experts", "0", has_plain_experts},
    OtherKey{"num_local_experts", "0", has_plain_experts},  // Mixtral
    OtherKey{"qk_layernorm", "false", nullptr},
    OtherKey{"qkv_bias", "true", ignores_qkv_bias},
    OtherKey{"quantization_config", "null", has_mxfp4},
    OtherKey{"residual_multiplier", "1", has_multipliers},
    OtherKey{"rope_interleave", "true", nullptr},  // DeepSeek V3
    OtherKey{"swiglu_alpha", "1.702", nullptr},    // gpt-oss
    OtherKey{"swiglu_limit", "7.0", nullptr},
    OtherKey{"use_bias", "false", reads_use_bias},  // ERNIE
    OtherKey{"use_bidirectional_attention", "false", sees_media_both_ways},
    OtherKey{"use_double_wide_mlp", "false", has_full_heads},
    OtherKey{"use_parallel_residual", "false", nullptr},
    OtherKey{"use_qk_norm", "false", asks_qk_norm},  // Cohere, GLM-4.5
    OtherKey{"use_sliding_window", "false", ignores_window_flag},
};

Result<void> refuse_other_arithmetic(const Json& root, const Architecture& family) {
  for (const OtherKey& other : kOtherKeys) {
    if (other.is_read != nullptr && other.is_read(family)) continue;
    const Json* value = find_value(root, other.key);
    if (value != nullptr && *value != Json::parse(other.neutral)) return unsupported_key(other.key);
  }
  if (has_mxfp4(family) && find_value(root, "quantization_config") != nullptr) {
    TQC_TRY_ASSIGN(const Json* quantization, get_object(root, "quantization_config"));
    TQC_TRY_ASSIGN(const std::string method, get_string_or(*quantization, "quant_method", ""));
    if (method != "mxfp4") return unsupported_key("quantization_config");
  }
  // The experts of these families are always normalized.
  const bool is_common = family.expert_width == "intermediate_size" && family.default_normalized;
  if (family.hf_type == "qwen3_5_moe_text" || (family.has_experts && is_common)) {
    TQC_TRY_ASSIGN(const bool normalized, get_bool_or(root, "norm_topk_prob", true));
    if (!normalized) return unsupported_key("norm_topk_prob");
  }
  // transformers refuses them as well.
  for (const char* flag : {"attention_bias", "mlp_bias", "norm_topk_prob", "tie_word_embeddings",
                           "use_sliding_window"}) {
    if (root.contains(flag) && root[flag].is_null()) {
      return corrupt("key \"" + std::string(flag) + "\": null, not true or false");
    }
  }
  return {};
}

Result<Activation> read_activation(const Json& root, const Architecture& family) {
  const bool is_gelu = family.activation == Activation::kGeluTanh;
  const char* fallback = is_gelu ? "gelu_pytorch_tanh" : "silu";
  const char* key = is_gelu && family.has_query_scalar ? "hidden_activation" : "hidden_act";
  TQC_TRY_ASSIGN(const std::string word, get_string_or(root, key, fallback));
  const bool is_known = is_gelu ? word == "gelu_pytorch_tanh" : word == "silu" || word == "swish";
  // The first files of Gemma 1 say "gelu" and mean the tanh formula, as transformers reads them.
  if (is_known || (family.hf_type == "gemma" && word == "gelu")) return family.activation;
  return unsupported("activation " + printable_name(word) + " in this family");
}

// Granite 4 with state space layers, or without RoPE.
Result<void> refuse_other_granite(const Json& root) {
  TQC_TRY_ASSIGN(const std::string positions, get_string_or(root, "position_embedding_type", ""));
  if (positions != "rope") return unsupported_key("position_embedding_type");
  if (find_value(root, "layer_types") == nullptr) return unsupported_key("layer_types");
  return {};
}

// --- layer kinds

enum class LayerType { kFull, kWindow, kLinear };

Result<LayerType> layer_type(const Json& word) {
  if (word == "full_attention" || word == "attention") return LayerType::kFull;
  if (word == "sliding_attention") return LayerType::kWindow;
  if (word == "linear_attention") return LayerType::kLinear;
  return unsupported_key("layer_types");
}

// The layer type by the family's rule, if the file has no list.
Result<LayerType> default_layer_type(const Json& root, const Architecture& family,
                                     std::int64_t index) {
  if (family.has_delta_net) {
    TQC_TRY_ASSIGN(const std::int64_t interval,
                   get_int_or(root, "full_attention_interval", kDefaultFullInterval));
    if (interval < 1) return corrupt("key \"full_attention_interval\": below 1");
    return (index + 1) % interval == 0 ? LayerType::kFull : LayerType::kLinear;
  }
  switch (family.windows) {
    case WindowRule::kNone:
      return LayerType::kFull;
    case WindowRule::kAll:
      return LayerType::kWindow;
    case WindowRule::kIfAsked: {
      TQC_TRY_ASSIGN(const std::int64_t from,
                     get_int_or(root, "max_window_layers", kDefaultWindowedFrom));
      return index >= from ? LayerType::kWindow : LayerType::kFull;
    }
    case WindowRule::kListed:
      return corrupt("key \"layer_types\": missing");
    case WindowRule::kPeriod:
      break;
  }
  TQC_TRY_ASSIGN(const std::int64_t period,
                 get_int_or(root, "sliding_window_pattern", family.window_period));
  if (period < 1) return corrupt("key \"sliding_window_pattern\": below 1");
  return (index + 1) % period == 0 ? LayerType::kFull : LayerType::kWindow;
}

// 0: no window.
Result<std::int64_t> read_window(const Json& root, const Architecture& family) {
  if (family.windows == WindowRule::kNone) return std::int64_t{0};
  if (family.windows == WindowRule::kIfAsked) {
    TQC_TRY_ASSIGN(const bool asked, get_bool_or(root, "use_sliding_window", false));
    if (!asked) return std::int64_t{0};
  }
  TQC_TRY_ASSIGN(const std::int64_t window,
                 get_int_or(root, "sliding_window", family.default_window));
  if (find_value(root, "sliding_window") && window < 1) {
    return corrupt("key \"sliding_window\": below 1");
  }
  return window;
}

Result<LayerConfig> make_layer(LayerType type, std::int64_t window, const Architecture& family,
                               const cache::Rope& full, const cache::Rope& local) {
  if (type == LayerType::kLinear) {
    if (!family.has_delta_net) return unsupported_key("layer_types");
    return LayerConfig{LayerKind::kDeltaNet, 0, full};
  }
  const bool has_window = type == LayerType::kWindow && window > 0;
  if (type == LayerType::kFull && window > 0 && family.full_without_rope) {
    cache::Rope none = full;
    none.style = cache::RopeStyle::kNone;
    return LayerConfig{LayerKind::kAttention, 0, std::move(none)};
  }
  return LayerConfig{LayerKind::kAttention, has_window ? window : 0, has_window ? local : full};
}

// SmolLM3: 1 for a layer with RoPE, 0 for one without; by default every fourth has none.
Result<void> read_no_rope_layers(const Json& root, const Architecture& family,
                                 ModelConfig& config) {
  if (family.no_rope_interval == 0) return {};
  constexpr const char* kList = "no_rope_layers";
  const auto n_layers = config.layers.size();
  const Json* list = nullptr;
  if (find_value(root, kList) != nullptr) {
    TQC_TRY_ASSIGN(list, get_array(root, kList));
    if (list->size() < n_layers) return corrupt("key \"no_rope_layers\": too few layers");
  }
  TQC_TRY_ASSIGN(const std::int64_t interval,
                 get_int_or(root, "no_rope_layer_interval", family.no_rope_interval));
  if (interval < 1) return corrupt("key \"no_rope_layer_interval\": below 1");
  for (std::size_t i = 0; i < n_layers; ++i) {
    if (list != nullptr && (*list)[i] != 0 && (*list)[i] != 1) return unsupported_key(kList);
    const bool has_rope =
        list != nullptr ? (*list)[i] == 1 : (static_cast<std::int64_t>(i) + 1) % interval != 0;
    if (!has_rope) config.layers[i].rope.style = cache::RopeStyle::kNone;
  }
  return {};
}

// A list with a number for each layer. nullptr: there is none.
Result<const Json*> find_layer_numbers(const Json& root, const char* key, std::int64_t n_layers) {
  const Json* const list = find_value(root, key);
  if (list == nullptr || list->is_number()) return nullptr;
  const auto is_number = [](const Json& each) { return each.is_number(); };
  if (!list->is_array() || std::ssize(*list) != n_layers ||
      !std::ranges::all_of(*list, is_number)) {
    return corrupt("key \"" + std::string(key) + "\": not a number for each layer");
  }
  return list;
}

// x for which the normal distribution is p. Requires: 0 < p < 1.
double normal_quantile(double p) {
  double low = -40, high = 40;
  for (int i = 0; i < 100; ++i) {
    const double middle = (low + high) / 2;
    (std::erfc(-middle / std::numbers::sqrt2) / 2 < p ? low : high) = middle;
  }
  return low;
}

// Gemma 3n: widths and shares of gates that are cut off.
Result<void> read_layer_numbers(const Json& root, ModelConfig& config) {
  TQC_TRY_ASSIGN(const Json* widths,
                 find_layer_numbers(root, "intermediate_size", config.n_layers));
  TQC_TRY_ASSIGN(const Json* shares,
                 find_layer_numbers(root, "activation_sparsity_pattern", config.n_layers));
  for (std::size_t i = 0; i < config.layers.size(); ++i) {
    if (widths != nullptr) {
      if (!(*widths)[i].is_number_integer() || (*widths)[i] < 1) {
        return corrupt("key \"intermediate_size\": not above 0");
      }
      config.layers[i].d_ff = (*widths)[i].get<std::int64_t>();
    }
    const bool is_cut = config.n_layers > 10 && i < 10;  // transformers' default
    const double share = shares == nullptr ? (is_cut ? 0.95 : 0.0) : (*shares)[i].get<double>();
    if (!(share >= 0 && share < 1)) return unsupported_key("activation_sparsity_pattern");
    if (share > 0) config.layers[i].gate_cutoff = static_cast<float>(normal_quantile(share));
  }
  return {};
}

// The last layers read the keys and values of the last one before them of their kind.
Result<void> share_layers(std::int64_t n_shared, ModelConfig& config) {
  const std::int64_t n_own = config.n_layers - n_shared;
  if (n_shared < 0 || n_own < 1) {
    return corrupt("key \"num_kv_shared_layers\": " + std::to_string(n_shared));
  }
  for (std::int64_t i = n_own; i < config.n_layers; ++i) {
    LayerConfig& layer = config.layers[static_cast<std::size_t>(i)];
    for (std::int64_t j = 0; j < n_own; ++j) {
      if (config.layers[static_cast<std::size_t>(j)].window == layer.window) layer.source = j;
    }
    if (layer.source < 0) {
      return corrupt("layer " + std::to_string(i) + ": no earlier one of its kind has keys");
    }
  }
  return {};
}

// The heads of layers with a window in Gemma 4, whose RoPE rotates all of their components.
Result<void> read_window_heads(const Json& root, ModelConfig& config) {
  cache::HeadShape heads;
  TQC_TRY_ASSIGN(heads.head_dim, get_int_or(root, "head_dim", kDefaultHeadDim));
  TQC_TRY_ASSIGN(heads.n_kv_heads, get_int(root, "num_key_value_heads"));
  TQC_TRY_ASSIGN(const bool is_same, get_bool_or(root, "attention_k_eq_v", false));
  TQC_TRY_ASSIGN(const bool is_wide, get_bool_or(root, "use_double_wide_mlp", false));
  if (config.layers.back().window > 0) return unsupported_key("layer_types");  // "full_attention"
  const Json* const both_ways = find_value(root, "use_bidirectional_attention");
  if (both_ways != nullptr && *both_ways != "vision" && *both_ways != false) {
    return unsupported_key("use_bidirectional_attention");
  }
  for (LayerConfig& layer : config.layers) {
    if (layer.window > 0) {
      layer.heads = heads;
      layer.rope.n_dims = heads.head_dim;
    } else {
      layer.keys_as_values = is_same;
    }
    if (is_wide && layer.source >= 0) layer.d_ff = 2 * config.d_ff;
  }
  return {};
}

// What differs between the layers of Gemma 3n and Gemma 4.
Result<void> read_layer_differences(const Json& root, const Architecture& family,
                                    ModelConfig& config) {
  constexpr const char* kInputs = "hidden_size_per_layer_input";
  TQC_TRY_ASSIGN(config.layer_inputs,
                 get_int_or(root, kInputs, root.contains(kInputs) ? 0 : family.default_inputs));
  if (config.layer_inputs != 0) {
    TQC_TRY_ASSIGN(config.layer_input_vocab,
                   get_int_or(root, "vocab_size_per_layer_input", kDefaultInputVocab));
  }
  TQC_TRY_ASSIGN(const std::int64_t n_shared,
                 get_int_or(root, "num_kv_shared_layers", family.default_shared));
  TQC_TRY(share_layers(n_shared, config));
  if (family.full_heads) return read_window_heads(root, config);
  TQC_TRY(read_layer_numbers(root, config));
  TQC_TRY_ASSIGN(config.n_streams, get_int_or(root, "altup_num_inputs", 4));
  TQC_TRY_ASSIGN(config.laurel_rank, get_int_or(root, "laurel_rank", 64));
  TQC_TRY_ASSIGN(const std::int64_t active, get_int_or(root, "altup_active_idx", 0));
  TQC_TRY_ASSIGN(const bool is_scaled, get_bool_or(root, "altup_correct_scale", true));
  if (active != 0) return unsupported_key("altup_active_idx");
  if (!is_scaled) return unsupported_key("altup_correct_scale");
  if (config.n_streams < 2) return unsupported_key("altup_num_inputs");
  if (config.layer_inputs < 1) return unsupported_key("hidden_size_per_layer_input");
  return {};
}

Result<void> read_layers(const Json& root, const Architecture& family, ModelConfig& config) {
  TQC_TRY_ASSIGN(const std::int64_t window, read_window(root, family));
  TQC_TRY_ASSIGN(const cache::Rope local, read_hf_local_rope(root, family, config));
  const Json* types = nullptr;
  if (find_value(root, "layer_types") != nullptr) {
    TQC_TRY_ASSIGN(types, get_array(root, "layer_types"));
    if (static_cast<std::int64_t>(types->size()) != config.n_layers) {
      return corrupt("key \"layer_types\": " + std::to_string(types->size()) + " for " +
                     std::to_string(config.n_layers) + " layers");
    }
  }
  for (std::int64_t i = 0; i < config.n_layers; ++i) {
    TQC_TRY_ASSIGN(const LayerType type, types ? layer_type((*types)[static_cast<std::size_t>(i)])
                                               : default_layer_type(root, family, i));
    if (type == LayerType::kWindow && window == 0 && types != nullptr) {
      return unsupported_key("layer_types");
    }
    TQC_TRY_ASSIGN(LayerConfig layer, make_layer(type, window, family, config.rope, local));
    config.layers.push_back(std::move(layer));
  }
  if (family.default_inputs > 0) TQC_TRY(read_layer_differences(root, family, config));
  return read_no_rope_layers(root, family, config);
}

Result<void> read_delta_net(const Json& root, DeltaNetConfig& net) {
  TQC_TRY_ASSIGN(net.n_key_heads, get_int(root, "linear_num_key_heads"));
  TQC_TRY_ASSIGN(net.n_value_heads, get_int(root, "linear_num_value_heads"));
  TQC_TRY_ASSIGN(net.key_dim, get_int(root, "linear_key_head_dim"));
  TQC_TRY_ASSIGN(net.value_dim, get_int(root, "linear_value_head_dim"));
  TQC_TRY_ASSIGN(net.kernel, get_int(root, "linear_conv_kernel_dim"));
  return {};
}

// --- other settings

// Those of DeepSeek and GLM-4.5.
Result<void> read_routed_experts(const Json& root, const Architecture& family,
                                 ExpertsConfig& experts) {
  TQC_TRY_ASSIGN(const std::int64_t step, get_int_or(root, "moe_layer_freq", 1));
  if (step != 1) return unsupported_key("moe_layer_freq");
  experts.sigmoid = experts.choice_bias = family.sigmoid_experts;
  experts.shared_gate = false;
  const char* const scoring = family.sigmoid_experts ? "sigmoid" : "softmax";
  TQC_TRY_ASSIGN(const std::string function, get_string_or(root, "scoring_func", scoring));
  if (function != scoring) return unsupported_key("scoring_func");
  const char* const usual = family.sigmoid_experts ? "noaux_tc" : "greedy";
  TQC_TRY_ASSIGN(const std::string method, get_string_or(root, "topk_method", usual));
  experts.group_pairs = family.sigmoid_experts;
  const bool in_groups = method == "group_limited_greedy" && !family.sigmoid_experts;
  if (method != usual && !in_groups) return unsupported_key("topk_method");
  TQC_TRY_ASSIGN(experts.count, get_int(root, "n_routed_experts"));
  TQC_TRY_ASSIGN(experts.used, get_int(root, "num_experts_per_tok"));
  TQC_TRY_ASSIGN(experts.d_ff, get_int(root, "moe_intermediate_size"));
  TQC_TRY_ASSIGN(const std::int64_t n_shared, get_int(root, "n_shared_experts"));
  if (n_shared < 1 || experts.d_ff > cache::kMaxTokens / n_shared) {
    return corrupt("key \"n_shared_experts\": " + std::to_string(n_shared));
  }
  experts.shared_d_ff = n_shared * experts.d_ff;
  // Defaults differ from family to family, and transformers writes all of these.
  TQC_TRY_ASSIGN(experts.first_layer, get_int(root, "first_k_dense_replace"));
  if (in_groups || family.sigmoid_experts) {
    TQC_TRY_ASSIGN(experts.groups, get_int(root, "n_group"));
    TQC_TRY_ASSIGN(experts.used_groups, get_int(root, "topk_group"));
  }
  if (find_value(root, "routed_scaling_factor") == nullptr) {
    return corrupt("key \"routed_scaling_factor\": missing");
  }
  TQC_TRY_ASSIGN(const double scale, get_number_or(root, "routed_scaling_factor", 1));
  experts.scale = static_cast<float>(scale);
  TQC_TRY_ASSIGN(experts.normalized,
                 get_bool_or(root, "norm_topk_prob", family.default_normalized));
  // transformers ignores it in DeepSeek V2.
  if (experts.normalized && !family.sigmoid_experts) return unsupported_key("norm_topk_prob");
  return {};
}

// Those of Gemma 4, beside the feed-forward.
Result<void> read_side_experts(const Json& root, ExpertsConfig& experts) {
  TQC_TRY_ASSIGN(experts.beside_ffn, get_bool_or(root, "enable_moe_block", false));
  if (!experts.beside_ffn) return {};
  TQC_TRY_ASSIGN(experts.count, get_int(root, "num_experts"));
  if (experts.count < 1) return unsupported_key("num_experts");
  TQC_TRY_ASSIGN(experts.used, get_int(root, "top_k_experts"));
  TQC_TRY_ASSIGN(experts.d_ff, get_int(root, "moe_intermediate_size"));
  return {};
}

Result<void> read_experts(const Json& root, const Architecture& family, ExpertsConfig& experts) {
  if (family.full_heads) return read_side_experts(root, experts);
  if (!family.has_experts) return {};
  if (family.routed_experts) return read_routed_experts(root, family, experts);
  TQC_TRY_ASSIGN(const std::int64_t step, get_int_or(root, "decoder_sparse_step", 1));
  if (step != 1) return unsupported_key("decoder_sparse_step");
  if (find_value(root, "mlp_only_layers") != nullptr) {
    TQC_TRY_ASSIGN(const Json* dense, get_array(root, "mlp_only_layers"));
    if (!dense->empty()) return unsupported_key("mlp_only_layers");
  }
  const char* key =
      find_value(root, "num_experts") != nullptr ? "num_experts" : "num_local_experts";
  TQC_TRY_ASSIGN(experts.count, get_int(root, key));
  if (experts.count == 0) return unsupported_key(key);
  TQC_TRY_ASSIGN(experts.used, get_int(root, "num_experts_per_tok"));
  TQC_TRY_ASSIGN(experts.d_ff, get_int(root, std::string(family.expert_width).c_str()));
  TQC_TRY_ASSIGN(experts.shared_d_ff, get_int_or(root, "shared_expert_intermediate_size", 0));
  TQC_TRY_ASSIGN(experts.normalized,
                 get_bool_or(root, "norm_topk_prob", family.default_normalized));
  experts.biases = family.expert_biases;
  return {};
}

// A cache has one kv head: the latent.
Result<void> read_latents(const Json& root, ModelConfig& config) {
  LatentConfig& latent = config.latent;
  TQC_TRY_ASSIGN(latent.query_rank, get_int_or(root, "q_lora_rank", 0));
  TQC_TRY_ASSIGN(latent.rank, get_int(root, "kv_lora_rank"));
  TQC_TRY_ASSIGN(latent.rotated, get_int(root, "qk_rope_head_dim"));
  TQC_TRY_ASSIGN(latent.plain, get_int(root, "qk_nope_head_dim"));
  TQC_TRY_ASSIGN(latent.value, get_int(root, "v_head_dim"));
  latent.epsilon = 1e-6f;  // whatever "rms_norm_eps" says, in transformers
  config.n_kv_heads = 1;
  config.head_dim = latent.rank;
  return validate_latents(config);
}

// The heads of layers with full attention in Gemma 4. transformers 5.23 writes what differs from
// the other layers into "per_layer_config".
Result<void> read_full_heads(const Json& root, ModelConfig& config) {
  const Json* own = find_value(root, "per_layer_config");
  if (own != nullptr) {
    TQC_TRY_ASSIGN(const Json* types, get_array(root, "layer_types"));
    TQC_TRY_ASSIGN(own, get_object(root, "per_layer_config"));
    const auto n_full = std::ranges::count(*types, "full_attention");
    const Json same = own->empty() ? Json::object() : *own->begin();
    for (const auto& [name, layer] : own->items()) {
      const bool is_index =
          name.size() <= 4 && name.find_first_not_of("0123456789") == std::string::npos;
      const auto index = static_cast<std::size_t>(is_index ? std::atoi(name.c_str()) : -1);
      const bool is_full = index < types->size() && (*types)[index] == "full_attention";
      if (!is_full || layer != same) return unsupported_key("per_layer_config");
    }
    if (!same.is_object() || (!own->empty() && std::ssize(*own) != n_full)) {
      return unsupported_key("per_layer_config");
    }
    for (const auto& [name, value] : same.items()) {
      if (name != "head_dim" && name != "num_key_value_heads") {
        return unsupported_key("per_layer_config");
      }
    }
    TQC_TRY_ASSIGN(config.head_dim, get_int_or(same, "head_dim", config.head_dim));
    TQC_TRY_ASSIGN(config.n_kv_heads, get_int_or(same, "num_key_value_heads", config.n_kv_heads));
    return {};
  }
  TQC_TRY_ASSIGN(config.head_dim, get_int_or(root, "global_head_dim", kDefaultFullHeadDim));
  TQC_TRY_ASSIGN(const bool is_same, get_bool_or(root, "attention_k_eq_v", false));
  if (!is_same) return {};
  TQC_TRY_ASSIGN(config.n_kv_heads,
                 get_int_or(root, "num_global_key_value_heads", config.n_kv_heads));
  return {};
}

Result<void> read_shapes(const Json& root, const Architecture& family, ModelConfig& config) {
  TQC_TRY_ASSIGN(config.n_layers, get_int(root, "num_hidden_layers"));
  if (family.routed_experts) {
    TQC_TRY_ASSIGN(config.layout.n_extra_layers, get_int_or(root, "num_nextn_predict_layers", 0));
  }
  TQC_TRY_ASSIGN(config.d_model, get_int(root, "hidden_size"));
  const char* const width = family.shared_mlp ? "shared_intermediate_size" : "intermediate_size";
  const Json* const widths = find_value(root, width);
  if (family.parallel_streams && widths != nullptr && widths->is_array()) {
    config.d_ff = 1;  // read_layer_numbers() has those of the layers
  } else if (!family.has_experts || widths != nullptr) {
    TQC_TRY_ASSIGN(config.d_ff, get_int(root, width));
  }
  TQC_TRY_ASSIGN(config.n_heads, get_int(root, "num_attention_heads"));
  TQC_TRY_ASSIGN(config.n_kv_heads, get_int(root, "num_key_value_heads"));
  if (config.n_heads < 1) return corrupt("n_heads: " + std::to_string(config.n_heads));
  const std::int64_t head_dim =
      family.default_head_dim > 0 ? family.default_head_dim : config.d_model / config.n_heads;
  TQC_TRY_ASSIGN(config.head_dim, get_int_or(root, "head_dim", head_dim));
  if (family.latent_attention) TQC_TRY(read_latents(root, config));
  if (family.full_heads) TQC_TRY(read_full_heads(root, config));
  TQC_TRY_ASSIGN(config.vocab_size, get_int(root, "vocab_size"));
  TQC_TRY_ASSIGN(config.context_length, get_int(root, "max_position_embeddings"));
  const std::int64_t extra = config.layout.n_extra_layers;
  if (extra < 0 || extra > cache::kMaxLayers) {
    return corrupt("key \"num_nextn_predict_layers\": " + std::to_string(extra));
  }
  if (config.n_layers > cache::kMaxLayers) {
    return Error{ErrorCode::kTooLarge, "n_layers: " + std::to_string(config.n_layers) +
                                           " is above " + std::to_string(cache::kMaxLayers)};
  }
  return {};
}

Result<float> read_cap(const Json& root, const char* key, float fallback) {
  TQC_TRY_ASSIGN(const double cap, get_number_or(root, key, root.contains(key) ? 0 : fallback));
  return static_cast<float>(cap);
}

Result<void> read_multipliers(const Json& root, ModelConfig& config) {
  struct Factor {
    const char* key;
    float& value;
  };
  for (const Factor& factor : {Factor{"attention_multiplier", config.attention_scale},
                               Factor{"embedding_multiplier", config.embedding_scale},
                               Factor{"residual_multiplier", config.residual_scale},
                               Factor{"logits_scaling", config.logit_divisor}}) {
    TQC_TRY_ASSIGN(const double value, get_number_or(root, factor.key, 1));
    if (!(value > 0)) return corrupt("key \"" + std::string(factor.key) + "\": not above 0");
    factor.value = static_cast<float>(value);
  }
  return {};
}

Result<void> read_scales(const Json& root, const Architecture& family, ModelConfig& config) {
  const char* const epsilon_key = family.layer_norms ? "layer_norm_eps" : "rms_norm_eps";
  TQC_TRY_ASSIGN(const double epsilon, get_number_or(root, epsilon_key, family.default_epsilon));
  config.rms_norm_epsilon = static_cast<float>(epsilon);
  if (family.scaled_embedding) {
    config.embedding_scale = std::sqrt(static_cast<float>(config.d_model));
  }
  if (family.has_multipliers) return read_multipliers(root, config);
  if (family.default_logit_scale > 0) {
    TQC_TRY_ASSIGN(const double scale,
                   get_number_or(root, "logit_scale", family.default_logit_scale));
    if (!(scale > 0)) return corrupt("key \"logit_scale\": not above 0");
    config.logit_divisor = static_cast<float>(1 / scale);
  }
  if (!family.has_query_scalar) return {};
  TQC_TRY_ASSIGN(config.logit_cap,
                 read_cap(root, "final_logit_softcapping", family.default_logit_cap));
  if (family.value_norms) {
    config.attention_scale = 1;
    return {};
  }
  TQC_TRY_ASSIGN(const double scalar,
                 get_number_or(root, "query_pre_attn_scalar", kDefaultQueryScalar));
  if (!(scalar > 0)) return corrupt("key \"query_pre_attn_scalar\": not above 0");
  config.attention_scale = static_cast<float>(1 / std::sqrt(scalar));
  TQC_TRY_ASSIGN(config.attention_cap,
                 read_cap(root, "attn_logit_softcapping", family.default_attention_cap));
  return {};
}

Result<void> read_optional_parts(const Json& root, const Architecture& family,
                                 ModelConfig& config) {
  TQC_TRY_ASSIGN(const bool all,
                 get_bool_or(root, std::string(family.bias_key).c_str(), family.default_biases));
  config.qkv_biases = all || family.qkv_biases;
  config.output_bias = all && !family.no_output_bias;
  config.mlp_biases = all && reads_use_bias(family);
  if (family.asks_qk_norm) {
    TQC_TRY_ASSIGN(config.qk_norms, get_bool_or(root, "use_qk_norm", false));
  }
  if (family.reads_out_bias) {
    TQC_TRY_ASSIGN(config.output_bias, get_bool_or(root, "attention_out_bias", false));
  }
  if (family.reads_mlp_bias) {
    TQC_TRY_ASSIGN(config.mlp_biases, get_bool_or(root, "mlp_bias", false));
  }
  return {};
}

// Sets the fields that do not depend on numbers in the file.
void set_family(const Architecture& family, ModelConfig& config) {
  config.architecture = family.word;
  config.qk_norms = family.qk_norms;
  config.wide_qk_norms = family.wide_qk_norms;
  config.pre_norms = family.pre_norms;
  config.post_norms = family.post_norms;
  config.layer_norms = family.layer_norms;
  config.norms_after_rope = family.norms_after_rope;
  config.parallel_blocks = family.parallel_blocks;
  config.attention_gate = family.attention_gate;
  config.attention_sinks = family.attention_sinks;
  config.value_norms = family.value_norms;
  config.layer_factors = family.full_heads;
  config.layout.permuted_heads = family.permuted_hf;
  config.layout.transposed_experts = family.transposed_experts;
  config.layout.fused_projections = family.fused_projections;
  config.layout.fused_gate_up = family.fused_gate_up;
  config.layout.log_decay = family.has_delta_net;
  config.layout.norm_offset = family.zero_centered_norms ? 1.0f : 0.0f;
  config.layout.ffn_norm = family.ffn_norm;
  config.layout.after_attention = family.after_attention;
}

}  // namespace

Result<ModelConfig> read_hf_config(ByteView config_json) {
  TQC_TRY_ASSIGN(const Json whole, parse_json_object(config_json));
  TQC_TRY_ASSIGN(const Json* text, find_text_config(whole));
  const Json& root = *text;
  TQC_TRY_ASSIGN(const Architecture* family, read_family(root));
  TQC_TRY(refuse_other_arithmetic(root, *family));
  if (family->shared_mlp) TQC_TRY(refuse_other_granite(root));

  ModelConfig config;
  set_family(*family, config);
  TQC_TRY_ASSIGN(config.name, get_string_or(whole, "_name_or_path", ""));
  TQC_TRY_ASSIGN(config.activation, read_activation(root, *family));
  TQC_TRY(read_shapes(root, *family, config));
  TQC_TRY(read_experts(root, *family, config.experts));
  TQC_TRY(read_scales(root, *family, config));
  TQC_TRY(read_optional_parts(root, *family, config));
  TQC_TRY(read_hf_rope(root, *family, config));
  TQC_TRY(read_layers(root, *family, config));
  if (family->has_delta_net) TQC_TRY(read_delta_net(root, config.delta_net));
  TQC_TRY_ASSIGN(const bool tied, get_bool_or(whole, "tie_word_embeddings", family->default_tied));
  TQC_TRY_ASSIGN(config.tied_embeddings, get_bool_or(root, "tie_word_embeddings", tied));
  drop_wide_windows(config);
  TQC_TRY(validate(config));
  return config;
}

}  // namespace tqcache::model
