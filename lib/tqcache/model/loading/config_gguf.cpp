#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <utility>

#include "tqcache/bytes.h"
#include "tqcache/error.h"
#include "tqcache/model/attention/rope_table.h"
#include "tqcache/model/loading/architecture.h"
#include "tqcache/model/loading/config_readers.h"
#include "tqcache/tensors/printable_name.h"

namespace tqcache::model {
namespace {

using tensors::Gguf;

// llama.cpp's default when the key is absent.
constexpr double kDefaultRopeBase = 10'000;

// expert_gating_func. The second is a softmax over the chosen experts alone: the same as the first
// if the weights are normalized.
constexpr std::int64_t kSoftmaxGating = 1;
constexpr std::int64_t kSigmoidGating = 2;
constexpr std::int64_t kSoftmaxOfChosenGating = 3;

// Reads the keys of one architecture: "qwen3." + name.
class Keys {
 public:
  Keys(const Gguf& file, const std::string& architecture)
      : file_(file), prefix_(architecture + ".") {}

  bool has(const char* name) const { return file_.has(prefix_ + name); }
  Result<std::int64_t> get_int(const char* name) const { return file_.get_int(prefix_ + name); }
  Result<std::int64_t> get_int_or(const char* name, std::int64_t fallback) const {
    return has(name) ? get_int(name) : fallback;
  }
  Result<std::string> get_string(const char* name) const {
    return file_.get_string(prefix_ + name);
  }
  Result<bool> get_bool_or(const char* name, bool fallback) const {
    return has(name) ? file_.get_bool(prefix_ + name) : fallback;
  }
  Result<double> get_float(const char* name) const { return file_.get_float(prefix_ + name); }
  Result<double> get_float_or(const char* name, double fallback) const {
    return has(name) ? get_float(name) : fallback;
  }
  Result<float> get_f32_or(const char* name, float fallback) const {
    TQC_TRY_ASSIGN(const double value, get_float_or(name, fallback));
    return static_cast<float>(value);
  }

  // One number, or a list with one per layer. Layers without the thing have 0; all others must have
  // the same number.
  Result<std::int64_t> get_same_int(const char* name) const {
    const auto* values = find<std::vector<std::int64_t>>(name);
    if (values == nullptr) return get_int(name);
    std::int64_t same = 0;
    for (const std::int64_t value : *values) {
      if (value == 0) continue;
      if (same != 0 && value != same) {
        return refuse(name, "layers with different numbers (" + std::to_string(same) + " and " +
                                std::to_string(value) + ")");
      }
      same = value;
    }
    if (same == 0) return corrupt("key \"" + prefix_ + name + "\": no number above 0");
    return same;
  }

  template <class Kind>
  const Kind* find(const char* name) const {
    const auto found = file_.metadata.find(prefix_ + name);
    return found == file_.metadata.end() ? nullptr : std::get_if<Kind>(&found->second);
  }

  Error refuse(const char* name, std::string_view what) const {
    return unsupported("key \"" + prefix_ + name + "\": " + std::string(what));
  }
  Result<void> refuse_unless(const char* name, std::initializer_list<double> harmless) const {
    TQC_TRY_ASSIGN(const double value, get_float_or(name, *harmless.begin()));
    if (std::ranges::find(harmless, value) != harmless.end()) return {};
    return refuse(name, "not supported");
  }

