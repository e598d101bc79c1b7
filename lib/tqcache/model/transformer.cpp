#include "tqcache/model/transformer.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>
#include <numbers>
#include <string>
#include <utility>

#include "tqcache/base/integers.h"
#include "tqcache/model/linear/kernel_loops.h"
#include "tqcache/model/linear/matrix.h"
#include "tqcache/model/linear/product_kernels.h"
#include "tqcache/model/norms.h"

namespace tqcache::model {
namespace {

constexpr std::int64_t kRowsPerTask = 16;  // enough tokens to pay for a task switch

std::span<float> row_of(AlignedFloats& rows, std::int64_t row, std::int64_t size) {
  return std::span(rows).subspan(to_size(row * size), to_size(size));
}

// The largest value that rounds to a finite value of the type.
float largest_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF16:
      return 0x1.ffdffep15f;
    case Dtype::kBF16:
      return 0x1.fefffep127f;
    case Dtype::kF32:
      break;
  }
  return std::numeric_limits<float>::max();
}

// Reorders pairs (0, 1), (2, 3), ... to half-split order: components i and i + n / 2 become a pair.
// Shapes: head [n]; scratch, at least [n].
void split_pairs(std::span<float> head, std::span<float> scratch) {
  const std::size_t half = head.size() / 2;
  std::ranges::copy(head, scratch.begin());
  for (std::size_t i = 0; i < half; ++i) {
    head[i] = scratch[2 * i];
    head[half + i] = scratch[2 * i + 1];
  }
}

std::vector<RopeTable> different_ropes(const ModelConfig& config) {
  std::vector<RopeTable> ropes;
  for (std::int64_t i = 0; i < config.n_layers; ++i) {
    const cache::Rope rope = config.layer(i).rope;
    if (std::ranges::find(ropes, rope, &RopeTable::rope) != ropes.end()) continue;
    // Windows may have a RoPE of their own, which is not scaled.
    const bool is_scaled = rope.factors == config.rope.factors;
    ropes.emplace_back(rope, is_scaled ? config.rope_magnitude : 1);
  }
  return ropes;
}

}  // namespace

Transformer::Transformer(const ModelConfig& config, const Weights& weights, unsigned n_threads,
                         Scorer scorer, ActivationBits activations)
    : config_(config),
      weights_(weights),
      workers_(n_threads),
      activations_(activations),
      latent_attention_(config, activations),
      delta_net_(config, activations),
      mlp_(config.activation, activations),
      experts_(config.experts, config.activation, activations),
      inputs_(config, weights, activations),
      streams_(config, weights, activations),
      ropes_(different_ropes(config)) {
  const ScoreParams scores = {config.score_scale(), config.attention_cap};
  for (std::int64_t i = 0; i < config.n_layers; ++i) {
    LayerConfig layer = config.layer(i);
    const auto found = std::ranges::find(ropes_, layer.rope, &RopeTable::rope);
    rope_of_layer_.push_back(to_size(found - ropes_.begin()));
    if (std::ranges::find(attentions_, layer.heads, &HeadAttention::heads) == attentions_.end()) {
      attentions_.push_back({layer.heads,
                             {layer.heads, config.n_heads, config.rope, scores, scorer},
                             {layer.heads, config.n_heads, scores}});
    }
    layers_.push_back(std::move(layer));
  }
}

const RopeTable& Transformer::rope_of(std::int64_t layer) const {
  return ropes_[rope_of_layer_[to_size(layer)]];
}

void Transformer::reserve_rows(std::int64_t n) {
  if (n <= capacity_) return;
  capacity_ = n == 1 ? 1 : cache::kTokenBlock;  // a decode step must not take the memory of a chunk
  const auto resize = [&](AlignedFloats& rows, std::int64_t size) {
    rows.resize(to_size(capacity_ * size));
  };
  const bool has_latents = config_.latent.rank > 0;
  std::int64_t q_size = 0, kv_size = 0;
  for (const HeadAttention& each : attentions_) {
    q_size = std::max(q_size, config_.n_heads * each.heads.head_dim);
    kv_size = std::max(kv_size, each.heads.n_kv_heads * each.heads.head_dim);
  }
  resize(x_, config_.d_model);
  resize(normed_, config_.d_model);
  resize(update_, config_.d_model);
  resize(squares_, 1);
  if (!has_latents) resize(q_, q_size);
  resize(k_, kv_size);
  resize(v_, has_latents ? config_.latent.rotated : kv_size);
  if (config_.laurel_rank > 0 || config_.experts.beside_ffn) {
    resize(beside_, config_.d_model);
    resize(router_x_, std::max(config_.d_model, config_.laurel_rank));
  }
  resize(attended_, has_latents ? config_.n_heads * config_.latent.value : q_size);
  if (!config_.attention_gate) return;
  resize(gates_, q_size);
  resize(q_and_gates_, 2 * q_size);
}

