#pragma once
// model/fixture_model.h: one of the small models of tests/data/architectures, without a tokenizer.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "support/cache_builder.h"
#include "support/temp_dir.h"
#include "tqcache/decoder.h"
#include "tqcache/model.h"
#include "tqcache/model/loading/config_readers.h"
#include "tqcache/model/loading/model_files.h"
#include "tqcache/model/loading/weights.h"

namespace tqcache::test {

struct FixtureModel {
  explicit FixtureModel(const std::string& name)
      : folder(std::filesystem::path(TQCACHE_TEST_DATA) / "architectures" / name),
        config(must(model::read_hf_config(read_all(folder / "config.json")))),
        tensors(must(model::map_hf_tensors(folder, config))) {
    if (config.tied_embeddings) tensors.by_name.erase("output.weight");
    weights = must(model::read_weights(tensors.by_name, config));
  }

  model::Decoder decoder(unsigned n_threads = 1) const {
    return model::Decoder(config, weights, n_threads);
  }
  cache::Cache make_cache(Dtype dtype = Dtype::kF32) const {
    cache::Identity identity;
    identity.rope = config.key_rope();
    return must(model::make_cache(config, std::move(identity), dtype));
  }

  // What the reference's logits are of, and those: [ids, vocab_size].
  std::vector<std::int32_t> ids() const {
    std::vector<std::int32_t> all;
    for (std::int32_t i = 0; i < 40; ++i) all.push_back((7 * i * i + 3 * i + 11) % 64);
    return all;
  }
  std::vector<float> logits() const {
    const Bytes bytes = read_all(folder / "logits.f32");
    std::vector<float> values(bytes.size() / sizeof(float));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }

  // Tokens over several token blocks and windows.
  std::vector<std::int32_t> many_ids(std::size_t n) const {
    std::vector<std::int32_t> all;
    for (std::size_t i = 0; i < n; ++i) all.push_back(static_cast<std::int32_t>(i * i * 5 % 61));
    return all;
  }

  std::filesystem::path folder;
  model::ModelConfig config;
  model::ModelTensors tensors;
  model::Weights weights;
};

inline const std::vector<std::string> kFixtures = {
    "llama",     "llama_biased", "mistral",   "qwen2",           "qwen3_moe",
    "gemma2",    "gemma3",       "phi3_long", "qwen3_next",      "qwen3_5",
    "gemma",     "olmo2",        "smollm3",   "granite",         "mixtral",
    "qwen2_moe", "glm4",         "gpt_oss",   "gpt_oss_mxfp4",   "llama_mlp_bias",
    "olmo3",     "seed_oss",     "ernie4_5",  "ernie4_5_biased", "hunyuan",
    "granite4",  "granitemoe",   "cohere",    "cohere2",         "ministral3",
    "ministral", "cwm",          "exaone4",   "helium",          "glm",
    "olmoe",     "vaultgemma",   "qwen3_vl",  "qwen2_5_vl",      "gemma3n",
    "gemma4",    "gemma4_dense", "gemma4_moe"};

// The largest error of a row, as a part of the row's length.
inline double relative_error(std::span<const float> rows, std::span<const float> reference,
                             std::size_t row_size) {
  EXPECT_EQ(rows.size(), reference.size());
  double worst = 0;
  for (std::size_t row = 0; row < rows.size(); row += row_size) {
    double error = 0, length = 0;
    for (std::size_t i = row; i < row + row_size; ++i) {
      error += (double{rows[i]} - reference[i]) * (double{rows[i]} - reference[i]);
      length += double{reference[i]} * reference[i];
    }
    worst = std::max(worst, std::sqrt(error / length));
  }
  return worst;
}

}  // namespace tqcache::test
