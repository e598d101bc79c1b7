#pragma once
// tqcache/model.h: a model loaded from disk: configuration, weights, tokenizer, identity.
//
//   TQC_TRY_ASSIGN(const auto model, tqcache::model::load_model("model.gguf"));
//   TQC_TRY_ASSIGN(auto cache, tqcache::model::make_cache(*model, tqcache::Dtype::kF16));
//
// Safe for untrusted input. Model families differ, but a ModelConfig holds only values: the decoder
// never checks a name.
//
// Source: ggml docs/gguf.md; huggingface/transformers models/*/configuration_*.py.

#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tqcache/access.h"
#include "tqcache/bytes.h"
#include "tqcache/cache.h"
#include "tqcache/error.h"
#include "tqcache/file.h"
#include "tqcache/tokenizer.h"

namespace tqcache::model {

// --- Configuration

enum class Activation : std::uint8_t {
  kSilu,
  kGeluTanh,
  kClampedSwiglu,  // min(g, 7) sigmoid(1.702 g) (u + 1), with u limited to -7 to 7 (gpt-oss)
};

enum class LayerKind : std::uint8_t {
  kAttention,
  kDeltaNet,  // linear attention with a recurrent state (Gated DeltaNet)
};

// The settings of one layer.
struct LayerConfig {
  LayerKind kind = LayerKind::kAttention;
  std::int64_t window = 0;  // tokens that a query sees, including its own; 0: all
  cache::Rope rope;
  cache::HeadShape heads = {};  // {0, 0}: the model's
  std::int64_t d_ff = 0;        // 0: the model's
  // The earlier layer whose keys and values it reads; -1: it has its own (Gemma 3n, Gemma 4).
  std::int64_t source = -1;
  bool keys_as_values = false;  // values are what keys are made of (Gemma 4)
  // Gates of the feed-forward become max(g - mean - cutoff * deviation, 0) (Gemma 3n); -infinity:
  // they stay.
  float gate_cutoff = -std::numeric_limits<float>::infinity();
};

// A mixture of experts that replaces the feed-forward.
struct ExpertsConfig {
  std::int64_t count = 0;        // 0: no experts
  std::int64_t used = 0;         // per token
  std::int64_t d_ff = 0;         // of one expert
  std::int64_t shared_d_ff = 0;  // of the expert that all tokens go through; 0: none
  bool normalized = true;        // the weights of the used experts are scaled to sum to 1
  bool biases = false;           // of the router and of all matrices of the experts

  // DeepSeek and GLM-4.5.
  std::int64_t first_layer = 0;  // the layers before have a plain feed-forward
  bool sigmoid = false;          // p is the sigmoid of a score, not a softmax of all
  bool choice_bias = false;      // what is added to p in the choice of experts alone
  bool shared_gate = true;       // the shared expert is multiplied by a sigmoid
  // Experts are chosen from the `used_groups` best of `groups` groups of equal size.
  std::int64_t groups = 1;
  std::int64_t used_groups = 1;
  bool group_pairs = true;  // a group is as good as its two best experts together, not as its best
  float scale = 1;          // of the weights of the used experts

  // Gemma 4: the plain feed-forward is beside them, all of these have norms of their own, and the
  // weight of each expert has a factor.
  bool beside_ffn = false;
};

// The gated delta net of a hybrid model; all zero if no layer has one.
struct DeltaNetConfig {
  std::int64_t n_key_heads = 0;
  std::int64_t n_value_heads = 0;  // r * n_key_heads; heads h r to h r + r - 1 share key head h
  std::int64_t key_dim = 0;        // components of a head vector
  std::int64_t value_dim = 0;
  std::int64_t kernel = 0;  // tokens that the convolution sees

  std::int64_t key_size() const { return n_key_heads * key_dim; }
  std::int64_t value_size() const { return n_value_heads * value_dim; }
  std::int64_t conv_size() const { return 2 * key_size() + value_size(); }
};

// Latent attention (MLA): keys and values of all heads follow from one latent of a token, and a key
// part that RoPE rotates is common to them. All zero if the model has none.
struct LatentConfig {
  std::int64_t query_rank = 0;  // components of a latent that queries follow from; 0: none
  std::int64_t rank = 0;        // components of the latent: K of the cache
  std::int64_t rotated = 0;  // components that RoPE rotates, in pairs (0, 1), ...: V of the cache
  std::int64_t plain = 0;    // the other components of a head's query and key
  std::int64_t value = 0;    // components of a head's value
  float epsilon = 0;         // of the latents' norms

  std::int64_t query_size() const { return plain + rotated; }
};

// Differences between the weight layout of the file and that of the decoder.
struct WeightLayout {
  bool permuted_heads = false;  // rows of q and k in pairs (0, 1), (2, 3), ...; RoPE is by halves
  // In Hugging Face's files, matrices of experts are [inputs, outputs], and the rows of gate and up
  // alternate. They are rearranged when they are loaded.
  bool transposed_experts = false;
  bool fused_projections = false;  // attn_qkv, and ffn_up preceded by the gate
  bool fused_gate_up = false;      // ffn_up preceded by the gate alone
  bool tiled_value_heads = false;  // value head v of key head k is at v * n_key_heads + k
  bool log_decay = false;          // ssm_a is log(A), not -A
  float norm_offset = 0;           // added to the weights of norms
  // GGUF's names of the norm before the feed-forward, and of the norm that Hugging Face calls
  // post_attention_layernorm: usually the same norm.
  std::string_view ffn_norm = "ffn_norm.weight";
  std::string_view after_attention = "ffn_norm.weight";
  std::int64_t n_extra_layers = 0;  // after the others, unused: they predict further tokens
};

struct ModelConfig {
  std::string architecture;  // GGUF's name: "qwen3"
  std::string name;          // a display name; empty if the file has none
  std::int64_t n_layers = 0;
  std::int64_t d_model = 0;
  std::int64_t d_ff = 0;  // 0 if all layers have experts
  std::int64_t n_heads = 0;
  std::int64_t n_kv_heads = 0;
  std::int64_t head_dim = 0;        // of latent attention: components of a latent
  std::int64_t vocab_size = 0;      // rows of the embedding matrix
  std::int64_t context_length = 0;  // tokens
  float rms_norm_epsilon = 0;
  cache::Rope rope;              // of layers with full attention
  bool tied_embeddings = false;  // the output matrix is the embedding matrix