void Transformer::for_rows(const std::function<void(std::int64_t)>& body) const {
  const std::int64_t n_tasks = (n_ + kRowsPerTask - 1) / kRowsPerTask;
  workers_.run(to_size(n_tasks), [&](std::size_t task) {
    const std::int64_t first = static_cast<std::int64_t>(task) * kRowsPerTask;
    for (std::int64_t row = first; row < std::min(first + kRowsPerTask, n_); ++row) body(row);
  });
}

void Transformer::begin(std::span<const std::int32_t> ids, std::int64_t first,
                        std::int64_t position) {
  first_ = first;
  n_ = static_cast<std::int64_t>(ids.size());
  assert(n_ >= 1 && first_ % cache::kTokenBlock + n_ <= cache::kTokenBlock);
  reserve_rows(n_);
  for (RopeTable& rope : ropes_) rope.set_positions(position, n_);
  for_rows([&](std::int64_t row) {
    const std::span<float> x = row_of(x_, row, config_.d_model);
    load_rows(weights_.token_embedding, ids[to_size(row)], 1, x);
    if (config_.embedding_scale == 1) return;
    for (float& value : x) value *= config_.embedding_scale;
  });
  if (config_.layer_inputs > 0) inputs_.begin(ids, x_, workers_);
  if (config_.n_streams > 1) streams_.begin(n_, x_, workers_);
}

// Makes the input of attention, and what goes beside it.
Result<void> Transformer::begin_layer(std::int64_t index) {
  const LayerWeights& weights = weights_.layers[to_size(index)];
  last_layer_ = index;
  if (config_.n_streams > 1) streams_.predict(index, x_, workers_);
  normalize(weights.attention_norm);
  TQC_TRY(check_input(index));
  if (config_.laurel_rank == 0) return {};
  multiply(normed_, {{&weights.laurel.left, router_x_.data()}});
  multiply(router_x_, {{&weights.laurel.right, beside_.data()}});
  normalize_rows(weights.laurel.norm, beside_);
  for (std::size_t i = 0; i < to_size(n_ * config_.d_model); ++i) beside_[i] += normed_[i];
  return {};
}

Result<void> Transformer::run_attention(std::int64_t index, cache::AttentionLayer& layer,
                                        const KvFilter& filter) {
  const LayerWeights& weights = weights_.layers[to_size(index)];
  TQC_TRY(begin_layer(index));
  const cache::HeadShape k_shape = layer.shape, v_shape = layer.value_shape();
  const std::int64_t k_size = k_shape.n_kv_heads * k_shape.head_dim;
  const std::int64_t v_size = v_shape.n_kv_heads * v_shape.head_dim;
  const std::span<float> k = std::span(k_).first(to_size(n_ * k_size));
  const std::span<float> v = std::span(v_).first(to_size(n_ * v_size));
  if (config_.latent.rank > 0) {
    TQC_TRY(make_latent_queries(index));
    latent_attention_.make_latents(weights.latent, n_, normed_, rope_of(index), k, v, workers_);
  } else {
    const AttentionWeights& attention = weights.attention;
    const Product q = {&attention.q, query_products().data()}, of_k = {&attention.k, k_.data()};
    if (attention.v.n_rows > 0) {
      multiply(normed_, {q, of_k, {&attention.v, v_.data()}});
    } else {
      multiply(normed_, {q, of_k});
      std::ranges::copy(k, v.begin());
    }
    TQC_TRY(prepare_queries(index));
    prepare_keys_and_values(index);
  }
  if (filter) TQC_TRY(filter(index, first_, k, v));
  TQC_TRY(check_rows(index, "its keys", k, k_size, largest_of(cache::dense_dtype(layer.k))));
  TQC_TRY(check_rows(index, "its values", v, v_size, largest_of(cache::dense_dtype(layer.v))));
  cache::append(layer.k, k_shape, first_, k);
  cache::append(layer.v, v_shape, first_, v);

  attend(index, layer);
  return feed_forward(index);
}

