#include "tqcache/model/attention/gated_delta_net.h"

#include <algorithm>
#include <cmath>

#include "tqcache/base/aligned.h"
#include "tqcache/base/integers.h"
#include "tqcache/model/attention/delta_state.h"
#include "tqcache/model/gated_unit.h"
#include "tqcache/model/linear/kernel_loops.h"
#include "tqcache/model/linear/kernels.h"
#include "tqcache/model/linear/products.h"

namespace tqcache::model {
namespace {

constexpr std::int64_t kChannelsPerPiece = 256;
constexpr float kLengthEpsilon = 1e-6f;  // of q and k, as the reference has it

float sigmoid(float x) { return 1.0f / (1.0f + loops::exp_f32(-std::max(x, -80.0f))); }
float silu(float x) { return x * sigmoid(x); }
float softplus(float x) { return x > 20.0f ? x : std::log1p(std::exp(x)); }

float dot(const float* a, const float* b, std::size_t n) {
  return best_kernels().dot_f32(reinterpret_cast<const std::byte*>(a), b, n);
}

// To length `length`, nearly.
void normalize(float* x, std::size_t n, float length) {
  const float factor = length / std::sqrt(dot(x, x, n) + kLengthEpsilon);
  for (std::size_t i = 0; i < n; ++i) x[i] *= factor;
}

}  // namespace

void GatedDeltaNet::run(const DeltaNetWeights& weights, const cache::StateLayer& before,
                        cache::StateLayer& after, std::int64_t n, std::span<const float> x,
                        float* out, const Workers& workers) {
  after = before;
  project(weights, n, x, workers);
  convolve(weights, convolution_inputs(before), state_values(after.arrays[0]), n, workers);
  grow(heads_, n * net_.value_size());
  const std::span<float> states = state_values(after.arrays[1]);
  workers.run(to_size(net_.n_value_heads), [&](std::size_t head) {
    const auto index = static_cast<std::int64_t>(head);
    run_head(weights, index, n, states.data() + index * net_.value_dim * net_.key_dim);
  });
  const AlignedFloats* heads = &heads_;
  if (!weights.columns.empty()) {
    grow(ordered_, n * net_.value_size());
    for (std::int64_t i = 0; i < n * net_.value_size(); ++i) {
      const std::int64_t first = i / net_.value_size() * net_.value_size();
      ordered_[to_size(i)] = heads_[to_size(first + weights.columns[to_size(i - first)])];
    }
    heads = &ordered_;
  }
  multiply_rows(n, *heads, {{&weights.output, out}}, workers);
}

// The products with the input, in our order.
void GatedDeltaNet::project(const DeltaNetWeights& weights, std::int64_t n,
                            std::span<const float> x, const Workers& workers) {
  grow(products_, n * row_size());
  grow(rows_, n * row_size());
  std::vector<const float*> of_matrix;  // [n_rows of all], each row's values of the first token
  std::vector<std::int64_t> strides;
  float* at = products_.data();
  for (const Matrix& matrix : weights.inputs) {
    multiply_rows(n, x, {{&matrix, at}}, workers);
    for (std::int64_t i = 0; i < matrix.n_rows; ++i) of_matrix.push_back(at + i);
    strides.insert(strides.end(), to_size(matrix.n_rows), matrix.n_rows);
    at += n * matrix.n_rows;
  }
  for (std::int64_t token = 0; token < n; ++token) {
    float* const to = row(token);
    for (std::size_t i = 0; i < weights.rows.size(); ++i) {
      const auto from = static_cast<std::size_t>(weights.rows[i]);
      to[i] = of_matrix[from][token * strides[from]];
    }
  }
}

// Each channel by itself: the newest inputs, older ones first, with the channel's kernel.
void GatedDeltaNet::convolve(const DeltaNetWeights& weights, std::span<const float> before,
                             std::span<float> after, std::int64_t n, const Workers& workers) {
  const std::int64_t size = net_.conv_size();
  const std::int64_t n_old = net_.kernel - 1;
  grow(convolved_, n * size);
  // Inputs in the order of tokens, those before the first one having negative numbers.
  const auto input = [&](std::int64_t token) {
    return token < 0 ? before.data() + (n_old + token) * size : row(token);
  };
  const std::int64_t n_pieces = (size + kChannelsPerPiece - 1) / kChannelsPerPiece;
  workers.run(to_size(n_pieces), [&](std::size_t piece) {
    const std::int64_t first = static_cast<std::int64_t>(piece) * kChannelsPerPiece;
    const std::int64_t end = std::min(first + kChannelsPerPiece, size);
    for (std::int64_t token = 0; token < n; ++token) {
      float* const sums = convolved_.data() + token * size;
      std::fill(sums + first, sums + end, 0.0f);
      for (std::int64_t j = 0; j < net_.kernel; ++j) {
        const float* const from = input(token - n_old + j);
        const float* const factors = weights.conv.data() + j * size;
        for (std::int64_t c = first; c < end; ++c) sums[c] += factors[c] * from[c];
      }
      for (std::int64_t c = first; c < end; ++c) sums[c] = silu(sums[c]);
    }
  });
  for (std::int64_t i = 0; i < n_old; ++i) {
    std::copy_n(input(n - n_old + i), size, after.data() + i * size);
  }
}

void GatedDeltaNet::run_head(const DeltaNetWeights& weights, std::int64_t head, std::int64_t n,
                             float* state) {
  for (std::int64_t token = 0; token < n; ++token) step(head, token, weights, state);
}

// One token of one value head. Shapes: state [value_dim, key_dim].
void GatedDeltaNet::step(std::int64_t head, std::int64_t token, const DeltaNetWeights& weights,
                         float* state) {
  const std::size_t key_dim = to_size(net_.key_dim);
  const std::size_t value_dim = to_size(net_.value_dim);
  const std::int64_t key_head = head / (net_.n_value_heads / net_.n_key_heads);
  const float* const mixed = convolved_.data() + token * net_.conv_size();
  AlignedFloats q(mixed + key_head * net_.key_dim, mixed + (key_head + 1) * net_.key_dim);
  const float* const k_from = mixed + net_.key_size() + key_head * net_.key_dim;
  AlignedFloats k(k_from, k_from + key_dim);
  const float* const v = mixed + 2 * net_.key_size() + head * net_.value_dim;
  normalize(q.data(), key_dim, 1.0f / std::sqrt(static_cast<float>(key_dim)));
  normalize(k.data(), key_dim, 1.0f);

  const float* const gates = row(token) + net_.conv_size();
  const float beta = sigmoid(gates[net_.value_size() + head]);
  const float alpha = gates[net_.value_size() + net_.n_value_heads + head];
  const float decay =
      std::exp(weights.decay[to_size(head)] * softplus(alpha + weights.dt_bias[to_size(head)]));

  float* const out = heads_.data() + token * net_.value_size() + head * net_.value_dim;
  for (std::size_t i = 0; i < value_dim; ++i) {
    float* const values = state + i * key_dim;
    for (std::size_t j = 0; j < key_dim; ++j) values[j] *= decay;
    const float change = beta * (v[i] - dot(values, k.data(), key_dim));
    for (std::size_t j = 0; j < key_dim; ++j) values[j] += change * k[j];
    out[i] = dot(values, q.data(), key_dim);
  }

  const float mean = dot(out, out, value_dim) / static_cast<float>(value_dim);
  const float factor = 1.0f / std::sqrt(mean + epsilon_);
  const float* const gate = gates + head * net_.value_dim;
  for (std::size_t i = 0; i < value_dim; ++i) {
    out[i] = weights.norm[i] * (out[i] * factor) * silu(gate[i]);
  }
}

std::uint64_t GatedDeltaNet::scratch_bytes() const {
  return (products_.size() + rows_.size() + convolved_.size() + heads_.size() + ordered_.size()) *
         sizeof(float);
}

}  // namespace tqcache::model