 private:
  const Gguf& file_;
  std::string prefix_;
};

// --- RoPE

// Factors that the file stores as a tensor [n_dims / 2]; empty if there is no such tensor.
Result<std::vector<float>> read_factors(const GgufTensors& tensors, const std::string& name) {
  const auto found = tensors.find(name);
  if (found == tensors.end()) return std::vector<float>();
  const tensors::TensorView& tensor = found->second;
  if (tensor.type != tensors::TensorType::kF32 || tensor.shape.size() != 1 ||
      tensor.shape[0] > static_cast<std::uint64_t>(cache::kMaxHeadDim)) {
    return corrupt("tensor \"" + name + "\": not RoPE factors");
  }
  std::vector<float> factors(static_cast<std::size_t>(tensor.shape[0]));
  load_f32(Dtype::kF32, tensor.bytes.data(), factors);
  return factors;
}

// Heads are checked later, and factors take 4 bytes per pair.
bool fits_head(const ModelConfig& config) {
  return config.rope.n_dims <= std::min(config.head_dim, cache::kMaxHeadDim);
}

void multiply_factors(double factor, cache::Rope& rope) {
  if (factor == 1) return;
  if (rope.factors.empty()) rope.factors.assign(static_cast<std::size_t>(rope.n_dims / 2), 1.0f);
  for (float& each : rope.factors) each = static_cast<float>(each * factor);
}

// Without a type, a factor means linear scaling. 0 means absent.
Result<double> read_linear_factor(const Keys& keys) {
  constexpr const char* kType = "rope.scaling.type";
  std::string type = "linear";
  if (keys.has(kType)) {
    TQC_TRY_ASSIGN(type, keys.get_string(kType));
  }
  if (type == "none" || type == "longrope" || type == "yarn") return 1.0;
  if (type != "linear") {
    return keys.refuse(kType, "RoPE scaling " + tensors::printable_name(type));
  }
  for (const char* name : {"rope.scaling.factor", "rope.scale_linear"}) {
    TQC_TRY_ASSIGN(const double factor, keys.get_float_or(name, 0));
    if (factor != 0) return factor;
  }
  return 1.0;
}

// LongRoPE uses other factors beyond the original context of the model. Switching would change the
// keys already in a cache, so the context ends there.
Result<void> read_longrope(const Keys& keys, const GgufTensors& tensors, ModelConfig& config) {
  TQC_TRY_ASSIGN(std::vector<float> factors, read_factors(tensors, "rope_factors_short.weight"));
  if (factors.empty()) return {};
  config.rope.factors = std::move(factors);
  TQC_TRY_ASSIGN(const std::int64_t original, keys.get_int("rope.scaling.original_context_length"));
  config.context_length = std::min(config.context_length, original);
  TQC_TRY_ASSIGN(config.rope_magnitude, keys.get_f32_or("rope.scaling.attn_factor", 1));
  return {};
}

// The context is at least the one that YaRN stretches to.
// Source: llama.cpp src/llama-context.cpp, yarn_attn_factor; ggml, ggml_rope_yarn_corr_dims.
Result<void> read_yarn(const Keys& keys, const Architecture& family, ModelConfig& config) {
  constexpr const char* kType = "rope.scaling.type";
  if (!keys.has(kType)) return {};
  TQC_TRY_ASSIGN(const std::string type, keys.get_string(kType));
  if (type != "yarn") return {};
  if (!config.rope.factors.empty()) return keys.refuse(kType, "YaRN and factors of pairs");
  // YaRN scales lengths, in all layers; windows with their own RoPE are not scaled.
  const bool has_plain_windows = family.local_base_key == "rope_theta";
  if (family.default_local_base != 0 && !has_plain_windows) {
    return keys.refuse(kType, "YaRN in this family");
  }
  if (!family.grows_queries && !family.latent_attention) {
    TQC_TRY(keys.refuse_unless("rope.scaling.yarn_log_multiplier", {0}));
  }
  TQC_TRY(keys.refuse_unless("rope.scaling.yarn_ext_factor", {1, -1}));
  TQC_TRY(keys.refuse_unless("rope.scaling.yarn_attn_factor", {1, -1}));
  YarnScaling scaling;
  TQC_TRY_ASSIGN(scaling.factor, keys.get_float("rope.scaling.factor"));
  TQC_TRY_ASSIGN(scaling.beta_fast, keys.get_float_or("rope.scaling.yarn_beta_fast", 32));
  TQC_TRY_ASSIGN(scaling.beta_slow, keys.get_float_or("rope.scaling.yarn_beta_slow", 1));
  TQC_TRY_ASSIGN(const std::int64_t original,
                 keys.get_int_or("rope.scaling.original_context_length", config.context_length));
  scaling.original_context = static_cast<double>(original);
  if (!is_valid(scaling, config.rope) || !fits_head(config)) {
    return corrupt("RoPE scaling \"yarn\": numbers that do not fit");
  }
  TQC_TRY_ASSIGN(const double weight, keys.get_float_or("rope.scaling.attn_factor", 1));
  TQC_TRY_ASSIGN(const double all_dims, keys.get_float_or("rope.scaling.yarn_log_multiplier", 0));
  if (family.latent_attention) {
    // The file has a tenth of "mscale_all_dim". llama.cpp takes "mscale" for equal to it, and
    // multiplies scores alone.
    if (all_dims == 0) {
      return keys.refuse("rope.scaling.yarn_log_multiplier", "missing, with YaRN");
    }
    const double magnitude = yarn_magnitude(scaling.factor, all_dims * 10);
    config.attention_scale *= static_cast<float>(magnitude * magnitude);
  }
  const bool is_cancelled = family.latent_attention;
  const double divisor = is_cancelled    ? yarn_magnitude(scaling.factor)
                         : all_dims == 0 ? 1
                                         : yarn_magnitude(scaling.factor, all_dims);
  config.rope_magnitude = static_cast<float>(weight * yarn_magnitude(scaling.factor) / divisor);
  config.rope.factors = yarn_factors(config.rope, scaling);
  const double stretched =
      std::min(scaling.factor * scaling.original_context, static_cast<double>(cache::kMaxTokens));
  config.context_length = std::max(config.context_length, static_cast<std::int64_t>(stretched));
  return {};
}

// Sections of M-RoPE: which coordinate of a position rotates which pair of components. Those of
// text are the position itself, except for the fourth one, which is 0: it would leave pairs as they
// are. Source: ggml-org/llama.cpp ggml/src/ggml-cpu/ops.cpp, ggml_mrope_cache_init (interleaved).
// `in_runs`: those of one coordinate follow each other.
Result<void> check_sections(const Keys& keys, std::int64_t n_pairs, bool in_runs) {
  constexpr const char* kSections = "rope.dimension_sections";
  const auto* sections = keys.find<std::vector<std::int64_t>>(kSections);
  if (sections == nullptr) return {};
  std::int64_t sum = 0;
  for (const std::int64_t each : *sections) {
    if (each < 0 || each > cache::kMaxHeadDim) return keys.refuse(kSections, "not supported");
    sum += each;
  }
  if (sections->size() < 3 || sections->size() > 4 || sum == 0) {
    return keys.refuse(kSections, "not supported");
  }
  for (std::int64_t pair = 0; pair < std::min(n_pairs, sum); ++pair) {
    const std::int64_t end = in_runs ? sum - (sections->size() == 4 ? sections->back() : 0)
                                     : 3 * (*sections)[static_cast<std::size_t>(pair % 3)];
    if (pair >= end) {
      return keys.refuse(kSections, "pair " + std::to_string(pair) + " does not rotate with text");
    }
  }
  return {};
}

Result<void> read_rope(const Keys& keys, const GgufTensors& tensors, const Architecture& family,
                       ModelConfig& config) {
  TQC_TRY_ASSIGN(config.rope.n_dims, keys.get_int_or("rope.dimension_count", config.head_dim));
  if (config.layout.permuted_heads && !family.permuted_hf &&
      config.rope.n_dims != config.head_dim) {
    return keys.refuse("rope.dimension_count", "RoPE over a part of heads whose rows are in pairs");
  }
  TQC_TRY(check_sections(keys, config.rope.n_dims / 2, family.sections_in_runs));
  TQC_TRY_ASSIGN(config.rope.base, keys.get_float_or("rope.freq_base", kDefaultRopeBase));
  TQC_TRY_ASSIGN(config.rope.factors, read_factors(tensors, "rope_freqs.weight"));
  TQC_TRY(read_longrope(keys, tensors, config));
  TQC_TRY_ASSIGN(const double factor, read_linear_factor(keys));
  if (factor != 1 && (config.rope.n_dims < 2 || !fits_head(config))) {
    return corrupt("RoPE rotates " + std::to_string(config.rope.n_dims) + " components");
  }
  multiply_factors(factor, config.rope);
  return read_yarn(keys, family, config);
}

// The RoPE of sliding-window layers.
Result<cache::Rope> read_local_rope(const Keys& keys, const Architecture& family,
                                    const ModelConfig& config) {
  if (family.default_local_base == 0) return config.rope;
  cache::Rope rope = config.rope;
  rope.factors.clear();
  const bool is_same = family.local_base_key == "rope_theta";
  TQC_TRY_ASSIGN(rope.base, keys.get_float_or("rope.freq_base_swa",
                                              is_same ? rope.base : family.default_local_base));
  return rope;
}

// --- layer kinds

// The layers with a window: as listed in the file, or all but the last of each period.
Result<std::vector<bool>> read_window_layers(const Keys& keys, const Architecture& family,
                                             std::int64_t n_layers) {
  constexpr const char* kPattern = "attention.sliding_window_pattern";
  const auto size = static_cast<std::size_t>(n_layers);
  if (family.windows == WindowRule::kAll) return std::vector<bool>(size, true);
  if (const auto* flags = keys.find<std::vector<bool>>(kPattern)) {
    if (flags->size() != size) return corrupt("windows of another number of layers");
    return *flags;
  }
  TQC_TRY_ASSIGN(const std::int64_t period, keys.get_int_or(kPattern, family.window_period));
  std::vector<bool> has_window(size, period > 0);
  for (std::int64_t i = period - 1; period > 0 && i < n_layers; i += period) {
    has_window[static_cast<std::size_t>(i)] = false;
  }
  return has_window;
}

Result<void> read_windows(const Keys& keys, const Architecture& family, ModelConfig& config) {
  constexpr const char* kWindow = "attention.sliding_window";
  TQC_TRY_ASSIGN(const std::int64_t window, keys.get_int_or(kWindow, family.default_window));
  if (window == 0) return {};
  const bool has_rule = family.windows == WindowRule::kAll || family.windows == WindowRule::kPeriod;
  if (!has_rule) return keys.refuse(kWindow, "not supported");
  TQC_TRY_ASSIGN(const auto has_window, read_window_layers(keys, family, config.n_layers));
  TQC_TRY_ASSIGN(const cache::Rope local, read_local_rope(keys, family, config));
  cache::Rope full = config.rope;
  if (family.full_without_rope) full.style = cache::RopeStyle::kNone;
  for (const bool is_local : has_window) {
    config.layers.push_back(is_local ? LayerConfig{.window = window, .rope = local}
                                     : LayerConfig{.rope = full});
  }
  return {};
}

// Every layer that ends an interval has no RoPE. GGUF has no key for it.
void drop_rope(std::int64_t interval, ModelConfig& config) {
  for (std::int64_t i = 0; i < config.n_layers; ++i) {
    LayerConfig layer = {.rope = config.rope};
    if ((i + 1) % interval == 0) layer.rope.style = cache::RopeStyle::kNone;
    config.layers.push_back(std::move(layer));
  }
}

Result<void> read_delta_net(const Keys& keys, ModelConfig& config) {
  DeltaNetConfig& net = config.delta_net;
  TQC_TRY_ASSIGN(net.kernel, keys.get_int("ssm.conv_kernel"));
  TQC_TRY_ASSIGN(net.n_key_heads, keys.get_int("ssm.group_count"));
  TQC_TRY_ASSIGN(net.n_value_heads, keys.get_int("ssm.time_step_rank"));
  TQC_TRY_ASSIGN(net.key_dim, keys.get_int("ssm.state_size"));
  TQC_TRY_ASSIGN(const std::int64_t inner, keys.get_int("ssm.inner_size"));
  if (net.n_value_heads < 1 || inner % net.n_value_heads != 0) {
    return corrupt("ssm.inner_size: " + std::to_string(inner) + " for " +
                   std::to_string(net.n_value_heads) + " value heads");
  }
  net.value_dim = inner / net.n_value_heads;
  TQC_TRY_ASSIGN(const std::int64_t interval,
                 keys.get_int_or("full_attention_interval", kDefaultFullInterval));
  if (interval < 1) return corrupt("full_attention_interval: " + std::to_string(interval));
  for (std::int64_t i = 1; i <= config.n_layers; ++i) {
    const bool full = i % interval == 0;
    config.layers.push_back({full ? LayerKind::kAttention : LayerKind::kDeltaNet, 0, config.rope});
  }
  return {};
}

// --- other settings

// Those of DeepSeek and GLM-4.5. llama.cpp takes the two best experts of a group for its score,
// which is right for sigmoids alone.
Result<void> read_routed_experts(const Keys& keys, const Architecture& family,
                                 const GgufTensors& tensors, ExpertsConfig& experts) {
  TQC_TRY_ASSIGN(std::int64_t gating, keys.get_int_or("expert_gating_func", 0));
  if (gating == 0) gating = family.sigmoid_experts ? kSigmoidGating : kSoftmaxGating;
  if (gating != kSigmoidGating && gating != kSoftmaxGating) {
    return keys.refuse("expert_gating_func", "not supported");
  }
  experts.sigmoid = gating == kSigmoidGating;
  TQC_TRY_ASSIGN(experts.first_layer, keys.get_int_or("leading_dense_block_count", 0));
  experts.choice_bias =
      tensors.contains("blk." + std::to_string(experts.first_layer) + ".exp_probs_b.bias");
  experts.shared_gate = false;
  TQC_TRY_ASSIGN(const std::int64_t n_shared, keys.get_int_or("expert_shared_count", 0));
  if (n_shared < 0 || n_shared > cache::kMaxTokens || experts.d_ff < 0 ||
      experts.d_ff > cache::kMaxTokens) {
    return corrupt("expert_shared_count: " + std::to_string(n_shared));
  }
  experts.shared_d_ff = n_shared * experts.d_ff;
  TQC_TRY_ASSIGN(const std::int64_t groups, keys.get_int_or("expert_group_count", 0));
  if (groups > 1) {
    experts.groups = groups;
    TQC_TRY_ASSIGN(experts.used_groups, keys.get_int_or("expert_group_used_count", 0));
    if (!experts.sigmoid) return keys.refuse("expert_group_count", "groups of softmax experts");
  }
  TQC_TRY_ASSIGN(experts.scale, keys.get_f32_or("expert_weights_scale", 0));
  if (experts.scale == 0) experts.scale = 1;
  return {};
}

Result<void> read_experts(const Keys& keys, const Architecture& family, const GgufTensors& tensors,
                          ModelConfig& config) {
  if (!family.has_experts) return keys.refuse_unless("expert_count", {0});
  if (family.routed_experts) {
    // below
  } else if (family.expert_biases) {
    TQC_TRY(keys.refuse_unless("expert_gating_func", {kSoftmaxOfChosenGating, 0}));
  } else {
    TQC_TRY(keys.refuse_unless("expert_gating_func", {kSoftmaxGating, 0}));
  }
  if (!family.routed_experts) TQC_TRY(keys.refuse_unless("expert_weights_scale", {1, 0}));
  ExpertsConfig& experts = config.experts;
  TQC_TRY_ASSIGN(experts.count, keys.get_int("expert_count"));
  TQC_TRY_ASSIGN(experts.used, keys.get_int("expert_used_count"));
  const bool is_common =
      family.expert_width == "intermediate_size" && !keys.has("expert_feed_forward_length");
  TQC_TRY_ASSIGN(experts.d_ff, keys.get_same_int(is_common ? "feed_forward_length"
                                                           : "expert_feed_forward_length"));
  TQC_TRY_ASSIGN(experts.shared_d_ff, keys.get_int_or("expert_shared_feed_forward_length", 0));
  TQC_TRY_ASSIGN(experts.normalized,
                 keys.get_bool_or("expert_weights_norm", family.gguf_normalized));
  experts.biases = family.expert_biases;
  return family.routed_experts ? read_routed_experts(keys, family, tensors, experts)
                               : Result<void>();
}

// llama.cpp keeps a row of the latent and the rotated part for each token, if the file is for it.
Result<void> read_latents(const Keys& keys, ModelConfig& config) {
  LatentConfig& latent = config.latent;
  if (!keys.has("attention.key_length_mla")) {
    return keys.refuse("attention.key_length_mla",
                       "missing: keys and values of every head in the cache; convert the model "
                       "again with a llama.cpp from 2025 or later");
  }
  TQC_TRY_ASSIGN(latent.query_rank, keys.get_int_or("attention.q_lora_rank", 0));
  TQC_TRY_ASSIGN(latent.rank, keys.get_int("attention.kv_lora_rank"));
  TQC_TRY_ASSIGN(latent.rotated, keys.get_int("rope.dimension_count"));
  TQC_TRY_ASSIGN(const std::int64_t key, keys.get_int("attention.key_length_mla"));
  TQC_TRY_ASSIGN(latent.value, keys.get_int("attention.value_length_mla"));
  TQC_TRY_ASSIGN(const double epsilon, keys.get_float("attention.layer_norm_rms_epsilon"));
  latent.epsilon = static_cast<float>(epsilon);
  config.head_dim = latent.rank;
  latent.plain = latent.rotated > 0 && key > latent.rotated ? key - latent.rotated : 0;
  TQC_TRY(validate_latents(config));
  TQC_TRY_ASSIGN(const std::int64_t row, keys.get_int("attention.key_length"));
  if (config.n_kv_heads == 1 && row == latent.rank + latent.rotated) return {};
  return corrupt(std::to_string(config.n_kv_heads) + " kv heads of " + std::to_string(row) +
                 " components, expected one of " + std::to_string(latent.rank + latent.rotated));
}

Result<void> read_head_dim(const Keys& keys, const Architecture& family, ModelConfig& config) {
  if (config.n_heads < 1) return corrupt("n_heads: " + std::to_string(config.n_heads));
  if (family.latent_attention) return read_latents(keys, config);
  TQC_TRY_ASSIGN(config.head_dim,
                 keys.get_int_or("attention.key_length", config.d_model / config.n_heads));
  TQC_TRY_ASSIGN(const std::int64_t value_dim,
                 keys.get_int_or("attention.value_length", config.head_dim));
  if (value_dim != config.head_dim) {
    return keys.refuse("attention.value_length", "keys and values of different sizes");
  }
  for (const char* name : {"attention.key_length_swa", "attention.value_length_swa"}) {
    if (keys.has(name)) return keys.refuse(name, "head vectors of two sizes");
  }
  return {};
}

// Layers that predict further tokens follow the others.
Result<void> read_layer_count(const Keys& keys, ModelConfig& config) {
  TQC_TRY_ASSIGN(const std::int64_t n_layers, keys.get_int("block_count"));
  TQC_TRY_ASSIGN(const std::int64_t extra, keys.get_int_or("nextn_predict_layers", 0));
  if (n_layers < 1) return corrupt("n_layers: " + std::to_string(n_layers));
  if (extra < 0 || extra >= n_layers || n_layers > cache::kMaxLayers) {
    return corrupt(std::to_string(extra) + " of " + std::to_string(n_layers) +
                   " layers are for multi-token prediction");
  }
  config.n_layers = n_layers - extra;
  config.layout.n_extra_layers = extra;
  return {};
}

Result<void> read_shapes(const Keys& keys, const Architecture& family, ModelConfig& config) {
  TQC_TRY(read_layer_count(keys, config));
  TQC_TRY_ASSIGN(config.d_model, keys.get_int("embedding_length"));
  if (config.experts.count == 0 || keys.has("feed_forward_length")) {
    TQC_TRY_ASSIGN(config.d_ff, keys.get_same_int("feed_forward_length"));
  }
  TQC_TRY_ASSIGN(config.n_heads, keys.get_same_int("attention.head_count"));
  TQC_TRY_ASSIGN(config.n_kv_heads, keys.get_same_int("attention.head_count_kv"));
  TQC_TRY(read_head_dim(keys, family, config));
  TQC_TRY_ASSIGN(config.context_length, keys.get_int("context_length"));
  return {};
}

// 0 means absent.
Result<void> read_multipliers(const Keys& keys, ModelConfig& config) {
  struct Factor {
    const char* name;
    float& value;
  };
  for (const Factor& factor : {Factor{"embedding_scale", config.embedding_scale},
                               Factor{"residual_scale", config.residual_scale},
                               Factor{"logit_scale", config.logit_divisor}}) {
    TQC_TRY_ASSIGN(const float value, keys.get_f32_or(factor.name, 0));
    factor.value = value == 0 ? 1 : value;
  }
  // Granite without RoPE.
  TQC_TRY_ASSIGN(const bool has_rope, keys.get_bool_or("rope.scaling.finetuned", true));
  return has_rope ? Result<void>() : keys.refuse("rope.scaling.finetuned", "not supported");
}

Result<void> read_scales(const Keys& keys, const Architecture& family, ModelConfig& config) {
  TQC_TRY_ASSIGN(const double epsilon,
                 keys.get_float(family.layer_norms ? "attention.layer_norm_epsilon"
                                                   : "attention.layer_norm_rms_epsilon"));
  config.rms_norm_epsilon = static_cast<float>(epsilon);
  TQC_TRY_ASSIGN(config.attention_cap,
                 keys.get_f32_or("attn_logit_softcapping", family.default_attention_cap));
  TQC_TRY_ASSIGN(config.logit_cap,
                 keys.get_f32_or("final_logit_softcapping", family.default_logit_cap));
  float scale = 0;
  if (config.n_layers == family.wide_scale_layers) {
    const double width = static_cast<double>(config.d_model / config.n_heads);
    scale = static_cast<float>(1 / std::sqrt(width));
  }
  if (family.latent_attention) {
    scale = static_cast<float>(1 / std::sqrt(static_cast<double>(config.latent.query_size())));
  }
  TQC_TRY_ASSIGN(config.attention_scale, keys.get_f32_or("attention.scale", scale));
  if (family.scaled_embedding) {
    config.embedding_scale = std::sqrt(static_cast<float>(config.d_model));
  }
  if (family.default_logit_scale > 0) {
    TQC_TRY_ASSIGN(const double logit_scale, keys.get_float_or("logit_scale", 1));
    if (!(logit_scale > 0)) return corrupt("logit_scale: not above 0");
    config.logit_divisor = static_cast<float>(1 / logit_scale);
  }
  if (family.grows_queries) {
    TQC_TRY_ASSIGN(config.query_growth, keys.get_f32_or("attention.temperature_scale", 0));
    if (config.query_growth != 0) {
      TQC_TRY_ASSIGN(config.query_growth_step,
                     keys.get_int("rope.scaling.original_context_length"));
    }
  }
  return family.has_multipliers ? read_multipliers(keys, config) : Result<void>();
}

// Sets the fields that do not depend on numbers in the file.
void set_family(const Architecture& family, const GgufTensors& tensors, ModelConfig& config) {
  config.qk_norms =
      family.asks_qk_norm ? tensors.contains("blk.0.attn_q_norm.weight") : family.qk_norms;
  config.qkv_biases = family.qkv_biases || tensors.contains("blk.0.attn_q.bias");
  config.output_bias = tensors.contains("blk.0.attn_output.bias");
  config.mlp_biases = tensors.contains("blk.0.ffn_down.bias");
  config.wide_qk_norms = family.wide_qk_norms;
  config.pre_norms = family.pre_norms;
  config.post_norms = family.post_norms;
  config.layer_norms = family.layer_norms;
  config.norms_after_rope = family.norms_after_rope;
  config.parallel_blocks = family.parallel_blocks;
  config.attention_gate = family.attention_gate;
  config.attention_sinks = family.attention_sinks;
  config.activation = family.activation;
  config.layout.permuted_heads = family.permuted_gguf;
  config.layout.fused_projections = family.fused_projections;
  config.layout.fused_gate_up = family.fused_gate_up;
  config.layout.tiled_value_heads = family.is_tiled_gguf;
  config.layout.ffn_norm = family.ffn_norm;
  config.layout.after_attention = family.after_attention;
}

}  // namespace

Result<ModelConfig> read_gguf_config(const Gguf& file, const GgufTensors& tensors) {
  ModelConfig config;
  TQC_TRY_ASSIGN(config.architecture, file.get_string("general.architecture"));
  const Keys keys(file, config.architecture);
  TQC_TRY_ASSIGN(const std::int64_t n_experts, keys.get_int_or("expert_count", 0));
  TQC_TRY_ASSIGN(const Architecture* family,
                 find_gguf_architecture(config.architecture, n_experts > 0));
  if (family->default_inputs > 0) {
    return unsupported(
        "architecture " + tensors::printable_name(config.architecture) +
        " in a GGUF file: only Hugging Face folders of it are run; its caches can be "
        "converted, stored and exported all the same, without the model");
  }
  set_family(*family, tensors, config);
  if (file.has("general.name")) {
    TQC_TRY_ASSIGN(config.name, file.get_string("general.name"));
  }
  TQC_TRY(read_experts(keys, *family, tensors, config));
  TQC_TRY(read_shapes(keys, *family, config));
  TQC_TRY(read_scales(keys, *family, config));
  TQC_TRY(read_rope(keys, tensors, *family, config));
  TQC_TRY(read_windows(keys, *family, config));
  if (family->no_rope_interval > 0) drop_rope(family->no_rope_interval, config);
  if (family->has_delta_net) TQC_TRY(read_delta_net(keys, config));
  TQC_TRY_ASSIGN(const auto* tokens, file.get_strings("tokenizer.ggml.tokens"));
  config.vocab_size = static_cast<std::int64_t>(tokens->size());
  config.tied_embeddings = !tensors.contains("output.weight");
  drop_wide_windows(config);
  TQC_TRY(validate(config));
  return config;
}

Result<ModelConfig> read_gguf_config(const Gguf& file) {
  return read_gguf_config(file, file.tensors);
}

}  // namespace tqcache::model
