#pragma once
// model/loading/architecture.h: the table of model families that the decoder supports.
//
// Readers of configurations look up a family here and fill in a ModelConfig, which holds only
// values: the decoder never checks a name.
//
// Source: ggml-org/llama.cpp src/llama-arch.cpp and src/llama-model.cpp; huggingface/transformers
// models/*/configuration_*.py and modeling_*.py.

#include <cstdint>
#include <string>
#include <string_view>

#include "tqcache/error.h"
#include "tqcache/model.h"

namespace tqcache::model {

// The layers that see only the newest tokens.
enum class WindowRule : std::uint8_t {
  kNone,
  kIfAsked,  // from one layer on, if config.json sets use_sliding_window; not in GGUF
  kAll,      // all layers, if the file names a window
  kPeriod,   // all but the last of every `window_period` layers
  kListed,   // those that config.json lists
};

struct Architecture {
  std::string_view word;      // GGUF: general.architecture
  std::string_view hf_type;   // config.json: model_type
  std::string_view hf_class;  // config.json: architectures

  // Weights.
  bool qk_norms = false;
  bool wide_qk_norms = false;   // over all heads together
  bool qkv_biases = false;      // always; other families have them if the file does
  bool default_biases = false;  // "attention_bias" of config.json, if it is missing
  bool no_output_bias = false;  // "attention_bias" is about q, k and v alone
  // The key of config.json for biases: "use_bias" is about all matrices of a layer.
  std::string_view bias_key = "attention_bias";
  bool reads_mlp_bias = false;       // "mlp_bias" of config.json
  bool reads_out_bias = false;       // "attention_out_bias" of config.json
  bool permuted_gguf = false;        // GGUF stores the rows of q and k in pairs (0, 1), (2, 3), ...
  bool permuted_hf = false;          // so do Hugging Face's files
  bool fused_projections = false;    // q, k and v are one matrix, and so are gate and up
  bool fused_gate_up = false;        // gate and up alone
  bool shared_mlp = false;           // in Hugging Face's files they are `shared_mlp` (Granite 4)
  bool zero_centered_norms = false;  // in Hugging Face's files a norm's weight w means 1 + w
  bool pre_norms = true;             // the inputs of attention and feed-forward are normalized
  bool post_norms = false;           // the outputs of attention and feed-forward are normalized
  bool layer_norms = false;          // norms subtract the mean
  bool norms_after_rope = false;     // those of queries and keys
  bool parallel_blocks = false;      // attention and feed-forward have the same input
  bool attention_sinks = false;      // every query head has one more score, without a value
  // GGUF's names (WeightLayout).
  std::string_view ffn_norm = "ffn_norm.weight";
  std::string_view after_attention = "ffn_norm.weight";
  bool has_experts = false;
  bool expert_biases = false;
  bool transposed_experts = false;  // in Hugging Face's files (WeightLayout)
  bool routed_experts = false;      // those of DeepSeek and GLM-4.5 (ExpertsConfig)
  bool sigmoid_experts = false;     // of them, those whose weights are sigmoids
  bool latent_attention = false;    // DeepSeek (LatentConfig)
  bool asks_qk_norm = false;        // "use_qk_norm" of config.json, the tensors of a GGUF file
  bool has_delta_net = false;
  bool is_tiled_gguf = false;     // GGUF stores value head v of key head k at v * n_key_heads + k
  bool attention_gate = false;    // attention's output is multiplied by a sigmoid of its input
  bool value_norms = false;       // and scores are not scaled (Gemma 3n, Gemma 4)
  bool parallel_streams = false;  // and Laurel, and gates that are cut off (Gemma 3n)
  // Layers with full attention have heads of their own, whose values are what keys are made of if
  // the file says so, and layers have factors (Gemma 4).
  bool full_heads = false;
  std::int64_t default_shared = 0;  // last layers that read the keys of earlier ones
  std::int64_t default_inputs = 0;  // components of what layers get of a token; 0: the family's
                                    // layers get nothing

  // Arithmetic.
  Activation activation = Activation::kSilu;
  bool scaled_embedding = false;  // by sqrt(d_model)
  bool has_query_scalar = false;  // the scale of scores is "query_pre_attn_scalar"^-1/2; soft caps
  bool has_multipliers = false;   // of embeddings, scores, residuals and logits (Granite)
  double default_logit_scale =
      0;                       // logits are multiplied by "logit_scale" (Cohere); 0: they are not
  bool grows_queries = false;  // "llama_4_scaling_beta" (Ministral 3)
  bool ntk_alpha = false;      // RoPE "dynamic" with "alpha" stretches the base (Hunyuan)
  // RoPE "mrope": the coordinates of a position rotate different pairs, and are equal for text
  // (Qwen-VL). The pairs of a coordinate alternate with those of others, or follow each other.
  bool text_positions = false;
  bool sections_in_runs = false;
  std::int64_t no_rope_interval = 0;  // every such layer has no RoPE, if the file has no list
  bool full_without_rope = false;     // where a model has windows, layers without one
  WindowRule windows = WindowRule::kNone;
  std::int64_t window_period = 0;
  std::int64_t default_window = 0;  // for a GGUF file that names none
  float default_attention_cap = 0;
  float default_logit_cap = 0;
  // GGUF does not store the scale of scores. Models with this many layers use 1 / sqrt(d_model /
  // n_heads), others 1 / sqrt(head_dim).
  std::int64_t wide_scale_layers = 0;

  // Defaults for keys that config.json omits.
  std::int64_t default_head_dim = 0;  // 0: d_model / n_heads
  double default_epsilon = 1e-6;
  double default_rope_base = 10'000;
  double default_local_base = 0;  // for layers with a window, if it differs
  // Its key in config.json. With "rope_theta", layers have the same base, and scaling is of those
  // with full attention alone (OLMo 3).
  std::string_view local_base_key = "rope_local_base_freq";
  double default_rotary_share = 1;  // of the components that RoPE rotates
  bool partial_rotary = false;      // config.json may give another share
  bool only_longrope = false;       // the only kind of RoPE scaling in config.json
  bool default_yarn = false;        // without RoPE settings, the context is stretched by 32
  bool default_tied = false;
  // Key of the width of experts in config.json; GGUF without "expert_feed_forward_length" has
  // "feed_forward_length".
  std::string_view expert_width = "moe_intermediate_size";
  bool default_normalized = false;  // the weights of the chosen experts are scaled to sum to 1
  bool gguf_normalized = true;      // the same in GGUF without "expert_weights_norm"
};

// `has_experts` decides between rows with the same word.
// Errors: kUnsupported; the message names the requested family and the known ones.
Result<const Architecture*> find_gguf_architecture(const std::string& word, bool has_experts);
Result<const Architecture*> find_hf_architecture(const std::string& model_type);

}  // namespace tqcache::model
