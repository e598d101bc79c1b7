#pragma once
// support/small_profile.h: a profile of version 2 for a made-up model, and caches of that model.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "support/cache_builder.h"
#include "tqcache/base/integers.h"
#include "tqcache/cache.h"
#include "tqcache/predict.h"

namespace tqcache::test {

// Even numbers in [-1, 1), the same with every library.
class EvenNumbers {
 public:
  explicit EvenNumbers(std::uint64_t seed) : state_(seed) {}
  float next() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<float>(static_cast<std::int32_t>(state_ >> 32)) * 0x1p-31f;
  }

 private:
  std::uint64_t state_;
};

inline cache::Identity predicted_identity() {
  cache::Identity identity;
  identity.architecture = "llama";
  identity.model_name = "small";
  identity.rope = {cache::RopeStyle::kHalfSplit, 32, 10000, {}};
  identity.weights_fingerprint.fill(std::byte{0x5a});
  identity.tokenizer_fingerprint.fill(std::byte{0xa5});
  identity.source_format = "tqcache";
  return identity;
}

// Three layers of two kv heads of 32; predictors that copy half of the layer before.
inline predict::Profile small_profile() {
  constexpr std::size_t kDim = 64, kFeatures = 3, kVocabulary = 40;
  predict::Profile profile;
  const cache::Identity identity = predicted_identity();
  profile.architecture = identity.architecture;
  profile.model_name = identity.model_name;
  profile.weights_fingerprint = identity.weights_fingerprint;
  profile.tokenizer_fingerprint = identity.tokenizer_fingerprint;
  profile.n_layers = 3;
  profile.shape = {2, 32};
  profile.depth = 1;
  profile.n_features = kFeatures;
  profile.vocab_size = kVocabulary;
  profile.n_tokens = 7;
  EvenNumbers numbers(1);
  const auto byte = [&](float size) { return static_cast<std::int8_t>(numbers.next() * size); };
  for (std::size_t i = 0; i < kFeatures * kVocabulary; ++i) profile.features.push_back(byte(90));
  for (std::size_t tensor = 0; tensor < 6; ++tensor) {
    predict::TensorProfile each;
    for (std::size_t i = 0; i < kDim; ++i) {
      each.mean.push_back(numbers.next());
      each.unit.push_back(0.005f);
      each.weight_scale.push_back(0.00004f);
      each.map_scale.push_back(0.01f);
      each.deviation.push_back(0.6f * std::exp2(-static_cast<float>(i) / 16));
    }
    const std::size_t n_inputs = to_size(profile.n_inputs(tensor));
    for (std::size_t i = 0; i < n_inputs; ++i) {
      for (std::size_t j = 0; j < kDim; ++j) {
        const bool is_copy = tensor >= 2 && i % kDim == j && i / kDim == tensor % 2;
        each.weights.push_back(is_copy ? std::int8_t{60} : byte(5));
      }
    }
    for (std::size_t i = 0; i < kDim; ++i) {
      for (std::size_t j = 0; j < kDim; ++j) {
        each.map.push_back(i == j ? std::int8_t{100} : byte(6));
      }
    }
    profile.tensors.push_back(std::move(each));
  }
  return profile;
}

inline cache::Cache predicted_model_cache(std::int64_t n_tokens, Dtype dtype = Dtype::kF16) {
  const predict::Profile profile = small_profile();
  const std::vector<cache::LayerPlan> plans(3, {profile.shape, dtype});
  cache::Cache cache = must(cache::make_cache(predicted_identity(), plans));
  EvenNumbers numbers(2);
  for (std::int64_t t = 0; t < n_tokens; ++t) {
    std::vector<float> k(64), v(64);
    for (cache::Layer& each : cache.layers) {
      cache::AttentionLayer& layer = *cache::attention_of(each);
      for (float& x : k) x = 0.7f * x + 0.5f * numbers.next();
      for (float& x : v) x = 0.7f * x + 0.5f * numbers.next();
      cache::append(layer.k, layer.shape, t, k);
      cache::append(layer.v, layer.shape, t, v);
    }
    cache.tokens.push_back(static_cast<std::int32_t>(t * 7 % 40));
  }
  return cache;
}

}  // namespace tqcache::test
