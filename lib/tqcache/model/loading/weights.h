#pragma once
// model/loading/weights.h: the matrices of a model, left in the form their file has them in.
//
// Safe for untrusted input: every tensor's type, shape and size are checked.
//
// What a model does not have is empty: a matrix without rows, a vector without components.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tqcache/base/aligned.h"
#include "tqcache/base/result.h"
#include "tqcache/model/loading/config.h"
#include "tqcache/model/linear/matrix.h"
#include "tqcache/model/loading/tensor_finder.h"

namespace tqcache::model {

struct AttentionWeights {
  Matrix q;       // [n_heads * head_dim, d_model]; with a gate [n_heads, q and gate * head_dim]
  Matrix k;       // [n_kv_heads * head_dim, d_model]
  Matrix v;       // [n_kv_heads * head_dim, d_model]
  Matrix output;  // [d_model, n_heads * head_dim]
  AlignedFloats q_bias, k_bias, v_bias, output_bias;  // [rows of the matrix]
  AlignedFloats q_norm, k_norm;                       // [head_dim]
};

// The products of a gated delta net with its input are made of one to four matrices, whose rows
// are in an order of the file's. Seen as one matrix, row `rows[i]` of it gives value i of: queries,
// keys and values [conv_size], gates of the output [value_size], beta and alpha [n_value_heads].
struct DeltaNetWeights {
  std::vector<Matrix> inputs;      // [rows, d_model]
  std::vector<std::int32_t> rows;  // [conv_size + value_size + 2 * n_value_heads]
  AlignedFloats conv;              // [kernel, conv_size]
  AlignedFloats decay;             // [n_value_heads], below 0
  AlignedFloats dt_bias;           // [n_value_heads]
  AlignedFloats norm;              // [value_dim]
  Matrix output;                   // [d_model, value_size]
  // Which component of the heads' outputs each column of `output` is for; empty: its own.
  std::vector<std::int32_t> columns;  // [value_size]
};

struct FeedForwardWeights {
  Matrix gate;  // [d_ff, d_model]
  Matrix up;    // [d_ff, d_model]
  Matrix down;  // [d_model, d_ff]
};

struct ExpertsWeights {
  Matrix router;                         // [count, d_model]
  std::vector<FeedForwardWeights> each;  // [count]
  FeedForwardWeights shared;
  Matrix shared_gate;  // [1, d_model]
};

struct LayerWeights {
  AlignedFloats attention_norm;  // [d_model]
  AttentionWeights attention;    // or
  DeltaNetWeights delta_net;
  AlignedFloats post_attention_norm;  // [d_model]
  AlignedFloats ffn_norm;             // [d_model]
  FeedForwardWeights ffn;             // or
  ExpertsWeights experts;
  AlignedFloats post_ffn_norm;  // [d_model]
};

struct Weights {
  Matrix token_embedding;  // [vocab_size, d_model]
  std::vector<LayerWeights> layers;
  AlignedFloats output_norm;   // [d_model]
  Matrix output;               // [vocab_size, d_model]; the embedding when tied
  std::int64_t n_tensors = 0;  // of the file's that are in here, or that the configuration has read
};

// Finds every tensor by its GGUF name and checks its shape and type.
// Errors: kCorrupt (missing, wrong shape), kUnsupported (type). The message names the tensor.
Result<Weights> read_weights(const Tensors& tensors, const ModelConfig& config);

// GGUF's name of a Hugging Face tensor: "model.layers.3.self_attn.q_proj.weight" ->
// "blk.3.attn_q.weight"; empty when there is none. What GGUF has no name for is called as it is
// made up of: "blk.3.ffn_gate.5.weight" of expert 5 alone. `after_attention` is GGUF's name of
// post_attention_layernorm, which depends on the family (WeightForm::after_attention).
std::string gguf_name(std::string_view hf_name,
                      std::string_view after_attention = "ffn_norm.weight");

// Whether a tensor of a Hugging Face folder is no part of the language model, or follows from the
// configuration: what looks at pictures, what predicts further tokens, RoPE's angles.
bool is_unused_hf_tensor(std::string_view hf_name);

}  // namespace tqcache::model
