#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include "tqcache/error.h"
#include "tqcache/model/attention/rope_table.h"
#include "tqcache/model/loading/config_readers.h"
#include "tqcache/tokenizer/vocabulary.h"

namespace tqcache::model {
namespace {

// Four to sixteen times the values of the largest open models. Products of any two fit 40 bits.
constexpr std::int64_t kMaxWidth = 1 << 17;        // d_model
constexpr std::int64_t kMaxHiddenWidth = 1 << 20;  // d_ff
constexpr std::int64_t kMaxHeads = 4096;           // query heads
constexpr std::int64_t kMaxExperts = 4096;
constexpr std::int64_t kMaxConvolution = 64;  // tokens; 4 in all known models
constexpr std::int64_t kMaxStreams = 16;

struct Bounded {
  std::string_view name;
  std::int64_t value;
  std::int64_t max;
  std::int64_t min = 1;
};

Result<void> check_bounds(std::span<const Bounded> numbers) {
  for (const Bounded& number : numbers) {
    const std::string what = std::string(number.name) + ": " + std::to_string(number.value);
    if (number.value < number.min) return corrupt(what);
    if (number.value > number.max) {
      return Error{ErrorCode::kTooLarge, what + " is above " + std::to_string(number.max)};
    }
  }
  return {};
}

Result<void> check_multiple(std::string_view name, std::int64_t value, std::string_view of_name,
                            std::int64_t of) {
  if (value % of == 0) return {};
  return corrupt(std::string(name) + ": " + std::to_string(value) + " is no multiple of " +
                 std::to_string(of) + " " + std::string(of_name));
}

Result<void> validate_rope(const cache::Rope& rope, std::int64_t head_dim) {
  // Written so that NaN fails the check.
  if (!(rope.base >= 1 && rope.base <= 1e12)) return corrupt("rope base: not between 1 and 1e12");
  if (rope.n_dims < 2 || rope.n_dims > head_dim || rope.n_dims % 2 != 0) {
    return corrupt("RoPE rotates " + std::to_string(rope.n_dims) + " of " +
                   std::to_string(head_dim) + " components");
  }
  cache::Rope rotated = rope;  // without the pairs that stay as they are
  for (float& factor : rotated.factors) factor = factor == kStays ? 1 : factor;
  if (!cache::can_rotate(rotated, head_dim)) {
    return corrupt("RoPE factors: not one for each pair, or not between 2^-20 and 2^20");
  }
  return {};
}

Result<void> validate_experts(const ModelConfig& config) {
  const ExpertsConfig& experts = config.experts;
  if (experts.count == 0) return {};
  const std::array<Bounded, 7> numbers = {{
      {"experts", experts.count, kMaxExperts},
      {"experts used", experts.used, experts.count},
      {"d_ff of an expert", experts.d_ff, kMaxHiddenWidth},
      {"d_ff of the shared expert", experts.shared_d_ff, kMaxHiddenWidth, 0},
      {"layers before those with experts", experts.first_layer, config.n_layers, 0},
      {"groups of experts", experts.groups, experts.count},
      {"groups of experts used", experts.used_groups, experts.groups},
  }};
  TQC_TRY(check_bounds(numbers));
  TQC_TRY(check_multiple("experts", experts.count, "groups", experts.groups));
  const std::int64_t size = experts.count / experts.groups;
  if (experts.used_groups < experts.groups &&
      (experts.used > experts.used_groups * size || (experts.group_pairs && size < 2))) {
    return corrupt(std::to_string(experts.used_groups) + " groups of " + std::to_string(size) +
                   " experts, of which " + std::to_string(experts.used) + " are used");
  }
  // Written so that NaN fails the check.
  if (!(experts.scale > 0 && std::isfinite(experts.scale))) {
    return corrupt("the scale of experts: not a number above 0");
  }
  return {};
}

Result<void> validate_delta_net(const DeltaNetConfig& net) {
  const std::array<Bounded, 5> numbers = {{
      {"key heads of linear attention", net.n_key_heads, cache::kMaxKvHeads},
      {"value heads of linear attention", net.n_value_heads, cache::kMaxKvHeads},
      {"key components of linear attention", net.key_dim, cache::kMaxHeadDim},
      {"value components of linear attention", net.value_dim, cache::kMaxHeadDim},
      {"convolution", net.kernel, kMaxConvolution, 2},
  }};
  TQC_TRY(check_bounds(numbers));
  return check_multiple("value heads of linear attention", net.n_value_heads, "key heads",
                        net.n_key_heads);
}

Result<void> validate_layers(const ModelConfig& config) {
  const std::int64_t head_dim = config.latent.rank > 0 ? config.latent.rotated : config.head_dim;
  const auto head_dim_of = [&](const LayerConfig& layer) {
    return layer.heads.head_dim == 0 ? head_dim : layer.heads.head_dim;
  };
  if (config.layers.empty()) return validate_rope(config.rope, head_dim);
  if (std::ssize(config.layers) != config.n_layers) {
    return corrupt(std::to_string(config.layers.size()) + " kinds of layers for " +
                   std::to_string(config.n_layers) + " layers");
  }
  TQC_TRY(validate_rope(config.rope, head_dim));
  for (const LayerConfig& layer : config.layers) {
    if (layer.kind == LayerKind::kDeltaNet) {
      TQC_TRY(validate_delta_net(config.delta_net));
      continue;
    }
    if (layer.rope.style != cache::RopeStyle::kNone) {
      TQC_TRY(validate_rope(layer.rope, head_dim_of(layer)));
    }
    const std::array<Bounded, 5> numbers = {{
        {"window", layer.window, cache::kMaxTokens, 0},
        {"head_dim", layer.heads.head_dim, cache::kMaxHeadDim, 0},
        {"n_kv_heads", layer.heads.n_kv_heads, cache::kMaxKvHeads, 0},
        {"d_ff", layer.d_ff, kMaxHiddenWidth, 0},
        {"the layer whose keys are read", layer.source, &layer - config.layers.data() - 1, -1},
    }};
    TQC_TRY(check_bounds(numbers));
    if (layer.heads.head_dim == 0) continue;
    TQC_TRY(
        check_multiple("n_heads", config.n_heads, "kv heads of a layer", layer.heads.n_kv_heads));
    if (layer.heads.head_dim % 2 != 0) return corrupt("head_dim: an odd number");
  }
  return {};
}

bool is_factor(float value) { return std::isfinite(value) && value > 0; }
bool is_cap(float value) { return std::isfinite(value) && value >= 0; }

Result<void> validate_factors(const ModelConfig& config) {
  // Written so that NaN fails the check.
  if (!(config.rms_norm_epsilon > 0 && config.rms_norm_epsilon < 1)) {
    return corrupt("rms_norm_epsilon: not between 0 and 1");
  }
  if (!is_cap(config.attention_scale)) return corrupt("the scale of scores: not a number above 0");
  if (!is_cap(config.attention_cap) || !is_cap(config.logit_cap)) {
    return corrupt("a soft cap: not a number above 0");
  }
  if (!is_factor(config.embedding_scale) || !is_factor(config.residual_scale) ||
      !is_factor(config.logit_divisor)) {
    return corrupt("a multiplier: not a number above 0");
  }
  if (!is_cap(config.query_growth) || (config.query_growth > 0 && config.query_growth_step < 1)) {
    return corrupt("the growth of queries: not a number above 0");
  }
  if (!is_factor(config.rope_magnitude)) return corrupt("RoPE's magnitude: not a number above 0");
  return {};
}

}  // namespace

LayerConfig ModelConfig::layer(std::int64_t index) const {
  LayerConfig layer = {.rope = rope};
  if (!layers.empty()) layer = layers[static_cast<std::size_t>(index)];
  if (layer.heads.head_dim == 0) layer.heads = head_shape();
  if (layer.d_ff == 0) layer.d_ff = d_ff;
  return layer;
}

std::int64_t ModelConfig::n_cache_layers() const {
  if (layers.empty()) return n_layers;
  return std::ranges::count(layers, -1, &LayerConfig::source);
}

float ModelConfig::score_scale() const {
  if (attention_scale > 0) return attention_scale;
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_dim)));
}

