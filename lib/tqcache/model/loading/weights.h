#pragma once
// model/loading/weights.h: the weights of a model as views into its files, and their fingerprint.
//
// The matrices stay in the layout of their file. Parts that a model lacks are empty: a matrix
// without rows, a vector without components.
//
// Safe for untrusted input: the type, shape and size of every tensor are checked.

#include <cstdint>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tqcache/bytes.h"
#include "tqcache/error.h"
#include "tqcache/hash.h"
#include "tqcache/model.h"
#include "tqcache/model/linear/matrix.h"
#include "tqcache/tensors/tensor.h"

namespace tqcache::model {

using Tensors = std::map<std::string, tensors::TensorView>;

struct AttentionWeights {
  Matrix q;       // [n_heads * head_dim, d_model]; with a gate [n_heads, q and gate * head_dim]
  Matrix k;       // [n_kv_heads * head_dim, d_model]
  Matrix v;       // [n_kv_heads * head_dim, d_model]; empty: values are k times the input, too
  Matrix output;  // [d_model, n_heads * head_dim]
  AlignedFloats q_bias, k_bias, v_bias, output_bias;  // [rows of the matrix]
  AlignedFloats q_norm, k_norm;  // [head_dim], or [rows of the matrix] for all heads together
  AlignedFloats v_norm;          // [head_dim] of ones, if values are normalized
  AlignedFloats sinks;           // [n_heads]
};

// Latent attention (model/attention/latent_attention.h). Hugging Face has the matrices of keys as
// they are applied to a latent, GGUF transposed, as they are applied to a query.
struct LatentWeights {
  Matrix q_a;                // [query_rank, d_model], if queries have a latent
  AlignedFloats q_a_norm;    // [query_rank]
  Matrix q;                  // [n_heads * (plain + rotated), query_rank or d_model]
  Matrix kv_a;               // [rank + rotated, d_model]
  AlignedFloats kv_a_norm;   // [rank]
  std::vector<Matrix> keys;  // [n_heads] of [plain, rank], or transposed [rank, plain]
  bool has_transposed_keys = false;
  std::vector<Matrix> values;  // [n_heads] of [value, rank]
  Matrix output;               // [d_model, n_heads * value]

