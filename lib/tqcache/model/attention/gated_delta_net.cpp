#include "tqcache/model/attention/gated_delta_net.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tqcache/base/integers.h"
#include "tqcache/bytes.h"
#include "tqcache/model/feed_forward.h"
#include "tqcache/model/linear/kernel_loops.h"
#include "tqcache/model/linear/matrix.h"
#include "tqcache/model/linear/product_kernels.h"

namespace tqcache::model {

namespace {

constexpr std::int64_t kChannelsPerPiece = 256;
constexpr float kLengthEpsilon = 1e-6f;  // for q and k, as in the reference

float silu(float x) { return x * loops::sigmoid(x); }
float softplus(float x) { return x > 20.0f ? x : std::log1p(std::exp(x)); }

float dot(const float* a, const float* b, std::size_t n) {
  return best_kernels().dot_f32(reinterpret_cast<const std::byte*>(a), b, n);
}

// Scales x to length `length`, approximately.
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
  multiply_rows(n, *heads, {{&weights.output, out}}, bits_, workers);
}

// Computes the products with the input, in our order.
void GatedDeltaNet::project(const DeltaNetWeights& weights, std::int64_t n,
                            std::span<const float> x, const Workers& workers) {
  grow(products_, n * row_size());
  grow(rows_, n * row_size());
  std::vector<const float*> of_matrix;  // [n_rows in total], values of each row for token 0
  std::vector<std::int64_t> strides;
  float* at = products_.data();
  for (const Matrix& matrix : weights.inputs) {
    multiply_rows(n, x, {{&matrix, at}}, bits_, workers);
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

// Convolves each channel separately: the newest inputs, older ones first, with the channel's
// kernel.
void GatedDeltaNet::convolve(const DeltaNetWeights& weights, std::span<const float> before,
                             std::span<float> after, std::int64_t n, const Workers& workers) {
  const std::int64_t size = net_.conv_size();
  const std::int64_t n_old = net_.kernel - 1;
  grow(convolved_, n * size);
  // Inputs in token order; tokens before the first one have negative indices.
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
  const float beta = loops::sigmoid(gates[net_.value_size() + head]);
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

namespace {

using cache::NamedArray;
using Shape = std::vector<std::uint64_t>;

Shape conv_shape(const DeltaNetConfig& net) {
  return {1, to_u64(net.kernel - 1), to_u64(net.conv_size())};
}

Shape state_shape(const DeltaNetConfig& net) {
  return {1, to_u64(net.n_value_heads), to_u64(net.value_dim), to_u64(net.key_dim)};
}

std::uint64_t product(const Shape& shape) {
  std::uint64_t count = 1;
  for (const std::uint64_t n : shape) count *= n;
  return count;
}

NamedArray zeros(std::string name, Shape shape) {
  AlignedBytes data(to_size(static_cast<std::int64_t>(product(shape) * sizeof(float))));
  return {std::move(name), Dtype::kF32, std::move(shape), std::move(data)};
}

AlignedFloats widened(const NamedArray& array) {
  AlignedFloats values(array.data.size() / dtype_size(array.dtype));
  load_f32(array.dtype, array.data.data(), values);
  return values;
}

bool is_pair(const cache::StateLayer& layer, const Shape& first, const Shape& second) {
  return layer.arrays.size() == 2 && layer.arrays[0].shape == first &&
         layer.arrays[1].shape == second;
}

// mlx-lm's order, in any dtype.
void adopt_same(const cache::StateLayer& from, cache::StateLayer& to) {
  for (std::size_t i = 0; i < 2; ++i) {
    const AlignedFloats values = widened(from.arrays[i]);
    std::ranges::copy(values, state_values(to.arrays[i]).begin());
  }
}

// transformers: [1, conv_size, kernel], where only the last kernel - 1 columns are used, and [1,
// n_value_heads, key_dim, value_dim].
void adopt_transposed(const DeltaNetConfig& net, const cache::StateLayer& from,
                      cache::StateLayer& to) {
  const AlignedFloats conv = widened(from.arrays[0]);
  const auto columns = static_cast<std::int64_t>(from.arrays[0].shape.back());
  const std::span<float> conv_out = state_values(to.arrays[0]);
  for (std::int64_t i = 0; i < std::ssize(conv_out); ++i) {
    const std::int64_t row = i / net.conv_size(), channel = i % net.conv_size();
    conv_out[to_size(i)] = conv[to_size(channel * columns + columns - net.kernel + 1 + row)];
  }
  const AlignedFloats state = widened(from.arrays[1]);
  const std::span<float> state_out = state_values(to.arrays[1]);
  for (std::int64_t i = 0; i < std::ssize(state_out); ++i) {
    const std::int64_t head = i / (net.value_dim * net.key_dim);
    const std::int64_t value = i / net.key_dim % net.value_dim, key = i % net.key_dim;
    state_out[to_size(i)] = state[to_size((head * net.key_dim + key) * net.value_dim + value)];
  }
}

// llama.cpp: [conv_size, kernel - 1] and [n_value_heads, value_dim, key_dim] as rows, with value
// heads in the order of the GGUF file.
void adopt_rows(const ModelConfig& config, const cache::StateLayer& from, cache::StateLayer& to) {
  const DeltaNetConfig& net = config.delta_net;
  const std::int64_t group = net.n_value_heads / net.n_key_heads;
  const auto head_in_file = [&](std::int64_t head) {
    return config.layout.tiled_value_heads ? head % group * net.n_key_heads + head / group : head;
  };
  const AlignedFloats conv = widened(from.arrays[0]);
  const std::span<float> conv_out = state_values(to.arrays[0]);
  for (std::int64_t i = 0; i < std::ssize(conv_out); ++i) {
    const std::int64_t row = i / net.conv_size();
    std::int64_t channel = i % net.conv_size();
    const std::int64_t value = channel - 2 * net.key_size();
    if (value >= 0) {
      channel = 2 * net.key_size() + head_in_file(value / net.value_dim) * net.value_dim +
                value % net.value_dim;
    }
    conv_out[to_size(i)] = conv[to_size(channel * (net.kernel - 1) + row)];
  }
  const AlignedFloats state = widened(from.arrays[1]);
  const std::int64_t head_size = net.value_dim * net.key_dim;
  for (std::int64_t head = 0; head < net.n_value_heads; ++head) {
    std::copy_n(state.data() + head_in_file(head) * head_size, head_size,
                state_values(to.arrays[1]).data() + head * head_size);
  }
}

bool is_ours(const DeltaNetConfig& net, const cache::StateLayer& layer) {
  return is_pair(layer, conv_shape(net), state_shape(net)) && layer.arrays[0].name == "0" &&
         layer.arrays[1].name == "1" && layer.arrays[0].dtype == Dtype::kF32 &&
         layer.arrays[1].dtype == Dtype::kF32;
}

bool is_named(const cache::StateLayer& layer, std::string_view first, std::string_view second) {
  return layer.arrays.size() == 2 && layer.arrays[0].name == first &&
         layer.arrays[1].name == second;
}

// Selects by name, because shapes may agree although the order differs.
bool adopt_as_named(const ModelConfig& config, const cache::StateLayer& from,
                    cache::StateLayer& to) {
  const DeltaNetConfig& net = config.delta_net;
  const std::uint64_t channels = to_u64(net.conv_size());
  const std::uint64_t tokens = to_u64(net.kernel);
  const Shape transposed = {1, to_u64(net.n_value_heads), to_u64(net.key_dim),
                            to_u64(net.value_dim)};
  if (is_named(from, "0", "1") && is_pair(from, conv_shape(net), state_shape(net))) {
    adopt_same(from, to);
    return true;
  }
  if (is_named(from, "conv_states.0", "recurrent_states.0") &&
      (is_pair(from, {1, channels, tokens}, transposed) ||
       is_pair(from, {1, channels, tokens - 1}, transposed))) {
    adopt_transposed(net, from, to);
    return true;
  }
  if (is_named(from, "r", "s") &&
      is_pair(from, {product(conv_shape(net))}, {product(state_shape(net))})) {
    adopt_rows(config, from, to);
    return true;
  }
  return false;
}

}  // namespace

std::span<float> state_values(cache::NamedArray& array) {
  return {reinterpret_cast<float*>(array.data.data()), array.data.size() / sizeof(float)};
}

cache::StateLayer empty_delta_state(const DeltaNetConfig& config) {
  cache::StateLayer layer;
  layer.arrays.push_back(zeros("0", conv_shape(config)));
  layer.arrays.push_back(zeros("1", state_shape(config)));
  return layer;
}

Result<void> adopt_delta_state(const ModelConfig& config, cache::StateLayer& layer) {
  if (is_ours(config.delta_net, layer)) return {};
  cache::StateLayer ours = empty_delta_state(config.delta_net);
  if (!adopt_as_named(config, layer, ours)) {
    return Error{ErrorCode::kMismatch,
                 "its arrays are not the state of the model's gated delta net"};
  }
  layer = std::move(ours);
  return {};
}

std::span<const float> convolution_inputs(const cache::StateLayer& layer) {
  const AlignedBytes& data = layer.arrays[0].data;
  return {reinterpret_cast<const float*>(data.data()), data.size() / sizeof(float)};
}

std::span<const float> head_matrices(const cache::StateLayer& layer) {
  const AlignedBytes& data = layer.arrays[1].data;
  return {reinterpret_cast<const float*>(data.data()), data.size() / sizeof(float)};
}

}  // namespace tqcache::model
