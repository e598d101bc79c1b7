#include "tqcache/model/loading/hf_rope.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "tqcache/base/result.h"
#include "tqcache/model/attention/rope_scaling.h"
#include "tqcache/tensors/printable_name.h"

namespace tqcache::model {
namespace {

// What describes the RoPE of one kind of layers: an object beside the top level, which has what
// the object leaves out.
struct RopeFields {
  const Json* root;
  const Json* object;  // null: the top level alone

  Result<double> number_or(const char* key, double fallback) const {
    TQC_TRY_ASSIGN(const double value, get_number_or(*root, key, fallback));
    return object == nullptr ? Result<double>(value) : get_number_or(*object, key, value);
  }
  Result<double> own_number_or(const char* key, double fallback) const {
    return get_number_or(*object, key, fallback);
  }
};

// "rope_scaling" up to transformers 4, "rope_parameters" since 5; the latter may have an object for
// each kind of layers.
Result<const Json*> find_object(const Json& root, const char* kind) {
  const Json* found = nullptr;
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (find_value(root, key) == nullptr) continue;
    TQC_TRY_ASSIGN(found, get_object(root, key));
    if (find_value(*found, kind) == nullptr) continue;
    TQC_TRY_ASSIGN(found, get_object(*found, kind));
  }
  return found;
}

// The kind was called "type" once.
Result<std::string> kind_of(const Json& object) {
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
                 fields.own_number_or("original_max_position_embeddings", 8192));
  if (!is_valid(scaling)) return corrupt("RoPE scaling \"llama3\": numbers that do not fit");
  config.rope.factors = llama3_factors(config.rope, scaling);
  return {};
}

// Beyond the context that the model was made with at first, LongRoPE turns by other factors. Those
// would change the keys of a cache in the middle, so the context ends there.
Result<void> read_longrope(const RopeFields& fields, ModelConfig& config) {
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

Result<void> read_scaling(const RopeFields& fields, ModelConfig& config) {
  if (fields.object == nullptr) return {};
  TQC_TRY_ASSIGN(std::string kind, kind_of(*fields.object));
  // Phi-3 called it so at first.
  const bool has_factors = find_value(*fields.object, "short_factor") != nullptr;
  if ((kind == "su" || kind == "yarn") && has_factors) kind = "longrope";
  if (kind == "default") return {};
  if (kind == "linear") return read_linear(fields, config);
  if (kind == "llama3") return read_llama3(fields, config);
  if (kind == "longrope") return read_longrope(fields, config);
  return Error{ErrorCode::kUnsupported, "RoPE scaling " + tensors::printable_name(kind)};
}

}  // namespace

Result<void> read_hf_rope(const Json& root, const Architecture& family, ModelConfig& config) {
  TQC_TRY_ASSIGN(const Json* object, find_object(root, "full_attention"));
  const RopeFields fields = {&root, object};
  TQC_TRY_ASSIGN(config.rope.base, fields.number_or("rope_theta", family.default_rope_base));
  TQC_TRY_ASSIGN(const double share,
                 fields.number_or("partial_rotary_factor", family.default_rotary_share));
  if (!(share > 0 && share <= 1))
    return corrupt("key \"partial_rotary_factor\": not within 0 to 1");
  config.rope.n_dims = static_cast<std::int64_t>(static_cast<double>(config.head_dim) * share);
  // The others are checked by validate(); with these it would be too late.
  if (config.rope.n_dims < 2 || config.rope.n_dims > cache::kMaxHeadDim ||
      !(config.rope.base >= 1)) {
    return corrupt("RoPE turns " + std::to_string(config.rope.n_dims) + " components, or its base" +
                   " is below 1");
  }
  return read_scaling(fields, config);
}

Result<cache::Rope> read_hf_local_rope(const Json& root, const Architecture& family,
                                       const ModelConfig& config) {
  if (family.default_local_base == 0) return config.rope;
  TQC_TRY_ASSIGN(const Json* object, find_object(root, "sliding_attention"));
  cache::Rope rope = config.rope;
  rope.factors.clear();
  TQC_TRY_ASSIGN(rope.base, get_number_or(root, "rope_local_base_freq", family.default_local_base));
  const Json* parameters = find_value(root, "rope_parameters");
  const bool is_own =
      parameters != nullptr && find_value(*parameters, "sliding_attention") == object;
  if (!is_own || object == nullptr) return rope;
  TQC_TRY_ASSIGN(const std::string kind, kind_of(*object));
  if (kind != "default") {
    return Error{ErrorCode::kUnsupported,
                 "RoPE scaling " + tensors::printable_name(kind) + " of layers with a window"};
  }
  TQC_TRY_ASSIGN(rope.base, get_number_or(*object, "rope_theta", rope.base));
  return rope;
}

}  // namespace tqcache::model