void drop_wide_windows(ModelConfig& config) {
  for (LayerConfig& layer : config.layers) {
    if (layer.window >= config.context_length) layer.window = 0;
  }
}

Result<void> validate_latents(const ModelConfig& config) {
  const LatentConfig& latent = config.latent;
  if (latent.rank == 0) return {};
  const std::array<Bounded, 5> numbers = {{
      {"latent of queries", latent.query_rank, kMaxWidth, 0},
      {"latent", latent.rank, cache::kMaxHeadDim},
      {"components that RoPE rotates", latent.rotated, cache::kMaxHeadDim, 2},
      {"components of keys that do not rotate", latent.plain, cache::kMaxHeadDim},
      {"components of values", latent.value, cache::kMaxHeadDim},
  }};
  return check_bounds(numbers);
}

Result<void> validate(const ModelConfig& config) {
  const std::array<Bounded, 12> numbers = {{
      {"n_layers", config.n_layers, cache::kMaxLayers},
      {"d_model", config.d_model, kMaxWidth},
      {"d_ff", config.d_ff, kMaxHiddenWidth,
       config.has_experts(0) && !config.experts.beside_ffn ? 0 : 1},
      {"n_heads", config.n_heads, kMaxHeads},
      {"n_kv_heads", config.n_kv_heads, cache::kMaxKvHeads},
      {"head_dim", config.head_dim, cache::kMaxHeadDim},
      {"vocab_size", config.vocab_size, tokenizer::kMaxVocabSize},
      {"context_length", config.context_length, cache::kMaxTokens},
      {"inputs of a layer", config.layer_inputs, cache::kMaxHeadDim, 0},
      {"rows of the inputs of layers", config.layer_input_vocab, tokenizer::kMaxVocabSize,
       config.layer_inputs > 0 ? 1 : 0},
      {"residual streams", config.n_streams, kMaxStreams},
      {"laurel rank", config.laurel_rank, kMaxWidth, 0},
  }};
  TQC_TRY(check_bounds(numbers));
  TQC_TRY(check_multiple("n_heads", config.n_heads, "kv heads", config.n_kv_heads));
  if (config.head_dim % 2 != 0) return corrupt("head_dim: an odd number, RoPE rotates pairs");
  TQC_TRY(validate_latents(config));
  TQC_TRY(validate_factors(config));
  TQC_TRY(validate_experts(config));
  return validate_layers(config);
}

}  // namespace tqcache::model
