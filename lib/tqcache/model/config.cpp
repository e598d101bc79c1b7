#include "tqcache/model/config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <string_view>

#include "tqcache/model/vocabulary.h"
#include "tqcache/tensors/printable_name.h"

namespace tqcache::model {
namespace {

using tensors::Gguf;

// Four to sixteen times what the largest open models have. Products of any two fit 40 bits.
constexpr std::int64_t kMaxWidth = 1 << 17;        // d_model
constexpr std::int64_t kMaxHiddenWidth = 1 << 20;  // d_ff
constexpr std::int64_t kMaxHeads = 4096;           // query heads

constexpr double kDefaultRopeBase = 10'000;  // llama.cpp's, where the key is absent

Error corrupt(std::string message) { return {ErrorCode::kCorrupt, std::move(message)}; }
Error unsupported(std::string message) { return {ErrorCode::kUnsupported, std::move(message)}; }

struct Bounded {
  std::string_view name;
  std::int64_t value;
  std::int64_t max;
};

Result<void> check_bound(const Bounded& number) {
  const std::string what = std::string(number.name) + ": " + std::to_string(number.value);
  if (number.value < 1) return corrupt(what);
  if (number.value > number.max) {
    return Error{ErrorCode::kTooLarge, what + " is above " + std::to_string(number.max)};
  }
  return {};
}

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
  Result<double> get_float(const char* name) const { return file_.get_float(prefix_ + name); }
  Result<double> get_float_or(const char* name, double fallback) const {
    return has(name) ? get_float(name) : fallback;
  }
  // One number, or a list with a number a layer, which must all be the same.
  Result<std::int64_t> get_same_int(const char* name) const {
    const std::string key = prefix_ + name;
    const auto found = file_.metadata.find(key);
    if (found == file_.metadata.end() ||
        !std::holds_alternative<std::vector<std::int64_t>>(found->second)) {
      return file_.get_int(key);
    }
    const auto& values = std::get<std::vector<std::int64_t>>(found->second);
    if (values.empty()) return corrupt("key \"" + key + "\": an empty list");
    if (std::any_of(values.begin(), values.end(), [&](auto v) { return v != values[0]; })) {
      return unsupported("key \"" + key + "\": layers with different numbers of kv heads");
    }
    return values[0];
  }
  Error refuse(const char* name, std::string_view what) const {
    return unsupported("key \"" + prefix_ + name + "\": " + std::string(what));
  }

 private:
  const Gguf& file_;
  std::string prefix_;
};

Result<void> refuse_rope_scaling(const Keys& keys) {
  constexpr const char* kType = "rope.scaling.type";
  if (keys.has(kType)) {
    TQC_TRY_ASSIGN(const std::string type, keys.get_string(kType));
    if (type == "none") return {};
    return keys.refuse(kType, "RoPE scaling " + tensors::printable_name(type));
  }
  // Without a type, a factor means linear scaling. 0 stands for none.
  for (const char* name : {"rope.scaling.factor", "rope.scale_linear"}) {
    TQC_TRY_ASSIGN(const double factor, keys.get_float_or(name, 0));
    if (factor != 0 && factor != 1) return keys.refuse(name, "RoPE scaling");
  }
  return {};
}

Result<void> refuse_other_arithmetic(const Keys& keys) {
  TQC_TRY(refuse_rope_scaling(keys));
  for (const char* name : {"attention.sliding_window", "expert_count"}) {
    TQC_TRY_ASSIGN(const std::int64_t value, keys.get_int_or(name, 0));
    if (value != 0) return keys.refuse(name, "not supported");
  }
  return {};
}

Result<void> read_head_dim(const Keys& keys, ModelConfig& config) {
  if (config.n_heads < 1) return corrupt("n_heads: " + std::to_string(config.n_heads));
  TQC_TRY_ASSIGN(config.head_dim,
                 keys.get_int_or("attention.key_length", config.d_model / config.n_heads));
  TQC_TRY_ASSIGN(const std::int64_t value_dim,
                 keys.get_int_or("attention.value_length", config.head_dim));
  if (value_dim != config.head_dim) {
    return keys.refuse("attention.value_length", "keys and values of different sizes");
  }
  TQC_TRY_ASSIGN(config.rope.n_dims, keys.get_int_or("rope.dimension_count", config.head_dim));
  if (config.rope.n_dims != config.head_dim) {
    return keys.refuse("rope.dimension_count", "RoPE over a part of the head");
  }
  return {};
}

}  // namespace

