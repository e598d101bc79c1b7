#pragma once
// model/weights.h: the matrices of a model, left in the form their file has them in.
//
// Safe for untrusted input: every tensor's type, shape and size are checked.

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tqcache/base/aligned.h"
#include "tqcache/base/result.h"
#include "tqcache/model/config.h"
#include "tqcache/model/matrix.h"
#include "tqcache/tensors/tensor.h"

namespace tqcache::model {

struct LayerWeights {
  AlignedFloats attention_norm;  // [d_model]
  Matrix q;                      // [n_heads * head_dim, d_model]
  Matrix k;                      // [n_kv_heads * head_dim, d_model]
  Matrix v;                      // [n_kv_heads * head_dim, d_model]
  Matrix attention_output;       // [d_model, n_heads * head_dim]
  AlignedFloats q_norm;          // [head_dim]
  AlignedFloats k_norm;          // [head_dim]
  AlignedFloats ffn_norm;        // [d_model]
  Matrix ffn_gate;               // [d_ff, d_model]
  Matrix ffn_up;                 // [d_ff, d_model]
  Matrix ffn_down;               // [d_model, d_ff]
};

struct Weights {
  Matrix token_embedding;  // [vocab_size, d_model]
  std::vector<LayerWeights> layers;
  AlignedFloats output_norm;  // [d_model]
  Matrix output;              // [vocab_size, d_model]; the embedding when tied
};

// Finds every tensor by its GGUF name and checks its shape and type.
// Errors: kCorrupt (missing, wrong shape), kUnsupported (type). The message names the tensor.
Result<Weights> read_weights(const std::map<std::string, tensors::TensorView>& tensors,
                             const ModelConfig& config);

// GGUF's name of a Hugging Face tensor: "model.layers.3.self_attn.q_proj.weight" ->
// "blk.3.attn_q.weight"; empty when there is none.
std::string gguf_name(std::string_view hf_name);

}  // namespace tqcache::model