Result<void> Transformer::rerun_attention(std::int64_t index, const cache::AttentionLayer& layer) {
  const LayerWeights& weights = weights_.layers[to_size(index)];
  TQC_TRY(begin_layer(index));
  if (config_.latent.rank > 0) {
    TQC_TRY(make_latent_queries(index));
  } else {
    multiply(normed_, {{&weights.attention.q, query_products().data()}});
    TQC_TRY(prepare_queries(index));
  }
  attend(index, layer);
  return feed_forward(index);
}

Result<void> Transformer::run_delta_net(std::int64_t index, const cache::StateLayer& before,
                                        cache::StateLayer& after) {
  const LayerWeights& weights = weights_.layers[to_size(index)];
  TQC_TRY(begin_layer(index));
  delta_net_.run(weights.delta_net, before, after, n_, normed_, update_.data(), workers_);
  add_to_x(weights.post_attention_norm);
  return feed_forward(index);
}

// Applies bias, gate split, QK-norm and RoPE to the projected queries.
Result<void> Transformer::prepare_queries(std::int64_t index) {
  const AttentionWeights& weights = weights_.layers[to_size(index)].attention;
  add_bias(weights.q_bias, query_products());
  if (config_.attention_gate) split_gate();
  const std::int64_t head_dim = layers_[to_size(index)].heads.head_dim;
  apply_qk_norm_and_rope(q_, {config_.n_heads, head_dim}, weights.q_norm, rope_of(index));
  if (config_.query_growth > 0) grow_queries();
  return check_rows(index, "its queries", q_, config_.n_heads * head_dim, largest_of(Dtype::kF32));
}

Result<void> Transformer::make_latent_queries(std::int64_t index) {
  const LatentWeights& weights = weights_.layers[to_size(index)].latent;
  const auto q = latent_attention_.make_queries(weights, n_, normed_, rope_of(index), workers_);
  return check_rows(index, "its queries", q, config_.n_heads * config_.latent.query_size(),
                    largest_of(Dtype::kF32));
}

// Applies bias, QK-norm and RoPE to the projected keys, and bias and norm to the values.
void Transformer::prepare_keys_and_values(std::int64_t index) {
  const AttentionWeights& weights = weights_.layers[to_size(index)].attention;
  const cache::HeadShape heads = layers_[to_size(index)].heads;
  add_bias(weights.k_bias, k_);
  apply_qk_norm_and_rope(k_, heads, weights.k_norm, rope_of(index));
  add_bias(weights.v_bias, v_);
  if (weights.v_norm.empty()) return;
  for (std::int64_t i = 0; i < n_ * heads.n_kv_heads; ++i) {
    const std::span<float> value = row_of(v_, i, heads.head_dim);
    rms_norm(value, weights.v_norm, config_.rms_norm_epsilon, value);
  }
}

// Source: huggingface/transformers models/ministral3, get_llama_4_attn_scale.
void Transformer::grow_queries() {
  for_rows([&](std::int64_t row) {
    const auto n_steps = static_cast<double>((first_ + row) / config_.query_growth_step);
    const double factor = 1 + double{config_.query_growth} * std::log1p(n_steps);
    for (float& value : row_of(q_, row, config_.n_heads * config_.head_dim)) {
      value *= static_cast<float>(factor);
    }
  });
}

// Separates the queries from the gates, which follow the queries of each head.
void Transformer::split_gate() {
  const std::int64_t head_dim = config_.head_dim;
  for_rows([&](std::int64_t row) {
    for (std::int64_t i = row * config_.n_heads; i < (row + 1) * config_.n_heads; ++i) {
      const float* const from = q_and_gates_.data() + 2 * i * head_dim;
      std::copy_n(from, head_dim, q_.data() + i * head_dim);
      std::copy_n(from + head_dim, head_dim, gates_.data() + i * head_dim);
    }
  });
}