Result<ModelConfig> read_gguf_config(const Gguf& file) {
  ModelConfig config;
  TQC_TRY_ASSIGN(config.architecture, file.get_string("general.architecture"));
  if (config.architecture != "qwen3") {
    return unsupported("architecture " + tensors::printable_name(config.architecture) +
                       ", only \"qwen3\" is read");
  }
  const Keys keys(file, config.architecture);
  TQC_TRY(refuse_other_arithmetic(keys));
  if (file.has("general.name")) {
    TQC_TRY_ASSIGN(config.name, file.get_string("general.name"));
  }
  TQC_TRY_ASSIGN(config.n_layers, keys.get_int("block_count"));
  TQC_TRY_ASSIGN(config.d_model, keys.get_int("embedding_length"));
  TQC_TRY_ASSIGN(config.d_ff, keys.get_int("feed_forward_length"));
  TQC_TRY_ASSIGN(config.n_heads, keys.get_int("attention.head_count"));
  TQC_TRY_ASSIGN(config.n_kv_heads, keys.get_same_int("attention.head_count_kv"));
  TQC_TRY(read_head_dim(keys, config));
  TQC_TRY_ASSIGN(config.context_length, keys.get_int("context_length"));
  TQC_TRY_ASSIGN(const double epsilon, keys.get_float("attention.layer_norm_rms_epsilon"));
  config.rms_norm_epsilon = static_cast<float>(epsilon);
  TQC_TRY_ASSIGN(config.rope.base, keys.get_float_or("rope.freq_base", kDefaultRopeBase));
  TQC_TRY_ASSIGN(const auto* tokens, file.get_strings("tokenizer.ggml.tokens"));
  config.vocab_size = static_cast<std::int64_t>(tokens->size());
  config.tied_embeddings = !file.tensors.contains("output.weight");
  TQC_TRY(validate(config));
  return config;
}

Result<void> validate(const ModelConfig& config) {
  const std::array<Bounded, 8> numbers = {{
      {"n_layers", config.n_layers, cache::kMaxLayers},
      {"d_model", config.d_model, kMaxWidth},
      {"d_ff", config.d_ff, kMaxHiddenWidth},
      {"n_heads", config.n_heads, kMaxHeads},
      {"n_kv_heads", config.n_kv_heads, cache::kMaxKvHeads},
      {"head_dim", config.head_dim, cache::kMaxHeadDim},
      {"vocab_size", config.vocab_size, kMaxVocabSize},
      {"context_length", config.context_length, cache::kMaxTokens},
  }};
  for (const Bounded& number : numbers) TQC_TRY(check_bound(number));
  if (config.n_heads % config.n_kv_heads != 0) {
    return corrupt("n_heads: " + std::to_string(config.n_heads) + " is no multiple of " +
                   std::to_string(config.n_kv_heads) + " kv heads");
  }
  if (config.head_dim % 2 != 0) return corrupt("head_dim: an odd number, RoPE turns pairs");
  // Written so that NaN fails.
  if (!(config.rms_norm_epsilon > 0 && config.rms_norm_epsilon < 1)) {
    return corrupt("rms_norm_epsilon: not between 0 and 1");
  }
  if (!(config.rope.base >= 1 && config.rope.base <= 1e12)) {
    return corrupt("rope base: not between 1 and 1e12");
  }
  return {};
}

}  // namespace tqcache::model
