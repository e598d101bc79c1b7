#include "tqcache/model/transformer.h"

#include <algorithm>
#include <cassert>
#include <cmath>

#include "tqcache/model/kernels.h"

namespace tqcache::model {
namespace {

constexpr std::int64_t kRowsPerPiece = 16;  // tokens whose small sums are worth a task switch

std::size_t to_size(std::int64_t n) { return static_cast<std::size_t>(n); }

std::span<float> row_of(AlignedFloats& rows, std::int64_t row, std::int64_t size) {
  return std::span(rows).subspan(to_size(row * size), to_size(size));
}

// y = x / sqrt(mean(x^2) + epsilon) * weight. Shapes: x, weight, y [n]; y may be x.
void rms_norm(std::span<const float> x, std::span<const float> weight, float epsilon,
              std::span<float> y) {
  const float squares = best_kernels().dot_f32(std::as_bytes(x).data(), x.data(), x.size());
  const float factor = 1.0f / std::sqrt(squares / static_cast<float>(x.size()) + epsilon);
  for (std::size_t i = 0; i < x.size(); ++i) y[i] = x[i] * factor * weight[i];
}

}  // namespace

Transformer::Transformer(const ModelConfig& config, const Weights& weights, unsigned n_threads,
                         Scorer scorer)
    : config_(config),
      weights_(weights),
      workers_(n_threads),
      step_attention_(config.head_shape(), config.n_heads, config.rope, scorer),
      chunk_attention_(config.head_shape(), config.n_heads),
      rope_(config.rope) {}

void Transformer::reserve_rows(std::int64_t n) {
  if (n <= capacity_) return;
  capacity_ = n == 1 ? 1 : cache::kTokenBlock;  // a decode step must not take a chunk's memory
  const auto resize = [&](AlignedFloats& rows, std::int64_t size) {
    rows.resize(to_size(capacity_ * size));
  };
  resize(x_, config_.d_model);
  resize(normed_, config_.d_model);
  resize(update_, config_.d_model);
  resize(q_, config_.n_heads * config_.head_dim);
  resize(k_, config_.n_kv_heads * config_.head_dim);
  resize(v_, config_.n_kv_heads * config_.head_dim);
  resize(attended_, config_.n_heads * config_.head_dim);
  resize(gate_, config_.d_ff);
  resize(up_, config_.d_ff);
}

void Transformer::for_rows(const std::function<void(std::int64_t)>& body) const {
  const std::int64_t n_pieces = (n_ + kRowsPerPiece - 1) / kRowsPerPiece;
  workers_.run(to_size(n_pieces), [&](std::size_t piece) {
    const std::int64_t first = static_cast<std::int64_t>(piece) * kRowsPerPiece;
    for (std::int64_t row = first; row < std::min(first + kRowsPerPiece, n_); ++row) body(row);
  });
}

void Transformer::begin(std::span<const std::int32_t> ids, std::int64_t first) {
  first_ = first;
  n_ = static_cast<std::int64_t>(ids.size());
  assert(n_ >= 1 && first_ % cache::kTokenBlock + n_ <= cache::kTokenBlock);
  reserve_rows(n_);
  rope_.set_positions(first_, n_);
  for_rows([&](std::int64_t row) {
    load_rows(weights_.token_embedding, ids[to_size(row)], 1, row_of(x_, row, config_.d_model));
  });
}

Result<void> Transformer::run_layer(std::int64_t index, cache::AttentionLayer& layer,
                                    const KvFilter& filter) {
  const LayerWeights& weights = weights_.layers[to_size(index)];
  normalize(weights.attention_norm);
  multiply(normed_, {{&weights.q, q_.data()}, {&weights.k, k_.data()}, {&weights.v, v_.data()}});
  turn_heads(q_, config_.n_heads, weights.q_norm);
  turn_heads(k_, config_.n_kv_heads, weights.k_norm);

  const std::size_t n_values = to_size(n_ * config_.n_kv_heads * config_.head_dim);
  const std::span<float> k = std::span(k_).first(n_values);
  const std::span<float> v = std::span(v_).first(n_values);
  if (filter) TQC_TRY(filter(index, first_, k, v));
  cache::append(layer.k, layer.shape, first_, k);
  cache::append(layer.v, layer.shape, first_, v);

  attend(weights, layer);
  feed_forward(weights);
  return {};
}

void Transformer::rerun_layer(std::int64_t index, const cache::AttentionLayer& layer) {
  const LayerWeights& weights = weights_.layers[to_size(index)];
  normalize(weights.attention_norm);
  multiply(normed_, {{&weights.q, q_.data()}});
  turn_heads(q_, config_.n_heads, weights.q_norm);
  attend(weights, layer);
  feed_forward(weights);
}

std::span<const float> Transformer::queries() const {
  return std::span(q_).first(to_size(n_ * config_.n_heads * config_.head_dim));
}

void Transformer::attend(const LayerWeights& weights, const cache::AttentionLayer& layer) {
  const std::span<const float> q = queries();
  const std::span<float> out = std::span(attended_).first(q.size());
  if (n_ == 1) {
    step_attention_.attend(layer, first_ + 1, q, out, workers_);
  } else {
    chunk_attention_.attend(layer, first_ + n_, n_, q, out, workers_);
  }
  multiply(attended_, {{&weights.attention_output, update_.data()}});
  add_to_x(update_);
}

void Transformer::feed_forward(const LayerWeights& weights) {
  normalize(weights.ffn_norm);
  multiply(normed_, {{&weights.ffn_gate, gate_.data()}, {&weights.ffn_up, up_.data()}});
  const std::size_t d_ff = to_size(config_.d_ff);
  for_rows([&](std::int64_t row) {
    best_kernels().silu_multiply(up_.data() + to_size(row) * d_ff, d_ff,
                                 gate_.data() + to_size(row) * d_ff);
  });
  multiply(gate_, {{&weights.ffn_down, update_.data()}});
  add_to_x(update_);
}

std::span<const float> Transformer::logits(std::int64_t row, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    rms_norm(row_of(x_, row + i, config_.d_model), weights_.output_norm, config_.rms_norm_epsilon,
             row_of(normed_, i, config_.d_model));
  }
  logits_.resize(std::max(logits_.size(), to_size(n * config_.vocab_size)));
  n_ = n;
  multiply(normed_, {{&weights_.output, logits_.data()}});
  return std::span(logits_).first(to_size(n * config_.vocab_size));
}