std::span<const float> Transformer::queries() const {
  const std::int64_t head_dim = layers_[to_size(last_layer_)].heads.head_dim;
  return std::span(q_).first(to_size(n_ * config_.n_heads * head_dim));
}

void Transformer::attend(std::int64_t index, const cache::AttentionLayer& layer) {
  const LayerWeights& weights = weights_.layers[to_size(index)];
  if (config_.latent.rank > 0) {
    const auto n_values = to_size(n_ * config_.n_heads * config_.latent.value);
    latent_attention_.attend(weights.latent, layer, first_ + n_, n_,
                             std::span(attended_).first(n_values), workers_);
    multiply(attended_, {{&weights.latent.output, update_.data()}});
    return add_to_x(weights.post_attention_norm);
  }
  const std::span<const float> q = queries();
  const std::span<float> out = std::span(attended_).first(q.size());
  const LayerConfig& own = layers_[to_size(index)];
  const std::int64_t window = own.window;
  HeadAttention& attention = *std::ranges::find(attentions_, own.heads, &HeadAttention::heads);
  const std::span<const float> sinks = weights.attention.sinks;
  if (n_ == 1) {
    attention.step.attend(layer, first_ + 1, window, q, out, workers_, sinks);
  } else {
    attention.chunk.attend(layer, first_ + n_, n_, window, q, out, workers_, sinks);
  }
  if (config_.attention_gate) {
    for (std::size_t i = 0; i < out.size(); ++i) {
      out[i] /= 1.0f + loops::exp_f32(-std::max(gates_[i], -80.0f));
    }
  }
  multiply(attended_, {{&weights.attention.output, update_.data()}});
  add_bias(weights.attention.output_bias, update_);
  add_to_x(weights.post_attention_norm);
}

// x = (x + what goes beside attention) / sqrt(2).
void Transformer::mix_laurel(const LaurelWeights& weights) {
  if (weights.norm.empty()) return;
  constexpr float kHalf = 1 / std::numbers::sqrt2_v<float>;
  for (std::size_t i = 0; i < to_size(n_ * config_.d_model); ++i) {
    x_[i] = (x_[i] + beside_[i]) * kHalf;
  }
}

Result<void> Transformer::feed_forward(std::int64_t index) {
  const LayerWeights& weights = weights_.layers[to_size(index)];
  mix_laurel(weights.laurel);
  if (config_.parallel_blocks) {
    measure(x_, config_.d_model);  // normed_ is still the input of attention
  } else {
    normalize(weights.ffn_norm);
  }
  TQC_TRY(check_hidden("layer " + std::to_string(index)));
  if (weights.ffn.gate.n_rows > 0) {
    mlp_.run(weights.ffn, n_, normed_, update_.data(), workers_);
  }
  if (config_.has_experts(index)) run_experts(weights);
  add_to_x(weights.post_ffn_norm);
  end_layer(index);
  return {};
}

// Experts beside the feed-forward have inputs of their own, and both outputs are normalized.
void Transformer::run_experts(const LayerWeights& weights) {
  const std::size_t n_values = to_size(n_ * config_.d_model);
  const ExpertsWeights& experts = weights.experts;
  if (!config_.experts.beside_ffn) {
    const auto update = std::span(update_).first(n_values);
    return experts_.run(experts, n_, normed_, normed_, update, workers_);
  }
  normalize(experts.router_norm);
  std::swap(normed_, router_x_);
  normalize(experts.norm);
  experts_.run(experts, n_, normed_, router_x_, std::span(beside_).first(n_values), workers_);
  normalize_rows(experts.post_norm, beside_);
  normalize_rows(experts.post_ffn_norm, update_);
  for (std::size_t i = 0; i < n_values; ++i) update_[i] += beside_[i];
}

