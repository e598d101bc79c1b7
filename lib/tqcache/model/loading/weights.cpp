#include "tqcache/model/loading/weights.h"

#include <algorithm>
#include <array>
#include <utility>

#include "tqcache/model/loading/delta_net_weights.h"

namespace tqcache::model {
namespace {

AttentionWeights read_attention(TensorFinder& finder, const std::string& block,
                                const ModelConfig& config) {
  const std::int64_t d_model = config.d_model;
  const std::int64_t q_size = config.n_heads * config.head_dim;
  const std::int64_t kv_size = config.n_kv_heads * config.head_dim;
  AttentionWeights weights;
  if (config.form.fused_projections) {
    const Matrix all = finder.matrix(block + "attn_qkv.weight", q_size + 2 * kv_size, d_model);
    weights.q = rows_of(all, 0, q_size);
    weights.k = rows_of(all, q_size, kv_size);
    weights.v = rows_of(all, q_size + kv_size, kv_size);
  } else {
    const std::int64_t q_rows = (config.attention_gate ? 2 : 1) * q_size;
    weights.q = finder.matrix(block + "attn_q.weight", q_rows, d_model);
    weights.k = finder.matrix(block + "attn_k.weight", kv_size, d_model);
    weights.v = finder.matrix(block + "attn_v.weight", kv_size, d_model);
  }
  weights.output = finder.matrix(block + "attn_output.weight", d_model, q_size);
  const bool biases = config.qkv_biases;
  weights.q_bias = finder.vector_if(biases, block + "attn_q.bias", weights.q.n_rows);
  weights.k_bias = finder.vector_if(biases, block + "attn_k.bias", kv_size);
  weights.v_bias = finder.vector_if(biases, block + "attn_v.bias", kv_size);
  weights.output_bias = finder.vector_if(config.output_bias, block + "attn_output.bias", d_model);
  weights.q_norm = finder.norm_if(config.qk_norms, block + "attn_q_norm.weight", config.head_dim);
  weights.k_norm = finder.norm_if(config.qk_norms, block + "attn_k_norm.weight", config.head_dim);
  return weights;
}

// Names end in "_shexp.weight" or ".5.weight" for other feed-forwards than the layer's own.
FeedForwardWeights read_ffn(TensorFinder& finder, const std::string& block, const std::string& end,
                            std::int64_t d_ff, std::int64_t d_model) {
  return {finder.matrix(block + "ffn_gate" + end, d_ff, d_model),
          finder.matrix(block + "ffn_up" + end, d_ff, d_model),
          finder.matrix(block + "ffn_down" + end, d_model, d_ff)};
}

FeedForwardWeights read_ffn(TensorFinder& finder, const std::string& block,
                            const ModelConfig& config) {
  const std::int64_t d_ff = config.d_ff;
  if (!config.form.fused_projections) {
    return read_ffn(finder, block, ".weight", d_ff, config.d_model);
  }
  const Matrix both = finder.matrix(block + "ffn_up.weight", 2 * d_ff, config.d_model);
  return {rows_of(both, 0, d_ff), rows_of(both, d_ff, d_ff),
          finder.matrix(block + "ffn_down.weight", config.d_model, d_ff)};
}

// All experts in three tensors, or in two.
std::vector<FeedForwardWeights> read_stacked_experts(TensorFinder& finder, const std::string& block,
                                                     const ExpertsConfig& experts,
                                                     std::int64_t d_model) {
  const std::string both_name = block + "ffn_gate_up_exps.weight";
  const std::int64_t n = experts.count;
  const std::int64_t d_ff = experts.d_ff;
  std::vector<Matrix> gate, up;
  if (finder.has(both_name)) {
    for (const Matrix& both : finder.stack(both_name, n, 2 * d_ff, d_model)) {
      gate.push_back(rows_of(both, 0, d_ff));
      up.push_back(rows_of(both, d_ff, d_ff));
    }
  } else {
    gate = finder.stack(block + "ffn_gate_exps.weight", n, d_ff, d_model);
    up = finder.stack(block + "ffn_up_exps.weight", n, d_ff, d_model);
  }
  const auto down = finder.stack(block + "ffn_down_exps.weight", n, d_model, d_ff);
  std::vector<FeedForwardWeights> each;
  for (std::size_t i = 0; i < down.size(); ++i) each.push_back({gate[i], up[i], down[i]});
  return each;
}

ExpertsWeights read_experts(TensorFinder& finder, const std::string& block,
                            const ModelConfig& config) {
  const ExpertsConfig& experts = config.experts;
  ExpertsWeights weights;
  weights.router = finder.matrix(block + "ffn_gate_inp.weight", experts.count, config.d_model);
  if (finder.has(block + "ffn_down_exps.weight")) {
    weights.each = read_stacked_experts(finder, block, experts, config.d_model);
  } else {
    for (std::int64_t i = 0; i < experts.count && !finder.failed(); ++i) {
      const std::string end = "." + std::to_string(i) + ".weight";
      weights.each.push_back(read_ffn(finder, block, end, experts.d_ff, config.d_model));
    }
  }
  if (experts.shared_d_ff == 0) return weights;
  weights.shared = read_ffn(finder, block, "_shexp.weight", experts.shared_d_ff, config.d_model);
  weights.shared_gate = finder.matrix(block + "ffn_gate_inp_shexp.weight", 1, config.d_model);
  return weights;
}

LayerWeights read_layer(TensorFinder& finder, std::int64_t index, const ModelConfig& config) {
  const std::string block = "blk." + std::to_string(index) + ".";
  const std::int64_t d_model = config.d_model;
  LayerWeights layer;
  layer.attention_norm = finder.norm(block + "attn_norm.weight", d_model);
  if (config.layer(index).kind == LayerKind::kDeltaNet) {
    layer.delta_net = read_delta_net(finder, block, config);
  } else {
    layer.attention = read_attention(finder, block, config);
  }
  layer.ffn_norm = finder.norm(block + std::string(config.form.ffn_norm), d_model);
  if (config.experts.count > 0) {
    layer.experts = read_experts(finder, block, config);
  } else {
    layer.ffn = read_ffn(finder, block, config);
  }
  layer.post_attention_norm =
      finder.norm_if(config.post_norms, block + "post_attention_norm.weight", d_model);
  layer.post_ffn_norm = finder.norm_if(config.post_norms, block + "post_ffw_norm.weight", d_model);
  return layer;
}

// Tensors that the configuration has read, or that belong to layers which are not used.
std::int64_t count_others(const Tensors& tensors, const ModelConfig& config) {
  std::int64_t n = 0;
  for (const char* name :
       {"rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight"}) {
    n += static_cast<std::int64_t>(tensors.count(name));
  }
  for (std::int64_t i = 0; i < config.form.n_extra_layers; ++i) {
    const std::string block = "blk." + std::to_string(config.n_layers + i) + ".";
    for (auto each = tensors.lower_bound(block);
         each != tensors.end() && each->first.starts_with(block); ++each) {
      ++n;
    }
  }
  return n;
}

}  // namespace

Result<Weights> read_weights(const Tensors& tensors, const ModelConfig& config) {
  TensorFinder finder(tensors, config.form.norm_offset);
  Weights weights;
  weights.token_embedding = finder.matrix("token_embd.weight", config.vocab_size, config.d_model);
  for (std::int64_t i = 0; i < config.n_layers && !finder.failed(); ++i) {
    weights.layers.push_back(read_layer(finder, i, config));
  }
  weights.output_norm = finder.norm("output_norm.weight", config.d_model);
  weights.output = config.tied_embeddings
                       ? weights.token_embedding
                       : finder.matrix("output.weight", config.vocab_size, config.d_model);
  weights.n_tensors =
      static_cast<std::int64_t>(finder.taken().size()) + count_others(tensors, config);
  TQC_TRY(std::move(finder).finish());
  return weights;
}

}  // namespace tqcache::model
