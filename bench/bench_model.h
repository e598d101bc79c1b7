#pragma once
// bench/bench_model.h: a model and caches of realistic size with random content. The time of a
// decode step does not depend on the values.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tqcache/base/half.h"
#include "tqcache/bytes.h"
#include "tqcache/cache.h"
#include "tqcache/model.h"
#include "tqcache/model/loading/weights.h"
#include "tqcache/quantize.h"

namespace tqcache::bench {

template <class T>
T must(Result<T> result) {
  if (!result) throw std::runtime_error(result.error().message);
  return std::move(result).value();
}
inline void must(Result<void> result) {
  if (!result) throw std::runtime_error(result.error().message);
}

// An endless sequence of normal f16 values: runs of a table, each from a random position.
class NoiseSource {
 public:
  explicit NoiseSource(float sigma, std::uint64_t seed = 1) : state_(seed) {
    for (std::uint16_t& value : table_) value = f32_to_f16(sigma * bell());
  }

  void fill(std::span<std::byte> f16) {
    while (!f16.empty()) {
      const std::size_t run = std::min<std::size_t>(f16.size(), kRun * 2);
      std::memcpy(f16.data(), table_.data() + next() % (table_.size() - kRun), run);
      f16 = f16.subspan(run);
    }
  }

 private:
  static constexpr std::size_t kRun = 128;  // values: a head vector

  std::uint64_t next() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;  // Knuth's MMIX
    return state_ >> 33;
  }
  // Variance 1: the sum of twelve uniform numbers, minus its mean.
  float bell() {
    float sum = -6.0f;
    for (int i = 0; i < 12; ++i) sum += static_cast<float>(next()) * 0x1p-31f;
    return sum;
  }

  std::uint64_t state_;
  std::array<std::uint16_t, 1 << 16> table_;
};

// 8 layers, 16 query heads on 4 kv heads, f16: 16 KiB of keys and values per token.
inline model::ModelConfig bench_config() {
  model::ModelConfig config;
  config.architecture = "qwen3";
  config.n_layers = 8;
  config.d_model = 1024;
  config.d_ff = 3072;
  config.n_heads = 16;
  config.n_kv_heads = 4;
  config.head_dim = 128;
  config.qk_norms = true;
  config.vocab_size = 512;
  config.context_length = 1 << 18;
  config.rms_norm_epsilon = 1e-6f;
  config.rope = {cache::RopeStyle::kHalfSplit, 128, 1e6};
  return config;
}

// f16 tensors by GGUF name, and their memory.
class NoiseTensors {
 public:
  void add(const std::string& name, std::vector<std::int64_t> shape) {
    const auto n_cols = static_cast<std::size_t>(shape.back());
    const std::size_t n_rows = shape.size() == 2 ? static_cast<std::size_t>(shape.front()) : 1;
    AlignedBytes& bytes = memory_[name];
    bytes.resize(n_rows * n_cols * 2);
    NoiseSource(1.0f / std::sqrt(static_cast<float>(n_cols)), bytes.size()).fill(bytes);
    tensors_[name] = {tensors::TensorType::kF16, "F16", {shape.begin(), shape.end()}, bytes};
  }

  const std::map<std::string, tensors::TensorView>& all() const { return tensors_; }

 private:
  std::map<std::string, AlignedBytes> memory_;
  std::map<std::string, tensors::TensorView> tensors_;
};

inline NoiseTensors make_tensors(const model::ModelConfig& config) {
  NoiseTensors set;
  const std::int64_t q_size = config.n_heads * config.head_dim;
  const std::int64_t kv_size = config.n_kv_heads * config.head_dim;
  set.add("token_embd.weight", {config.vocab_size, config.d_model});
  set.add("output_norm.weight", {config.d_model});
  set.add("output.weight", {config.vocab_size, config.d_model});
  for (std::int64_t i = 0; i < config.n_layers; ++i) {
    const std::string block = "blk." + std::to_string(i) + ".";
    set.add(block + "attn_norm.weight", {config.d_model});
    set.add(block + "attn_q.weight", {q_size, config.d_model});
    set.add(block + "attn_k.weight", {kv_size, config.d_model});
    set.add(block + "attn_v.weight", {kv_size, config.d_model});
    set.add(block + "attn_output.weight", {config.d_model, q_size});
    set.add(block + "attn_q_norm.weight", {config.head_dim});
    set.add(block + "attn_k_norm.weight", {config.head_dim});
    set.add(block + "ffn_norm.weight", {config.d_model});
    set.add(block + "ffn_gate.weight", {config.d_ff, config.d_model});
    set.add(block + "ffn_up.weight", {config.d_ff, config.d_model});
    set.add(block + "ffn_down.weight", {config.d_model, config.d_ff});
  }
  return set;
}

struct BenchModel {
  model::ModelConfig config = bench_config();
  NoiseTensors memory = make_tensors(config);
  model::Weights weights = must(model::read_weights(memory.all(), config));
};

// A dense f16 cache of n_tokens tokens with normal keys and values, of the first n_layers layers.
inline cache::Cache noise_cache(const model::ModelConfig& config, std::int64_t n_layers,
                                std::int64_t n_tokens) {
  cache::Identity identity;
  identity.rope = config.rope;
  const std::vector<cache::LayerPlan> layers(static_cast<std::size_t>(n_layers),
                                             {config.head_shape(), Dtype::kF16});
  cache::Cache cache = must(cache::make_cache(std::move(identity), layers));
  cache.tokens.assign(static_cast<std::size_t>(n_tokens), 1);
  const auto block_bytes =
      static_cast<std::size_t>(config.n_kv_heads * cache::kTokenBlock * config.head_dim) * 2;
  NoiseSource noise(1.0f);
  for (cache::Layer& layer : cache.layers) {
    auto& attention = std::get<cache::AttentionLayer>(layer);
    for (cache::Tensor* tensor : {&attention.k, &attention.v}) {
      auto& blocks = std::get<cache::DenseTensor>(*tensor).blocks;
      for (std::int64_t i = 0; i < cache::block_count(n_tokens); ++i) {
        noise.fill(blocks.emplace_back(block_bytes));
      }
    }
  }
  return cache;
}

// "f16" stays dense, "turbo4-none" is "turbo4" without mean removal; others: tqcache/quantize.h.
inline cache::Cache convert(cache::Cache cache, std::string_view preset) {
  constexpr std::string_view kNotCentered = "-none";
  if (preset == "f16") return cache;
  const bool centered = !preset.ends_with(kNotCentered);
  if (!centered) preset.remove_suffix(kNotCentered.size());
  cache::ConvertOptions options = must(cache::preset(preset));
  if (!centered) options.keys.center = options.values.center = cache::Centering::kNone;
  return must(cache::convert(std::move(cache), options));
}

}  // namespace tqcache::bench