// What follows the feed-forward in Gemma 3n and Gemma 4.
void Transformer::end_layer(std::int64_t index) {
  const LayerWeights& weights = weights_.layers[to_size(index)];
  const bool has_streams = config_.n_streams > 1;
  const std::size_t n_values = to_size(n_ * config_.d_model);
  if (has_streams) streams_.correct(index, x_, workers_);
  if (config_.layer_inputs > 0 && has_streams) {
    const AlignedFloats& scale = weights.parallel.scale;
    for (std::size_t i = 0; i < n_values; ++i) normed_[i] = x_[i] * scale[i % scale.size()];
    inputs_.run(index, normed_, update_.data(), workers_);
    streams_.add(update_);
  } else if (config_.layer_inputs > 0) {
    inputs_.run(index, x_, update_.data(), workers_);
    for (std::size_t i = 0; i < n_values; ++i) x_[i] += update_[i];
  }
  if (weights.factor == 1) return;
  for (std::size_t i = 0; i < n_values; ++i) x_[i] *= weights.factor;
}

Result<void> Transformer::finish() {
  if (config_.n_streams > 1) streams_.finish(x_, workers_);
  measure(x_, config_.d_model);
  return check_hidden("layer " + std::to_string(config_.n_layers - 1));
}

Result<std::span<const float>> Transformer::logits(std::int64_t row, std::int64_t n) {
  const auto norm = config_.layer_norms ? layer_norm : rms_norm;
  for (std::int64_t i = 0; i < n; ++i) {
    norm(row_of(x_, row + i, config_.d_model), weights_.output_norm, config_.rms_norm_epsilon,
         row_of(normed_, i, config_.d_model));
  }
  logits_.resize(std::max(logits_.size(), to_size(n * config_.vocab_size)));
  multiply_rows(n, normed_, {{&weights_.output, logits_.data()}}, activations_, workers_);
  const std::span<float> all = std::span(logits_).first(to_size(n * config_.vocab_size));
  for (std::int64_t i = 0; i < n; ++i) {
    if (!all_finite(row_of(logits_, i, config_.vocab_size))) {
      return not_finite("output", row + i, "its logits");
    }
  }
  if (config_.logit_divisor != 1) {
    for (float& value : all) value /= config_.logit_divisor;
  }
  cap_values(config_.logit_cap, all);
  return std::span<const float>(all);
}

// normed = the norm of x, row by row, or x without a weight. Sets squares_ to the sums of squares
// of x.
void Transformer::normalize(const AlignedFloats& weight) {
  const auto norm = config_.layer_norms ? layer_norm : rms_norm;
  for_rows([&](std::int64_t row) {
    const std::span<float> x = row_of(x_, row, config_.d_model);
    const std::span<float> normed = row_of(normed_, row, config_.d_model);
    if (weight.empty()) {
      squares_[to_size(row)] = sum_of_squares(x);
      std::ranges::copy(x, normed.begin());
    } else {
      squares_[to_size(row)] = norm(x, weight, config_.rms_norm_epsilon, normed);
    }
  });
}

// Shapes: rows [n, size].
void Transformer::measure(std::span<const float> rows, std::int64_t size) {
  for_rows([&](std::int64_t row) {
    const std::size_t first = to_size(row * size);
    squares_[to_size(row)] = sum_of_squares(rows.subspan(first, to_size(size)));
  });
}

Error Transformer::not_finite(const std::string& layer, std::int64_t row,
                              std::string_view what) const {
  return corrupt(layer + ": token " + std::to_string(first_ + row) + ": " + std::string(what) +
                 " are not finite numbers, or too large: the cache or the weights are damaged");
}

// Requires: squares_ belong to x.
Result<void> Transformer::check_hidden(const std::string& layer) const {
  for (std::int64_t row = 0; row < n_; ++row) {
    if (!std::isfinite(squares_[to_size(row)])) return not_finite(layer, row, "its hidden states");
  }
  return {};
}

// The same for the input of layer `index`.
Result<void> Transformer::check_input(std::int64_t index) const {
  return check_hidden(index == 0 ? "embedding" : "layer " + std::to_string(index - 1));
}

