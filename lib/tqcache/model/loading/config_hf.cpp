#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>

#include "tqcache/base/result.h"
#include "tqcache/model/loading/architecture.h"
#include "tqcache/model/loading/config.h"
#include "tqcache/model/loading/hf_rope.h"
#include "tqcache/model/loading/json_fields.h"
#include "tqcache/tensors/printable_name.h"

namespace tqcache::model {
namespace {

using tensors::printable_name;

// What transformers fills in.
constexpr std::int64_t kDefaultWindowedFrom = 28;  // max_window_layers
constexpr double kDefaultQueryScalar = 256;

Error unsupported_key(const char* key) {
  return unsupported("key \"" + std::string(key) + "\": not supported");
}

// Models with eyes keep what their language model is in an object of its own.
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

Result<void> refuse_other_arithmetic(const Json& root) {
  for (const char* key : {"mlp_bias", "use_bidirectional_attention"}) {
    TQC_TRY_ASSIGN(const bool value, get_bool_or(root, key, false));
    if (value) return unsupported_key(key);
  }
  if (find_value(root, "quantization_config") != nullptr) {
    return unsupported_key("quantization_config");
  }
  return {};
}

Result<Activation> read_activation(const Json& root, const Architecture& family) {
  const bool is_gelu = family.activation == Activation::kGeluTanh;
  const char* fallback = is_gelu ? "gelu_pytorch_tanh" : "silu";
  const char* key = is_gelu ? "hidden_activation" : "hidden_act";
  TQC_TRY_ASSIGN(const std::string word, get_string_or(root, key, fallback));
  if (word == "silu") return Activation::kSilu;
  if (word == "gelu_pytorch_tanh") return Activation::kGeluTanh;
  return unsupported("activation " + printable_name(word));
}

// --- kinds of layers

enum class LayerType { kFull, kWindow, kLinear };

Result<LayerType> layer_type(const Json& word) {
  if (word == "full_attention") return LayerType::kFull;
  if (word == "sliding_attention") return LayerType::kWindow;
  if (word == "linear_attention") return LayerType::kLinear;
  return unsupported_key("layer_types");
}

// By a rule, where the file has no list.
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
    case WindowRule::kPeriod:
      break;
  }
  TQC_TRY_ASSIGN(const std::int64_t period,
                 get_int_or(root, "sliding_window_pattern", family.window_period));
  if (period < 1) return corrupt("key \"sliding_window_pattern\": below 1");
  return (index + 1) % period == 0 ? LayerType::kFull : LayerType::kWindow;
}

// 0 where there is none.
Result<std::int64_t> read_window(const Json& root, const Architecture& family) {
  if (family.windows == WindowRule::kNone) return std::int64_t{0};
  if (family.windows == WindowRule::kIfAsked) {
    TQC_TRY_ASSIGN(const bool asked, get_bool_or(root, "use_sliding_window", false));
    if (!asked) return std::int64_t{0};
  }
  return get_int_or(root, "sliding_window", family.default_window);
}

Result<LayerConfig> make_layer(LayerType type, std::int64_t window, const Architecture& family,
                               const cache::Rope& full, const cache::Rope& local) {
  if (type == LayerType::kLinear) {
    if (!family.has_delta_net) return unsupported_key("layer_types");
    return LayerConfig{LayerKind::kDeltaNet, 0, full};
  }
  const bool has_window = type == LayerType::kWindow && window > 0;
  return LayerConfig{LayerKind::kAttention, has_window ? window : 0, has_window ? local : full};
}

Result<void> read_layers(const Json& root, const Architecture& family, ModelConfig& config) {
  TQC_TRY_ASSIGN(const std::int64_t window, read_window(root, family));
  if (window < 0) return corrupt("key \"sliding_window\": below 0");
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
  return {};
}

Result<void> read_delta_net(const Json& root, DeltaNetConfig& net) {
  TQC_TRY_ASSIGN(net.n_key_heads, get_int(root, "linear_num_key_heads"));
  TQC_TRY_ASSIGN(net.n_value_heads, get_int(root, "linear_num_value_heads"));
  TQC_TRY_ASSIGN(net.key_dim, get_int(root, "linear_key_head_dim"));
  TQC_TRY_ASSIGN(net.value_dim, get_int(root, "linear_value_head_dim"));
  TQC_TRY_ASSIGN(net.kernel, get_int(root, "linear_conv_kernel_dim"));
  return {};
}

// --- the rest

