#include <algorithm>
#include <string>
#include <string_view>

#include "tqcache/model/config.h"
#include "tqcache/model/json_fields.h"
#include "tqcache/tensors/printable_name.h"

namespace tqcache::model {
namespace {

using tensors::printable_name;

// What Qwen3Config has where config.json is silent.
constexpr std::int64_t kDefaultHeadDim = 128;
constexpr double kDefaultEpsilon = 1e-6;
constexpr double kDefaultRopeBase = 10'000;

Error unsupported(std::string message) { return {ErrorCode::kUnsupported, std::move(message)}; }
Error unsupported_key(const char* key) {
  return unsupported("key \"" + std::string(key) + "\": not supported");
}

Result<void> check_architecture(const Json& root) {
  TQC_TRY_ASSIGN(const std::string type, get_string(root, "model_type"));
  if (type != "qwen3") {
    return unsupported("model type " + printable_name(type) + ", only \"qwen3\" is read");
  }
  if (find_value(root, "architectures") == nullptr) return {};
  TQC_TRY_ASSIGN(const Json* names, get_array(root, "architectures"));
  if (names->size() == 1 && (*names)[0] == "Qwen3ForCausalLM") return {};
  return unsupported("key \"architectures\": only Qwen3ForCausalLM is read");
}

// "rope_scaling" up to transformers 4, "rope_parameters" since 5. The kind was called "type" once.
Result<void> check_rope_kind(const Json& rope) {
  for (const char* key : {"rope_type", "type"}) {
    TQC_TRY_ASSIGN(const std::string type, get_string_or(rope, key, "default"));
    if (type != "default") return unsupported("RoPE scaling " + printable_name(type));
  }
  TQC_TRY_ASSIGN(const double share, get_number_or(rope, "partial_rotary_factor", 1));
  if (share != 1) return unsupported_key("partial_rotary_factor");
  return {};
}

Result<double> read_rope_base(const Json& root) {
  TQC_TRY(check_rope_kind(root));
  TQC_TRY_ASSIGN(double base, get_number_or(root, "rope_theta", kDefaultRopeBase));
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (find_value(root, key) == nullptr) continue;
    TQC_TRY_ASSIGN(const Json* rope, get_object(root, key));
    TQC_TRY(check_rope_kind(*rope));
    TQC_TRY_ASSIGN(base, get_number_or(*rope, "rope_theta", base));
  }
  return base;
}

Result<void> refuse_other_arithmetic(const Json& root) {
  for (const char* key : {"use_sliding_window", "attention_bias"}) {
    TQC_TRY_ASSIGN(const bool value, get_bool_or(root, key, false));
    if (value) return unsupported_key(key);
  }
  TQC_TRY_ASSIGN(const std::string activation, get_string_or(root, "hidden_act", "silu"));
  if (activation != "silu") return unsupported("activation " + printable_name(activation));
  if (find_value(root, "quantization_config") != nullptr) {
    return unsupported_key("quantization_config");
  }
  if (find_value(root, "layer_types") == nullptr) return {};
  TQC_TRY_ASSIGN(const Json* types, get_array(root, "layer_types"));
  const bool all_full = std::all_of(types->begin(), types->end(),
                                    [](const Json& type) { return type == "full_attention"; });
  if (!all_full) return unsupported_key("layer_types");
  return {};
}

}  // namespace

Result<ModelConfig> read_hf_config(ByteView config_json) {
  TQC_TRY_ASSIGN(const Json root, parse_json_object(config_json));
  TQC_TRY(check_architecture(root));
  TQC_TRY(refuse_other_arithmetic(root));

  ModelConfig config;
  config.architecture = "qwen3";
  TQC_TRY_ASSIGN(config.name, get_string_or(root, "_name_or_path", ""));
  TQC_TRY_ASSIGN(config.n_layers, get_int(root, "num_hidden_layers"));
  TQC_TRY_ASSIGN(config.d_model, get_int(root, "hidden_size"));
  TQC_TRY_ASSIGN(config.d_ff, get_int(root, "intermediate_size"));
  TQC_TRY_ASSIGN(config.n_heads, get_int(root, "num_attention_heads"));
  TQC_TRY_ASSIGN(config.n_kv_heads, get_int(root, "num_key_value_heads"));
  TQC_TRY_ASSIGN(config.head_dim, get_int_or(root, "head_dim", kDefaultHeadDim));
  TQC_TRY_ASSIGN(config.vocab_size, get_int(root, "vocab_size"));
  TQC_TRY_ASSIGN(config.context_length, get_int(root, "max_position_embeddings"));
  TQC_TRY_ASSIGN(const double epsilon, get_number_or(root, "rms_norm_eps", kDefaultEpsilon));
  config.rms_norm_epsilon = static_cast<float>(epsilon);
  config.rope.n_dims = config.head_dim;
  TQC_TRY_ASSIGN(config.rope.base, read_rope_base(root));
  TQC_TRY_ASSIGN(config.tied_embeddings, get_bool_or(root, "tie_word_embeddings", false));
  TQC_TRY(validate(config));
  return config;
}

}  // namespace tqcache::model