// Reads single values only where the sum of squares does not decide. Shapes: rows [n, size].
Result<void> Transformer::check_rows(std::int64_t index, std::string_view what,
                                     std::span<const float> rows, std::int64_t size,
                                     float largest) {
  measure(rows, size);
  for (std::int64_t row = 0; row < n_; ++row) {
    const float squares = squares_[to_size(row)];
    if (std::isfinite(squares) && squares <= largest * largest) continue;
    const auto values = rows.subspan(to_size(row * size), to_size(size));
    const auto fits = [&](float value) { return std::abs(value) <= largest; };
    if (std::ranges::all_of(values, fits)) continue;
    return not_finite("layer " + std::to_string(index), row, what);
  }
  return {};
}

// Shapes: input [n, n_cols].
void Transformer::multiply(const AlignedFloats& input, std::initializer_list<Product> products) {
  multiply_rows(n_, input, products, activations_, workers_);
}

// Shapes: rows [n, bias.size()]. An empty bias adds 0.
void Transformer::add_bias(const AlignedFloats& bias, AlignedFloats& rows) {
  if (bias.empty()) return;
  for_rows([&](std::int64_t row) {
    float* const values = rows.data() + to_size(row) * bias.size();
    for (std::size_t i = 0; i < bias.size(); ++i) values[i] += bias[i];
  });
}

// Normalizes every head vector, or all of a token together, if the model has QK norms, and rotates
// it to its position.
// Shapes: rows [n, n_heads, head_dim].
void Transformer::apply_qk_norm_and_rope(AlignedFloats& rows, cache::HeadShape heads,
                                         const AlignedFloats& norm, const RopeTable& rope) {
  const std::int64_t n_heads = heads.n_kv_heads, head_dim = heads.head_dim;
  const std::size_t n_paired = config_.layout.permuted_heads ? to_size(config_.rope.n_dims) : 0;
  for_rows([&](std::int64_t row) {
    AlignedFloats scratch(n_paired);
    if (config_.wide_qk_norms) {
      const std::span<float> all = row_of(rows, row, n_heads * head_dim);
      rms_norm(all, norm, config_.rms_norm_epsilon, all);
    }
    for (std::int64_t head = 0; head < n_heads; ++head) {
      const std::span<float> vector = row_of(rows, row * n_heads + head, head_dim);
      if (n_paired > 0) split_pairs(vector.first(n_paired), scratch);
      if (config_.norms_after_rope) rope.rotate(row, vector);
      if (!norm.empty() && !config_.wide_qk_norms) {
        rms_norm(vector, norm, config_.rms_norm_epsilon, vector);
      }
      if (!config_.norms_after_rope) rope.rotate(row, vector);
    }
  });
}

// Shapes: norm [d_model], or empty: nothing is done; rows [n, d_model].
void Transformer::normalize_rows(const AlignedFloats& norm, AlignedFloats& rows) {
  if (norm.empty()) return;
  for_rows([&](std::int64_t i) {
    const std::span<float> row = row_of(rows, i, config_.d_model);
    rms_norm(row, norm, config_.rms_norm_epsilon, row);
  });
}

// x += update, which is first normalized if a norm is given, and scaled.
void Transformer::add_to_x(const AlignedFloats& norm) {
  normalize_rows(norm, update_);
  const std::size_t n_values = to_size(n_ * config_.d_model);
  if (config_.residual_scale != 1) {
    for (std::size_t i = 0; i < n_values; ++i) update_[i] *= config_.residual_scale;
  }
  for (std::size_t i = 0; i < n_values; ++i) x_[i] += update_[i];
}

std::uint64_t Transformer::scratch_bytes() const {
  const std::size_t floats = x_.size() + normed_.size() + update_.size() + squares_.size() +
                             q_.size() + k_.size() + v_.size() + gates_.size() +
                             q_and_gates_.size() + attended_.size() + logits_.size() +
                             beside_.size() + router_x_.size();
  std::uint64_t bytes = floats * sizeof(float) + latent_attention_.scratch_bytes() +
                        delta_net_.scratch_bytes() + mlp_.scratch_bytes() +
                        experts_.scratch_bytes() + inputs_.scratch_bytes() +
                        streams_.scratch_bytes();
  for (const HeadAttention& each : attentions_) {
    bytes += each.step.scratch_bytes() + each.chunk.scratch_bytes();
  }
  for (const RopeTable& rope : ropes_) bytes += rope.scratch_bytes();
  return bytes;
}

}  // namespace tqcache::model