  // out = the matrix of a head's keys, [plain, rank].
  void load_key_rows(std::int64_t head, const LatentConfig& latent, std::span<float> out) const;
  // out = its transpose times a query. Shapes: query [plain]; row, at least [max(plain, rank)]; out
  // [rank].
  void absorb(std::int64_t head, std::span<const float> query, std::span<float> row,
              std::span<float> out) const;
};

// A gated delta net multiplies its input by one to four matrices, whose row order is that of the
// file. If their rows are counted as one matrix, row `rows[i]` gives value i of: queries, keys and
// values [conv_size], output gates [value_size], beta and alpha [n_value_heads].
struct DeltaNetWeights {
  std::vector<Matrix> inputs;      // [rows, d_model]
  std::vector<std::int32_t> rows;  // [conv_size + value_size + 2 * n_value_heads]
  AlignedFloats conv;              // [kernel, conv_size]
  AlignedFloats decay;             // [n_value_heads], below 0
  AlignedFloats dt_bias;           // [n_value_heads]
  AlignedFloats norm;              // [value_dim]
  Matrix output;                   // [d_model, value_size]
  // The component of the heads' outputs that each column of `output` is for; empty: the same.
  std::vector<std::int32_t> columns;  // [value_size]
};

struct FeedForwardWeights {
  Matrix gate;                                                 // [d_ff, d_model]
  Matrix up;                                                   // [d_ff, d_model]
  Matrix down;                                                 // [d_model, d_ff]
  AlignedFloats gate_bias = {}, up_bias = {}, down_bias = {};  // [rows of the matrix]
  float cutoff = -std::numeric_limits<float>::infinity();      // LayerConfig::gate_cutoff
};

struct ExpertsWeights {
  Matrix router;                         // [count, d_model]
  AlignedFloats router_bias;             // [count]
  AlignedFloats choice_bias;             // [count], of the choice alone
  std::vector<FeedForwardWeights> each;  // [count]
  FeedForwardWeights shared;
  Matrix shared_gate;  // [1, d_model]
  // Gemma 4 (ExpertsConfig::beside_ffn): norms [d_model] of the router's input, of the experts'
  // input and output, and of the feed-forward's output; a factor of each expert's weight [count].
  AlignedFloats router_norm, norm, post_norm, post_ffn_norm, factors;
};

// model/layer_inputs.h
struct LayerInputWeights {
  Matrix gate;         // [layer_inputs, d_model]
  Matrix output;       // [d_model, layer_inputs]
  AlignedFloats norm;  // [d_model]
};

// model/parallel_streams.h
struct ParallelWeights {
  AlignedFloats router_norm;  // [d_model]
  Matrix router;              // [n_streams, d_model]
  Matrix predict;             // [n_streams * n_streams, n_streams]
  Matrix correct;             // [n_streams, n_streams]
  AlignedFloats scale;        // [d_model]
};

// A path beside attention: y = x + norm(right left x).
struct LaurelWeights {
  Matrix left;         // [laurel_rank, d_model]
  Matrix right;        // [d_model, laurel_rank]
  AlignedFloats norm;  // [d_model]
};

struct LayerWeights {
  AlignedFloats attention_norm;  // [d_model]
  AttentionWeights attention;    // or
  LatentWeights latent;          // or
  DeltaNetWeights delta_net;
  AlignedFloats post_attention_norm;  // [d_model]
  AlignedFloats ffn_norm;             // [d_model]
  FeedForwardWeights ffn;             // or, but in Gemma 4
  ExpertsWeights experts;
  AlignedFloats post_ffn_norm;  // [d_model]
  LayerInputWeights inputs;
  ParallelWeights parallel;
  LaurelWeights laurel;
  float factor = 1;
};

struct Weights {
  Matrix token_embedding;  // [vocab_size, d_model]
  std::vector<LayerWeights> layers;
  AlignedFloats output_norm;                     // [d_model]
  Matrix output;                                 // [vocab_size, d_model]; the embedding when tied
  Matrix input_embedding;                        // [layer_input_vocab, n_layers * layer_inputs]
  Matrix input_projection;                       // [n_layers * layer_inputs, d_model]
  AlignedFloats input_norm;                      // [layer_inputs]
  std::vector<Matrix> to_streams, from_streams;  // [n_streams - 1] of [d_model, d_model]
  std::int64_t n_tensors = 0;  // of the file: held in here, or read by the configuration
};

// Finds every tensor by its GGUF name and checks its shape and type.
// Errors: kCorrupt (missing, wrong shape), kUnsupported (type). The message names the tensor.
Result<Weights> read_weights(const Tensors& tensors, const ModelConfig& config);

// The digest by which a cache identifies the weights that made it.
//
// SHA-256 over every tensor's GGUF name, type and shape and a sample of its bytes: 16 pieces of 4
// KiB, spread evenly, including the first and the last (all bytes of a tensor up to 64 KiB). It is
// a sample because reading a model of 16 GB would take a minute: fine-tuning changes nearly every
// tensor everywhere, so different weights differ in the sample. It does not protect against someone
// who deliberately makes two models look alike.
//
// Spec: docs/reference/format.md §Fingerprints. The tokenizer has its own: tqcache/tokenizer.h.
//
// Shapes: `tensors` by GGUF name, all tensors of the model.
// Bytes:  the same for the same tensors, whatever file or files they come from.
Sha256 weights_fingerprint(const std::map<std::string, tensors::TensorView>& tensors);

// The model fingerprint, version 2: SHA-256 over the configuration, except for names and the
// context length, and over every tensor's name, type, shape and the XXH3-128 of a larger sample: 16
// pieces of 64 KiB (all bytes of a tensor up to 1 MiB). Reading 64 KiB from a disk takes hardly
// longer than 4 KiB.
//
// Spec: docs/reference/format.md §Fingerprints.
// Bytes: as weights_fingerprint().
Sha256 model_fingerprint(const ModelConfig& config,
                         const std::map<std::string, tensors::TensorView>& tensors);

// The checksums of one tensor's sample, of which model_fingerprint() takes those of all tensors:
// they can be computed by several threads.
// Shapes: samples by the order of `tensors`.
Bytes sample_checksums(const tensors::TensorView& tensor);
Sha256 model_fingerprint(const ModelConfig& config,
                         const std::map<std::string, tensors::TensorView>& tensors,
                         std::span<const Bytes> samples);

}  // namespace tqcache::model