// normed = rms_norm(x), row by row.
void Transformer::normalize(const AlignedFloats& weight) {
  for_rows([&](std::int64_t row) {
    rms_norm(row_of(x_, row, config_.d_model), weight, config_.rms_norm_epsilon,
             row_of(normed_, row, config_.d_model));
  });
}

// Shapes: input [n, n_cols].
void Transformer::multiply(const AlignedFloats& input, std::initializer_list<Product> products) {
  const std::int64_t n_cols = products.begin()->matrix->n_cols;
  const std::span<const float> rows = std::span(input).first(to_size(n_ * n_cols));
  if (n_ == 1) return multiply_vector(products, rows, workers_);
  for (const Product& product : products) multiply_matrix(product, n_, rows, workers_);
}

// Normalizes every head vector, and turns it to its position.
// Shapes: rows [n, n_heads, head_dim].
void Transformer::turn_heads(AlignedFloats& rows, std::int64_t n_heads, const AlignedFloats& norm) {
  for_rows([&](std::int64_t row) {
    for (std::int64_t head = 0; head < n_heads; ++head) {
      const std::span<float> vector = row_of(rows, row * n_heads + head, config_.head_dim);
      rms_norm(vector, norm, config_.rms_norm_epsilon, vector);
      rope_.rotate(row, vector);
    }
  });
}

void Transformer::add_to_x(const AlignedFloats& rows) {
  const std::size_t n_values = to_size(n_ * config_.d_model);
  for (std::size_t i = 0; i < n_values; ++i) x_[i] += rows[i];
}

std::uint64_t Transformer::scratch_bytes() const {
  const std::size_t floats = x_.size() + normed_.size() + update_.size() + q_.size() + k_.size() +
                             v_.size() + attended_.size() + gate_.size() + up_.size() +
                             logits_.size();
  return floats * sizeof(float) + step_attention_.scratch_bytes() +
         chunk_attention_.scratch_bytes() + rope_.scratch_bytes();
}

}  // namespace tqcache::model
