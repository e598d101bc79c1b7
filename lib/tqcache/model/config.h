#pragma once
// model/config.h: the shape of a decoder-only transformer, as its file states it.
//
// Safe for untrusted input: every number is checked against a bound before anyone sizes by it.
// What would change the arithmetic and is not done here (RoPE scaling, a sliding window, biases)
// is refused, not ignored.
//
// Source: ggml docs/gguf.md; huggingface/transformers models/qwen3/configuration_qwen3.py.

#include <cstdint>
#include <string>

#include "tqcache/base/result.h"
#include "tqcache/cache/cache.h"
#include "tqcache/tensors/gguf.h"

namespace tqcache::model {

struct ModelConfig {
  std::string architecture;  // GGUF's word: "qwen3"
  std::string name;          // for people; empty when the file has none
  std::int64_t n_layers = 0;
  std::int64_t d_model = 0;
  std::int64_t d_ff = 0;
  std::int64_t n_heads = 0;
  std::int64_t n_kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t vocab_size = 0;      // rows of the embedding matrix
  std::int64_t context_length = 0;  // tokens
  float rms_norm_epsilon = 0;
  cache::Rope rope;
  bool tied_embeddings = false;  // the output matrix is the embedding matrix

  cache::HeadShape head_shape() const { return {n_kv_heads, head_dim}; }
};

// Errors: kUnsupported (another architecture, RoPE scaling, a sliding window), and those of
//         validate(); kCorrupt when a value is missing.
Result<ModelConfig> read_gguf_config(const tensors::Gguf& file);
Result<ModelConfig> read_hf_config(ByteView config_json);

// Checks every number against its bounds, and that the heads fit together.
// Errors: kCorrupt, kTooLarge; the message names the number.
Result<void> validate(const ModelConfig& config);

}  // namespace tqcache::model