Result<void> read_experts(const Json& root, const Architecture& family, ExpertsConfig& experts) {
  if (!family.has_experts) return {};
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
  TQC_TRY_ASSIGN(experts.d_ff, get_int(root, "moe_intermediate_size"));
  TQC_TRY_ASSIGN(experts.shared_d_ff, get_int_or(root, "shared_expert_intermediate_size", 0));
  TQC_TRY_ASSIGN(experts.normalized,
                 get_bool_or(root, "norm_topk_prob", family.default_normalized));
  return {};
}

Result<void> read_shapes(const Json& root, const Architecture& family, ModelConfig& config) {
  TQC_TRY_ASSIGN(config.n_layers, get_int(root, "num_hidden_layers"));
  TQC_TRY_ASSIGN(config.d_model, get_int(root, "hidden_size"));
  if (!family.has_experts || find_value(root, "intermediate_size") != nullptr) {
    TQC_TRY_ASSIGN(config.d_ff, get_int(root, "intermediate_size"));
  }
  TQC_TRY_ASSIGN(config.n_heads, get_int(root, "num_attention_heads"));
  TQC_TRY_ASSIGN(config.n_kv_heads, get_int(root, "num_key_value_heads"));
  if (config.n_heads < 1) return corrupt("n_heads: " + std::to_string(config.n_heads));
  const std::int64_t head_dim =
      family.default_head_dim > 0 ? family.default_head_dim : config.d_model / config.n_heads;
  TQC_TRY_ASSIGN(config.head_dim, get_int_or(root, "head_dim", head_dim));
  TQC_TRY_ASSIGN(config.vocab_size, get_int(root, "vocab_size"));
  TQC_TRY_ASSIGN(config.context_length, get_int(root, "max_position_embeddings"));
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

Result<void> read_scales(const Json& root, const Architecture& family, ModelConfig& config) {
  TQC_TRY_ASSIGN(const double epsilon, get_number_or(root, "rms_norm_eps", family.default_epsilon));
  config.rms_norm_epsilon = static_cast<float>(epsilon);
  if (!family.scaled_embedding) return {};
  config.embedding_scale = std::sqrt(static_cast<float>(config.d_model));
  TQC_TRY_ASSIGN(const double scalar,
                 get_number_or(root, "query_pre_attn_scalar", kDefaultQueryScalar));
  if (!(scalar > 0)) return corrupt("key \"query_pre_attn_scalar\": not above 0");
  config.attention_scale = static_cast<float>(1 / std::sqrt(scalar));
  TQC_TRY_ASSIGN(config.attention_cap,
                 read_cap(root, "attn_logit_softcapping", family.default_attention_cap));
  TQC_TRY_ASSIGN(config.logit_cap,
                 read_cap(root, "final_logit_softcapping", family.default_logit_cap));
  return {};
}

Result<void> read_biases(const Json& root, const Architecture& family, ModelConfig& config) {
  TQC_TRY_ASSIGN(const bool all, get_bool_or(root, "attention_bias", false));
  config.qkv_biases = all || family.qkv_biases;
  config.output_bias = all;
  return {};
}

// What does not depend on numbers of the file.
void set_family(const Architecture& family, ModelConfig& config) {
  config.architecture = family.word;
  config.qk_norms = family.qk_norms;
  config.post_norms = family.post_norms;
  config.attention_gate = family.attention_gate;
  config.form.fused_projections = family.fused_projections;
  config.form.log_decay = family.has_delta_net;
  config.form.norm_offset = family.zero_centered_norms ? 1.0f : 0.0f;
  config.form.ffn_norm = family.ffn_norm;
  config.form.after_attention = family.after_attention;
}

}  // namespace

Result<ModelConfig> read_hf_config(ByteView config_json) {
  TQC_TRY_ASSIGN(const Json whole, parse_json_object(config_json));
  TQC_TRY_ASSIGN(const Json* text, find_text_config(whole));
  const Json& root = *text;
  TQC_TRY_ASSIGN(const Architecture* family, read_family(root));
  TQC_TRY(refuse_other_arithmetic(root));

  ModelConfig config;
  set_family(*family, config);
  TQC_TRY_ASSIGN(config.name, get_string_or(whole, "_name_or_path", ""));
  TQC_TRY_ASSIGN(config.activation, read_activation(root, *family));
  TQC_TRY(read_shapes(root, *family, config));
  TQC_TRY(read_experts(root, *family, config.experts));
  TQC_TRY(read_scales(root, *family, config));
  TQC_TRY(read_biases(root, *family, config));
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
