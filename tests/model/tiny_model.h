#pragma once
// model/tiny_model.h: a Qwen3 model of random weights that takes microseconds a token.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "support/cache_builder.h"
#include "support/gaussian.h"
#include "tqcache/bytes.h"
#include "tqcache/model.h"
#include "tqcache/model/loading/weights.h"
#include "tqcache/tensors/tensor.h"

namespace tqcache::test {

inline model::ModelConfig tiny_config() {
  model::ModelConfig config;
  config.architecture = "qwen3";
  config.n_layers = 2;
  config.d_model = 64;
  config.d_ff = 96;
  config.n_heads = 4;
  config.n_kv_heads = 2;
  config.head_dim = 32;
  config.vocab_size = 100;
  config.context_length = 600;
  config.rms_norm_epsilon = 1e-6f;
  config.rope = {cache::RopeStyle::kHalfSplit, 32, 1e4};
  config.tied_embeddings = true;
  config.qk_norms = true;
  return config;
}

// Tensors by GGUF name, and the memory they stand in.
class TensorSet {
 public:
  void add(const std::string& name, std::vector<std::uint64_t> shape, Dtype dtype,
           std::span<const float> values) {
    Bytes& bytes = memory_[name];
    bytes.resize(values.size() * dtype_size(dtype));
    store_f32(dtype, values, bytes.data());
    constexpr std::pair<tensors::TensorType, const char*> kTypes[] = {
        {tensors::TensorType::kF32, "F32"},
        {tensors::TensorType::kF16, "F16"},
        {tensors::TensorType::kBF16, "BF16"}};
    const auto& [type, type_name] = kTypes[static_cast<std::size_t>(dtype)];
    tensors[name] = {type, type_name, std::move(shape), bytes};
  }

  std::map<std::string, tensors::TensorView> tensors;

 private:
  std::map<std::string, Bytes> memory_;
};

// All tensors that `config` needs: matrices of standard deviation 1 / sqrt(n_cols), norms near 1.
inline TensorSet random_tensors(const model::ModelConfig& config, Dtype dtype) {
  TensorSet set;
  GaussianSource random(7);
  const auto matrix = [&](const std::string& name, std::int64_t n_rows, std::int64_t n_cols) {
    const float sigma = 1.0f / std::sqrt(static_cast<float>(n_cols));
    set.add(name, {static_cast<std::uint64_t>(n_rows), static_cast<std::uint64_t>(n_cols)}, dtype,
            random.vector(static_cast<std::size_t>(n_rows * n_cols), sigma));
  };
  const auto norm = [&](const std::string& name, std::int64_t size) {
    std::vector<float> values = random.vector(static_cast<std::size_t>(size), 0.1f);
    for (float& value : values) value += 1.0f;
    set.add(name, {static_cast<std::uint64_t>(size)}, Dtype::kF32, values);
  };
  const std::int64_t q_size = config.n_heads * config.head_dim;
  const std::int64_t kv_size = config.n_kv_heads * config.head_dim;
  matrix("token_embd.weight", config.vocab_size, config.d_model);
  norm("output_norm.weight", config.d_model);
  if (!config.tied_embeddings) matrix("output.weight", config.vocab_size, config.d_model);
  for (std::int64_t i = 0; i < config.n_layers; ++i) {
    const std::string block = "blk." + std::to_string(i) + ".";
    norm(block + "attn_norm.weight", config.d_model);
    matrix(block + "attn_q.weight", q_size, config.d_model);
    matrix(block + "attn_k.weight", kv_size, config.d_model);
    matrix(block + "attn_v.weight", kv_size, config.d_model);
    matrix(block + "attn_output.weight", config.d_model, q_size);
    norm(block + "attn_q_norm.weight", config.head_dim);
    norm(block + "attn_k_norm.weight", config.head_dim);
    norm(block + "ffn_norm.weight", config.d_model);
    matrix(block + "ffn_gate.weight", config.d_ff, config.d_model);
    matrix(block + "ffn_up.weight", config.d_ff, config.d_model);
    matrix(block + "ffn_down.weight", config.d_model, config.d_ff);
  }
  return set;
}

struct TinyModel {
  model::ModelConfig config = tiny_config();
  TensorSet memory = random_tensors(config, Dtype::kBF16);
  model::Weights weights = must(model::read_weights(memory.tensors, config));

  cache::Cache make_cache(Dtype dtype = Dtype::kF16) const {
    const std::vector<cache::LayerPlan> plan(static_cast<std::size_t>(config.n_layers),
                                             {config.head_shape(), dtype});
    return must(cache::make_cache({}, plan));
  }

  // A prompt in which no token is special.
  std::vector<std::int32_t> prompt(std::int64_t n_tokens) const {
    SplitMix64 random(11);
    std::vector<std::int32_t> ids;
    for (std::int64_t i = 0; i < n_tokens; ++i) {
      ids.push_back(
          static_cast<std::int32_t>(random.below(static_cast<std::uint64_t>(config.vocab_size))));
    }
    return ids;
  }
};

}  // namespace tqcache::test