  // One entry per layer; empty: all have full attention.
  std::vector<LayerConfig> layers = {};

  bool qk_norms = false;
  bool wide_qk_norms = false;  // a norm is over all heads together
  bool qkv_biases = false;
  bool output_bias = false;       // attention's output has a bias
  bool pre_norms = true;          // the inputs of attention and feed-forward are normalized
  bool post_norms = false;        // the outputs of attention and feed-forward are normalized
  bool layer_norms = false;       // norms subtract the mean (Cohere)
  bool norms_after_rope = false;  // those of queries and keys (Hunyuan)
  bool parallel_blocks = false;   // attention and feed-forward have the same input (Cohere)
  bool mlp_biases = false;
  bool attention_gate = false;
  bool attention_sinks = false;        // every query head has one more score, without a value
  bool value_norms = false;            // of every value vector, without weights (Gemma 3n, Gemma 4)
  bool layer_factors = false;          // x is multiplied by a number behind every layer (Gemma 4)
  std::int64_t layer_inputs = 0;       // components of what each layer gets of a token; 0: nothing
  std::int64_t layer_input_vocab = 0;  // rows of their table
  std::int64_t n_streams = 1;          // residual streams (Gemma 3n)
  std::int64_t laurel_rank = 0;  // of a linear path beside attention (Gemma 3n); 0: there is none
  Activation activation = Activation::kSilu;
  float rope_magnitude = 1;   // factor by which RoPE scales lengths
  float attention_scale = 0;  // of scores; 0: 1 / sqrt(head_dim)
  // Queries at position p are multiplied by 1 + query_growth ln(1 + floor(p / query_growth_step)).
  float query_growth = 0;
  std::int64_t query_growth_step = 0;  // tokens; 0: queries do not grow
  float attention_cap = 0;             // scores s become c tanh(s / c); 0: no cap
  float logit_cap = 0;                 // likewise for logits
  float embedding_scale = 1;
  float residual_scale = 1;  // of what attention and feed-forward add
  float logit_divisor = 1;
  ExpertsConfig experts;
  DeltaNetConfig delta_net;
  LatentConfig latent;
  WeightLayout layout;

  // Of K in the cache, and cache::AttentionDesc::value_dim of V.
  cache::HeadShape head_shape() const { return {n_kv_heads, head_dim}; }
  std::int64_t value_dim() const {
    return latent.rank > 0 ? cache::value_dim_of(latent.rank, latent.rotated) : 0;
  }
  // The RoPE of a cache's keys (cache::Identity). Latents do not rotate: then it only says that the
  // components of V which rotate together are neighbors.
  cache::Rope key_rope() const {
    return latent.rank > 0 ? cache::Rope{cache::RopeStyle::kInterleaved, 0, 0} : rope;
  }
  // With the model's values where it has none of its own.
  LayerConfig layer(std::int64_t index) const;
  // Layers of a cache: the layers but those that read an earlier one's, which are the last.
  std::int64_t n_cache_layers() const;
  bool has_experts(std::int64_t layer) const {
    return experts.count > 0 && layer >= experts.first_layer;
  }
  float score_scale() const;
};

// --- Loading

struct Weights;  // not for users of the library

struct Model {
  ModelConfig config;
  std::shared_ptr<const Weights> weights;  // views into `files`
  tokenizer::Tokenizer tokenizer;
  cache::Identity identity;
  std::vector<MappedFile> files;
  std::vector<AlignedBytes> rearranged = {};  // weights that are not used as the files have them
};

// Loads a GGUF file (the first part of a split model), or a Hugging Face folder (config.json,
// tokenizer.json, *.safetensors; tokens that end a turn also from tokenizer_config.json and
// generation_config.json, if present). The weights stay mapped: do not change the files while the
// model is in use.
//
// Errors: kNotFound, kIo, and those of the readers; for a folder the message names the file.
//         kCorrupt when the vocabulary without the added tokens at its end is larger than the
//         matrices; kTooLarge (`memory`, for weights that are not used as the file has them);
//         kUnsupported when the file is not GGUF, or the model has more tensors than its
//         architecture uses.
// Threads: `n_threads` of them read the file, 0: as many as there are processors. The model and the
//         errors are the same for any number.
Result<std::unique_ptr<Model>> load_model(const std::filesystem::path& path, unsigned n_threads = 1,
                                          const MemoryBudget& memory = {});

// An empty cache for this model: dense, with a window for each sliding-window layer and the initial
// state, in f32, for each layer without attention.
// Errors: those of cache::make_cache().
Result<cache::Cache> make_cache(const Model& model, Dtype dtype);
Result<cache::Cache> make_cache(const ModelConfig& config, cache::Identity identity, Dtype dtype);

}  // namespace tqcache::model
